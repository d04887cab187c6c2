"""Where ranks do not meet, whoever waited says for whom, where, how long, and which setting makes it longer."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.nccl import may_share_gpus
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError, NetworkError
from holmes_hpc.foreign import read_json
from holmes_hpc.launch.node.backend import backend_here
from holmes_hpc.launch.rank.rendezvous import open_store, secret_path
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.planner import bind, plan
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.private import make_secret
from holmes_hpc.values.backend_kinds import GLOO, NCCL

WORLD = ["+cluster=roce", "model.tied_embeddings=false", "cluster.partitions.roce.nodes=2",
         "cluster.partitions.roce.gpus_per_node=1"]
SECRET = bytes(range(32))


def settings(folder: Path, rank: int, host: str = "127.0.0.1") -> RankSettings:
    run = RunFolder.create(folder, "run")
    made = bind(plan(compose(WORLD), mode="local"), {"roce/0": "n1", "roce/1": "n2"})
    parts: dict[str, Any] = {"rank": rank, "node": f"n{rank + 1}", "plan": made, "folder": run, "host": host,
                             "rendezvous_path": run.rendezvous_path, "secret": SECRET}
    return cast(RankSettings, SimpleNamespace(**parts))


def test_a_rank_that_finds_no_address_says_where_it_looked(tmp_path: Path) -> None:
    late = settings(tmp_path, 1)
    with pytest.raises(NetworkError) as caught:
        open_store(late, 0.05)
    assert "rank 1 on node n2 waited 0.05 s for rank 0 on node n1" in str(caught.value)
    assert str(late.rendezvous_path) in str(caught.value)
    assert "raise train.start_timeout_seconds (now 0.05)" in str(caught.value)


def test_a_rank_that_cannot_connect_names_the_address_and_the_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        lost = settings(tmp_path, 1)
        lost.folder.write_json(lost.rendezvous_path, {"host": "127.0.0.1", "port": port})
        with pytest.raises(NetworkError) as caught:
            open_store(lost, 0.01)
    words = str(caught.value)
    assert f"rank 1 on node n2 did not reach rank 0 on node n1 at 127.0.0.1, port {port} within 0.01 s" in words
    assert "train.start_timeout_seconds (now 0.01)" in words and "\n" not in words


def test_rank_0_whose_own_address_leads_nowhere_says_so(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="rank 0 on node n1 did not reach its own store at no.host.invalid within"):
        open_store(settings(tmp_path, 0, host="no.host.invalid"), 0.01)


def test_ranks_that_meet_share_what_they_write(tmp_path: Path) -> None:
    first, second = settings(tmp_path, 0), settings(tmp_path, 1)
    store = open_store(first, 10.0)
    second.folder.write_json(second.rendezvous_path, read_json(first.rendezvous_path))
    store.set("word", "here")
    other = open_store(second, 10.0)
    assert other.get("word") == b"here"
    other.close()
    store.close()


def without_secret(each: RankSettings) -> RankSettings:
    return cast(RankSettings, SimpleNamespace(**{**vars(each), "secret": None}))


def test_the_secret_of_a_job_is_a_file_of_its_user_and_stands_nowhere_else(tmp_path: Path) -> None:
    first = without_secret(settings(tmp_path, 0))
    store = open_store(first, 10.0)
    path = secret_path(first.rendezvous_path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(first.rendezvous_path.stat().st_mode) == 0o600
    secret = path.read_bytes()
    for public in (first.rendezvous_path, Path("/proc/self/cmdline"), Path("/proc/self/environ")):
        assert secret not in public.read_bytes() and secret.hex().encode() not in public.read_bytes()
    assert not RankSettings.__dataclass_fields__["secret"].repr, "nor where settings are printed"
    store.close()


def test_a_rank_that_others_could_have_told_the_secret_or_that_has_another_one_does_not_meet(tmp_path: Path) -> None:
    first = without_secret(settings(tmp_path, 0))
    store = open_store(first, 10.0)
    second = cast(RankSettings, SimpleNamespace(**{**vars(first), "rank": 1, "node": "n2"}))
    path = secret_path(first.rendezvous_path)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="not its user's alone.*set run.folder"):
        open_store(second, 10.0)
    make_secret(path)
    with pytest.raises(NetworkError, match="rank 1 on node n2 was not let in at 127.0.0.1.*start the run again"):
        open_store(second, 10.0)
    path.unlink()
    with pytest.raises(NetworkError, match="cannot read the secret.*file system that all nodes share"):
        open_store(second, 10.0)
    first.rendezvous_path.write_text("[1]")
    with pytest.raises(NetworkError, match="finds no address of rank 0"):
        open_store(second, 10.0)
    store.close()


@pytest.mark.parametrize(("mode", "nodes", "gpus", "why"), [
    ("emulated", 2, 8, "compute on this machine's CPU"),
    ("local", 1, 0, "0 GPUs, and the cluster 1 rank on 1 node"),
    ("local", 2, 2, "2 GPUs, and the cluster 2 ranks on 2 nodes"),
    ("local", 1, 1, None),
])
def test_nccl_is_refused_or_not_chosen_where_it_cannot_work(mode: str, nodes: int, gpus: int, why: str | None) -> None:
    cluster = read_cluster(compose([*WORLD[:2], f"cluster.partitions.roce.nodes={nodes}",
                                                      WORLD[3]]).cluster)
    assert backend_here("gloo", mode, cluster, gpus) == GLOO
    assert backend_here("auto", mode, cluster, gpus) == (None if why is None else GLOO)
    if why is None:
        assert backend_here("nccl", mode, cluster, gpus) == NCCL
        return
    with pytest.raises(ConfigurationError, match=f"launch.backend=nccl.*{why}.*launch.backend=gloo or auto"):
        backend_here("nccl", mode, cluster, gpus)


def test_nccl_may_be_told_that_ranks_share_a_gpu() -> None:
    cluster = read_cluster(compose(["+cluster=laptop"]).cluster)
    assert backend_here("nccl", "local", cluster, 1, shared=True) == NCCL
    for gpus, shared in ((0, True), (1, False)):
        with pytest.raises(ConfigurationError, match="a GPU for each rank"):
            backend_here("nccl", "local", cluster, gpus, shared=shared)
    assert [may_share_gpus({"NCCL_MULTI_RANK_GPU_ENABLE": text}) for text in ("1", "0", "")] == [True, False, False]
    assert not may_share_gpus({})


def test_a_local_run_of_ranks_described_as_cpus_leaves_the_gpus_alone() -> None:
    cluster = read_cluster(compose(["+cluster=laptop"]).cluster)
    assert backend_here("auto", "local", cluster, 8) == GLOO
    assert backend_here("nccl", "local", cluster, 8) == NCCL
