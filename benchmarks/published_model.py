"""A published model through this toolkit: its loss against `transformers`, some steps more, the export, a sentence.

The model is SmolLM2-135M-Instruct (`smollm2`). Every figure is printed beside its bound. Without the package index the
benchmark says so and measures nothing.

    python -m benchmarks.published_model [CLUSTER ...]    (default: laptop mixed)
"""

from __future__ import annotations

import contextlib
import io
import pydoc_data.topics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.smollm2 import PACKAGE, make_folder

if TYPE_CHECKING:
    from torch import Tensor

    from holmes_hpc.runs.folder import RunFolder

STEPS = 4
BATCHES = {"mixed": 8}
"""Samples of a step by cluster; 4 on others."""
PROMPT, ANSWER = "The capital of France is", "Paris"
VALIDATION_SAMPLES = 8


@dataclass
class Findings:
    """Figures that were compared, and whether all of them are within their bounds."""

    right: bool = True

    def say(self, what: str, seen: str, bound: str, holds: bool) -> None:
        """Print a figure beside its bound."""
        self.right = self.right and holds
        print(f"{'ok ' if holds else 'NOT'} {what}: {seen} (bound: {bound})", flush=True)

    def equal(self, what: str, ours: float, theirs: float, bound: float) -> None:
        """Print and compare a figure of ours and of `transformers`."""
        self.say(what, f"ours {ours:.7f}, transformers {theirs:.7f}, apart {abs(ours - theirs):.1e}", f"{bound:g}",
                 abs(ours - theirs) <= bound)


def main() -> int:
    """Run the benchmark; return 1 where a figure is not as `transformers` has it."""
    import transformers

    transformers.logging.disable_progress_bar()
    clusters = sys.argv[1:] or ["laptop", "mixed"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "smollm2")
        try:
            make_folder(folder, Path(place))
        except subprocess.CalledProcessError as error:
            print(f"skipped: the package index cannot be reached or lacks {PACKAGE}: {error.stderr.strip()[-300:]}")
            return 0
        findings = Findings()
        compare_page(folder, findings)
        for cluster in clusters:
            train_on(folder, cluster, Path(place), findings)
    return 0 if findings.right else 1


def compare_page(folder: Path, findings: Findings) -> None:
    """Compare the loss on a page of Python's documentation, and the greedy continuation, with `transformers`."""
    import torch
    from tokenizers import Tokenizer

    from holmes_hpc.architecture import Architecture
    from holmes_hpc.config.compose import compose
    from holmes_hpc.model import PretrainedWeights, build_stage, token_loss

    tokens = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(
        pydoc_data.topics.topics["assert"]).ids])
    model = Architecture.from_config(compose(["+cluster=laptop", f"model.from_pretrained={folder}"]).model)
    with PretrainedWeights(folder, model) as weights, torch.no_grad():
        stage = build_stage(model, 0, model.num_layers, first=True, last=True, seed=0, weights=weights)
        ours = float(token_loss(stage(tokens[:, :-1]), tokens[:, 1:], model.vocab_size))
    print(f"{model.parameter_count():,} parameters; the page is {tokens.shape[1]} tokens", flush=True)
    findings.equal("loss on a page of Python's documentation", ours, loss_of(folder, tokens), 1e-4)
    compare_sentences(folder, findings, "as published")


def train_on(folder: Path, cluster: str, place: Path, findings: Findings) -> None:
    """Train on by the command, export, and compare what came of it with `transformers` on the same samples."""
    from holmes_hpc import cli
    from holmes_hpc.runs import read_metrics
    from holmes_hpc.runs.find import find_run

    batch, text = BATCHES.get(cluster, 4), place / "text"
    text.mkdir(exist_ok=True)
    (text / "topics.txt").write_text("\n\n".join(pydoc_data.topics.topics.values()))
    began = time.monotonic()
    status = cli.run(["train", f"+cluster={cluster}", f"model.from_pretrained={folder}", "model.sequence_length=256",
                      "data=text", f"data.path={text}", f"data.tokenizer={folder / 'tokenizer.json'}",
                      f"train.steps={STEPS}", f"train.global_batch_size={batch}", f"train.validate_every={STEPS}",
                      f"train.validation_samples={VALIDATION_SAMPLES}", f"train.checkpoint_every={STEPS}",
                      "optimizer.lr=5e-5", "optimizer.min_lr=5e-6", "optimizer.warmup_steps=2",
                      f"run.folder={place / 'runs'}"])
    findings.say(f"{cluster}: status of train", f"{status} after {time.monotonic() - began:.0f} s", "0", status == 0)
    if status:
        return
    run = find_run(cluster, place / "runs")
    rows = read_metrics(run)
    training, validation = samples_of(run, batch)
    findings.equal(f"{cluster}: loss of step 1", rows[0]["loss"], loss_of(folder, training), 1e-6)
    out = place / f"out-{cluster}"
    status = cli.run(["export", str(run.path), "--to", str(out)])
    findings.say(f"{cluster}: status of export", str(status), "0", status == 0)
    before, after = loss_of(folder, validation), rows[-1]["validation_loss"]
    findings.say(f"{cluster}: validation loss", f"{before:.4f} before, {after:.4f} after {STEPS} steps", "it falls",
                 after < before)
    if not status:
        findings.equal(f"{cluster}: validation loss of the export", after, loss_of(out, validation), 1e-5)
        compare_sentences(out, findings, cluster)


def samples_of(run: RunFolder, batch: int) -> tuple[Tensor, Tensor]:
    """Return the windows of a run's first step and of its validation, each [samples, tokens + 1]."""
    import torch

    from holmes_hpc.data import open_dataset
    from holmes_hpc.engine.whole_model import find_origin_of_model, settings_of

    config, architecture = settings_of(find_origin_of_model(str(run.path), run.path.parent, None), [])
    data = open_dataset(config.data, architecture)
    found = [data.train_samples(config.train.seed, 1, 0, batch, batch), data.validation_samples(0, VALIDATION_SAMPLES)]
    training, validation = (torch.cat((each.tokens, each.targets[:, -1:]), dim=1) for each in found)
    return training, validation


def loss_of(folder: Path, windows: Tensor) -> float:
    """Return the mean of the losses that `transformers` has for windows [n, tokens]."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        losses = [float(model(window[None], labels=window[None]).loss) for window in windows]
    return sum(losses) / len(losses)


def compare_sentences(folder: Path, findings: Findings, what: str, count: int = 8) -> None:
    """Compare what we and `transformers` go on with after PROMPT, each taking the likeliest token."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    from holmes_hpc import cli

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found = model.generate(torch.tensor([tokenizer.encode(PROMPT).ids]), max_new_tokens=count, do_sample=False,
                               pad_token_id=2)
    theirs = str(tokenizer.decode(found[0].tolist()))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.run(["sample", str(folder), PROMPT, "--tokens", str(count), "--temperature", "0"])
    ours = printed.getvalue().strip()
    findings.say(f"{what}: it goes on", f"{ours!r}", f"as transformers: {theirs!r}, with {ANSWER}",
                 ours == theirs.strip() and ANSWER in ours)


if __name__ == "__main__":
    sys.exit(main())
