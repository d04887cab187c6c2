"""A backend is a row of a table and a module of its name that states what it can do; nobody asks its name."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holmes_hpc.cluster.nccl import hardware_queues
from holmes_hpc.comm import backends, gloo, nccl
from holmes_hpc.comm.backends import Abilities, RankNode, abilities_of, available_backend, open_backend
from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.point_to_point import Transfers
from holmes_hpc.config.compose import compose
from holmes_hpc.config.help import help_text
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.node.backend import check_environment, prepare_environment
from holmes_hpc.resources import folder
from holmes_hpc.values import Group
from holmes_hpc.values.backend_kinds import BACKEND_KINDS, BackendKind, preferred_backends
from tests.forked import run_ranks
from tests.runs_for_tests import ROOT
from tests.tiny_plans import tiny_plan


@pytest.mark.parametrize("kind", BACKEND_KINDS.values(), ids=lambda kind: kind.name)
def test_every_backend_has_its_module_and_help(kind: BackendKind) -> None:
    module = importlib.import_module(f"holmes_hpc.comm.{kind.name}")
    assert isinstance(module.ABILITIES, Abilities) and callable(module.open_backend)
    assert (module.ABILITIES.device == "cpu") == (not kind.needs_gpus)
    assert module.is_available() in (True, False)
    assert f"{kind.name:<12} {kind.help}" in help_text("plan", "", folder("conf"))
    assert compose(["+cluster=mixed", f"launch.backend={kind.name}"]).launch.backend == kind.name
    check_environment(kind, {})


def test_the_automatic_choice_looks_at_gpus_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [kind.name for kind in preferred_backends()] == ["nccl", "gloo"]
    monkeypatch.setattr(nccl, "is_available", lambda: True)
    assert available_backend() == "nccl"
    monkeypatch.setattr(nccl, "is_available", lambda: False)
    assert available_backend() == "gloo"


def test_only_a_backend_that_has_variables_sets_and_refuses_some() -> None:
    node: Any = types.SimpleNamespace(hca="mlx5_0", gid_index=None, interface=None)
    told = {"NCCL_NET": "Socket"}
    prepare_environment(BACKEND_KINDS["gloo"], node, told)
    assert told == {"NCCL_NET": "Socket"}
    with pytest.raises(ConfigurationError, match="NCCL_NET=Socket is set"):
        prepare_environment(BACKEND_KINDS["nccl"], node, told)
    prepare_environment(BACKEND_KINDS["nccl"], node, told := {})
    assert told == {"NCCL_IB_HCA": "=mlx5_0", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    prepare_environment(BACKEND_KINDS["nccl"], node, told := {"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert told["CUDA_DEVICE_MAX_CONNECTIONS"] == "8", "who sets it is taken at his word"
    assert [hardware_queues(each) for each in (told, {}, {"CUDA_DEVICE_MAX_CONNECTIONS": " 16"})] == [8, 8, 16]


def test_what_the_cluster_file_says_of_a_node_goes_before_the_environment() -> None:
    node: Any = types.SimpleNamespace(hca="mlx5_0", gid_index=None, interface=None)
    told = {"NCCL_IB_HCA": "mlx5_9", "PATH": "/bin"}
    prepare_environment(BACKEND_KINDS["nccl"], node, told, ["ib", "roce"])
    assert told == {"NCCL_IB_HCA": "=mlx5_0", "PATH": "/bin", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    with pytest.raises(ConfigurationError, match="NCCL_SOCKET_IFNAME=ib0 is set"):
        prepare_environment(BACKEND_KINDS["nccl"], node, {"NCCL_SOCKET_IFNAME": "ib0"}, ["ib", "roce"])


def shiny() -> types.ModuleType:
    """Return the module of a backend that came later: gloo's groups without tags, for two networks alone."""
    module = types.ModuleType("holmes_hpc.comm.shiny")
    abilities = dataclasses.replace(gloo.ABILITIES, has_tags=False, networks=("local", "ethernet"))

    class ShinyBackend(gloo.GlooBackend):
        name = "shiny"

    ShinyBackend.abilities = abilities
    vars(module).update(ABILITIES=gloo.ABILITIES, is_available=lambda: False,
                        open_backend=lambda node: ShinyBackend(node.networks, node.gloo_threads))
    return module


CHAIN = tiny_plan(2, [Group("pipeline", (0, 1), "ethernet")])
ON_IB = tiny_plan(2, [Group("pipeline", (0, 1), "ib")])


def over_a_new_backend(given: Any) -> list[Any]:
    BACKEND_KINDS["shiny"] = BackendKind("shiny", "Shiny", "a test's")  # type: ignore[index]
    sys.modules["holmes_hpc.comm.shiny"] = shiny()
    networks = NodeNetworks.local()
    communicator = connect(given.store, given.rank, 2, CHAIN, networks, backend="shiny")
    edge = communicator.edge(0, 1)
    back = communicator.towards(edge, 1, 0)
    transfers, other = Transfers(communicator), 1 - given.rank
    transfers.post_receive(edge, other, 0, (1,))
    transfers.send(torch.tensor([float(given.rank)]), edge, other, 0)
    received = transfers.receive(edge, other, 0).item()
    transfers.finish()
    refused = ""
    try:
        backend = open_backend("shiny", RankNode(networks, None, 1))
        from holmes_hpc.comm.groups import _check_networks

        _check_networks(ON_IB, backend)
    except ConfigurationError as error:
        refused = str(error)
    return [communicator.backend.name, back is not edge, received, refused, abilities_of(edge) == gloo.ABILITIES]


def test_a_new_backend_is_a_row_and_a_module() -> None:
    for rank, (name, two_groups, received, refused, known) in enumerate(run_ranks(2, over_a_new_backend)):
        assert (name, two_groups, received, known) == ("shiny", True, 1 - rank, True)
        assert refused.startswith("launch.backend=shiny: it knows the networks local, ethernet, and the plan has "
                                  "groups on ib")
    assert "shiny" not in BACKEND_KINDS


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="launch.backend=token_ring: unknown; valid: gloo, nccl"):
        open_backend("token_ring", RankNode(NodeNetworks.local(), None, 1))


def asked_names(path: Path) -> list[str]:
    """Return the comparisons of a module in which the name of a backend stands, and its tests for a backend's class."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
        names = {each.id.upper() for each in ast.walk(node) if isinstance(each, ast.Name)}
        if isinstance(node, ast.Compare) and (words & BACKEND_KINDS.keys() or {"NCCL", "GLOO", "BACKEND_NAME"} & names):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and any("Backend" in ast.unparse(each)
                                                                                         for each in node.args[1:]):
            found.append(ast.unparse(node))
    return found


def test_nobody_asks_the_name_of_a_backend(tmp_path: Path) -> None:
    found = {str(path): asked_names(path) for room in ("launch", "engine", "comm")
             for path in sorted((ROOT / "holmes_hpc" / room).rglob("*.py"))}
    # The control group is gloo's whatever the others use, so a second gloo is not opened.
    allowed = {str(ROOT / "holmes_hpc" / "comm" / "groups.py"): ["backend == gloo.name"]}
    assert {path: words for path, words in found.items() if words} == allowed
    (tmp_path / "wrong.py").write_text("if backend == 'nccl' or isinstance(maker, GlooBackend): pass\n")
    assert len(asked_names(tmp_path / "wrong.py")) == 2


def test_every_group_of_torch_has_abilities() -> None:
    assert backends._by_torch_name().keys() == {gloo.BACKEND_NAME, "nccl"}
    assert nccl.ABILITIES.torch_name == dist.Backend.NCCL
