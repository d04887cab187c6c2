"""Links measured by a job of a real Slurm, and plans that use what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.cluster import Machine, read_cluster
from holmes_hpc.config.compose import compose
from tests.runs_for_tests import newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_sites import TINY, holmes

pytestmark = pytest.mark.slurm

RATES_GBPS = {("ethernet", "ib", "roce"): 0.2, ("ib", "ib"): 2.0}
THREE = ["+cluster=mixed", "cluster.partitions.ib.nodes=2", "cluster.partitions.roce.nodes=1",
         *(f"cluster.partitions.{label}.gpus_per_node=1" for label in ("ib", "roce"))]


def links(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the measured links by network and fabrics."""
    written = json.loads(path.read_text())
    assert (written["emulated"], written["backend"], written["cluster"]) == (False, "gloo", "mixed")
    return {(link["network"], *sorted(set(link["between"]))): link for link in written["links"]}


def probed(slurm: SlurmCluster) -> Path:
    """Probe, and return the file that is kept."""
    done = holmes(slurm, "probe", THREE)
    kept = slurm.shared / ".config" / "holmes_hpc" / "measured" / "mixed.json"
    assert f"cluster.measured={kept}" in done.stdout
    return kept


def test_a_probe_writes_what_plans_use(make_slurm: MakeSlurm) -> None:
    kept = probed(make_slurm(roce_nodes=1))
    measured = links(kept)
    assert measured.keys() == RATES_GBPS.keys()
    for key, rate in RATES_GBPS.items():  # busy cores make a link slower than it is shaped, never faster
        assert 0.2 * rate < measured[key]["bandwidth_gbps"] < 1.05 * rate

    config = compose([*THREE, f"cluster.measured={kept}"])
    machine = Machine.described(read_cluster(config.cluster))
    ib, _, roce = machine.cluster.nodes
    assert machine.link("ethernet", ib, roce).bandwidth_gbps == measured["ethernet", "ib", "roce"]["bandwidth_gbps"]


@pytest.mark.long
def test_a_run_that_probes_writes_what_plans_use(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(roce_nodes=1)
    trained = holmes(slurm, "train", [*THREE, *TINY, "train.steps=1", "parallel=holmes", "launch.probe=true",
                                      f"cluster.measured={probed(slurm)}"])
    folder = newest_run(slurm.shared)
    assert folder is not None, trained.stderr
    assert json.loads((folder / "result.json").read_text())["status"] == "completed"
    assert links(folder / "probe.json").keys() == RATES_GBPS.keys()
    assert f"cluster.measured={folder / 'probe.json'}" in trained.stderr
