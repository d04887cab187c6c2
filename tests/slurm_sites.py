"""What tests of runs on a real Slurm share: tiny cluster files and models, and ranks without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import runs_for_tests
from tests.runs_for_tests import ROOT
from tests.slurm_cluster import SlurmCluster

TINY = [
    "train.steps=2", "train.validate_every=0", "train.validation_samples=4", "train.global_batch_size=8",
    "parallel.micro_batch_size=2", "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2",
    "model.sequence_length=32", "model.tied_embeddings=false",
]
HOLDING = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}

CLUSTERS = {
    "pair": "ib: {nodes: 1, gpus_per_node: 1, gpu: cpu, nic: hdr200}\n"
            "  roce: {nodes: 1, gpus_per_node: 1, gpu: cpu, nic: roce200}",
    "one": "ib: {nodes: 1, gpus_per_node: 1, gpu: cpu, nic: hdr200}",
    "two": "ib: {nodes: 2, gpus_per_node: 1, gpu: cpu, nic: hdr200}",
    "counted": "a: {partition: mixed, constraint: roce, nodes: 1, gpus_per_node: 1, gpu: cpu, nic: roce200}\n"
               "  b: {partition: mixed, constraint: 'ib&hdr200', nodes: 1, gpus_per_node: 1, gpu: cpu, nic: hdr200}",
}

_FAKE_RANKS = """\
import sys, time
from pathlib import Path
from holmes_hpc.runs import RunFolder, write_result
folder = RunFolder(Path(sys.argv[1]))
for step in (1, 2):
    folder.append_metrics({"step": step, "loss": 3.0 / step, "tokens_per_second": 1000.0, "step_seconds": 0.1,
                           "mfu": 0.1})
    while not Path(__file__).with_name("go").exists() or (folder.path / "hold").exists():
        time.sleep(0.05)
write_result(folder, "completed", error=None, emulated=False)
"""


def site(slurm: SlurmCluster) -> str:
    """Write the cluster files into the shared folder and return the override that lets Hydra find them."""
    folder = slurm.shared / "site" / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    for name, partitions in CLUSTERS.items():
        (folder / f"{name}.yaml").write_text(f"name: {name}\npartitions:\n  {partitions}\n")
    return f"hydra.searchpath=[{folder.parent}]"


def without_torch(slurm: SlurmCluster) -> str:
    """Write a template whose step is a stand-in for the ranks, quick since it has no torch; return its override.

    Its runs go on after their first step when `let_go` is called, and there is no file `hold` in their folder. The rest
    of the script is ours.
    """
    folder = slurm.shared / "templates"
    folder.mkdir(exist_ok=True)
    (folder / "ranks.py").write_text(_FAKE_RANKS)
    script = (ROOT / "sbatch_templates" / "job.sh.j2").read_text()
    stand_in = f'srun true && {{{{ python }}}} {folder}/ranks.py "$run"'
    assert script.count("{{ step }}") == 1
    (folder / "job.sh.j2").write_text(script.replace("{{ step }}", stand_in))
    return f"launch.templates={folder}"


def let_go(slurm: SlurmCluster) -> None:
    """Let the runs of `without_torch` go on to their end."""
    (slurm.shared / "templates" / "go").touch()


def command(verb: str, arguments: list[str]) -> list[str]:
    """Return the words of a verb."""
    return runs_for_tests.command(verb, arguments)


def holmes(slurm: SlurmCluster, verb: str, arguments: list[str], **options: Any) -> Any:
    """Run a verb on the head node, in the folder that all nodes share."""
    environment = {**HOLDING, **options.pop("environment", {})}
    return slurm.run(command(verb, arguments), environment=environment, timeout_seconds=150, **options)


def result(folder: Path) -> dict[str, Any]:
    """Return result.json of a run."""
    return json.loads((folder / "result.json").read_text())


def nodes(folder: Path) -> list[str]:
    """Return the node of each rank of a run's plan."""
    return [place["node"] for place in json.loads((folder / "plan.json").read_text())["ranks"]]
