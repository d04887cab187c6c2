"""The options and the environment that NCCL would be given, against a table written out by hand."""

import inspect
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from holmes_hpc.cluster.cluster import Node
from holmes_hpc.comm import nccl
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.errors import ConfigurationError


@dataclass
class FakeOptions:
    """Stands for ProcessGroupNCCL.Options, which a CPU build of torch lacks."""

    config: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(net_name="not set", split_share="not set")
    )


FACTORIES = [FakeOptions, *[nccl.new_options] * torch.distributed.is_nccl_available()]
"""The real class too, where torch has it: the stand-in takes any attribute."""
NEW_GROUP_TAKES = set(inspect.signature(torch.distributed.new_group).parameters)


def node(label, nic, **settings):
    return Node(f"{label}/0", label, 0, label, "a100-80g", 8, nic, 1, 25.0, **settings)


IB = node("ib", "hdr200", hca="mlx5_0,mlx5_1", interface="bond0")
ROCE = node("roce", "roce200", hca="mlx5_1", gid_index=3, interface="eno1")
PLAIN = node("plain", "eth100", interface="eth2")
BARE = node("aws", "efa400")

IB_ENVIRONMENT = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "=bond0"}
ROCE_ENVIRONMENT = {"NCCL_IB_HCA": "=mlx5_1", "NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "=eno1"}
PLAIN_ENVIRONMENT = {"NCCL_SOCKET_IFNAME": "=eth2"}

# group's network, node, net_name in the group's options, environment of the node
TABLE = [
    ("ib", IB, "IB", IB_ENVIRONMENT),
    ("ethernet", IB, "Socket", IB_ENVIRONMENT),
    ("local", IB, "not set", IB_ENVIRONMENT),
    ("roce", ROCE, "IB", ROCE_ENVIRONMENT),
    ("ethernet", ROCE, "Socket", ROCE_ENVIRONMENT),
    ("local", ROCE, "not set", ROCE_ENVIRONMENT),
    ("ethernet", PLAIN, "Socket", PLAIN_ENVIRONMENT),
    ("local", PLAIN, "not set", PLAIN_ENVIRONMENT),
    ("efa", BARE, "not set", {}),
    ("slingshot", BARE, "not set", {}),
    ("opa", BARE, "not set", {}),
]


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize(("network", "on", "net_name", "environment"), TABLE)
def test_options_and_environment(network, on, net_name, environment, factory):
    options = nccl.group_options(network, factory)
    assert options.config.net_name == (factory().config.net_name if net_name == "not set" else net_name)
    assert options.config.split_share == 0
    assert NodeNetworks.described(on).nccl_environment == environment


def test_every_group_gets_fresh_options():
    assert nccl.group_options("ib", FakeOptions) is not nccl.group_options("ib", FakeOptions)


def test_unknown_network_is_refused():
    with pytest.raises(ConfigurationError, match="'token_ring'.*roce"):
        nccl.group_options("token_ring", FakeOptions)


def test_gid_index_zero_is_a_setting():
    assert nccl.node_environment(None, 0, None) == {"NCCL_IB_GID_INDEX": "0"}


def test_exact_marker_is_not_doubled():
    assert nccl.node_environment("=mlx5_0", None, None) == {"NCCL_IB_HCA": "=mlx5_0"}


@pytest.mark.parametrize("value", ["IB", "Socket", ""])
def test_network_for_all_groups_is_refused(value):
    with pytest.raises(ConfigurationError, match="NCCL_NET=.*override.*unset"):
        nccl.check_environment({"NCCL_NET": value, "PATH": "/bin"})


def test_disabled_infiniband_is_refused():
    with pytest.raises(ConfigurationError, match="NCCL_IB_DISABLE=1"):
        nccl.check_environment({"NCCL_IB_DISABLE": "1"})


def test_harmless_environment_is_accepted_and_left_alone():
    """Only what chooses one network for all groups is refused: the same variables with one that does are."""
    harmless = {"NCCL_DEBUG": "INFO", "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_IB_DISABLE": "0"}
    given = dict(harmless)
    assert nccl.check_environment(given) is None
    assert given == harmless
    with pytest.raises(ConfigurationError, match="NCCL_NET=Socket"):
        nccl.check_environment({**harmless, "NCCL_NET": "Socket"})


@pytest.mark.parametrize(("variable", "key"), [
    ("NCCL_IB_HCA", "hca"), ("NCCL_SOCKET_IFNAME", "interface"), ("NCCL_IB_GID_INDEX", "gid_index"),
    ("NCCL_OOB_NET_IFNAME", "interface")])
def test_what_names_a_nodes_adapters_for_all_nodes_is_refused_where_they_are_unlike(variable, key):
    with pytest.raises(ConfigurationError, match=f"{variable}=x is set .*ib, roce.*cluster.partitions.<label>.{key}$"):
        nccl.check_environment({variable: "x"}, ["ib", "roce"])
    nccl.check_environment({variable: "x"}, ["ib"])


def test_one_meeting_point_for_all_groups_is_refused():
    with pytest.raises(ConfigurationError, match="NCCL_COMM_ID=a:1 is set.*unset it"):
        nccl.check_environment({"NCCL_COMM_ID": "a:1"})


@pytest.mark.parametrize("count", ["1", "2", "3"])
def test_too_few_hardware_queues_are_refused(count):
    with pytest.raises(ConfigurationError, match=f"CUDA_DEVICE_MAX_CONNECTIONS={count} is set.*unset it.*4 to 32"):
        nccl.check_environment({"CUDA_DEVICE_MAX_CONNECTIONS": count})
    for harmless in ("4", "8", "32", ""):
        nccl.check_environment({"CUDA_DEVICE_MAX_CONNECTIONS": harmless})


def test_one_order_for_all_groups_is_refused():
    with pytest.raises(ConfigurationError, match="NCCL_LAUNCH_ORDER_IMPLICIT=1 is set.*unset it"):
        nccl.check_environment({"NCCL_LAUNCH_ORDER_IMPLICIT": "1"})
    nccl.check_environment({"NCCL_LAUNCH_ORDER_IMPLICIT": "0"})


def test_torch_without_nccl_is_named(monkeypatch):
    monkeypatch.setattr(nccl.dist, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigurationError, match="without NCCL.*launch.backend=gloo"):
        nccl.new_options()


def test_a35_groups_are_bound_to_the_gpu_and_given_their_network(monkeypatch):
    calls = []
    monkeypatch.setattr(nccl.dist, "get_rank", lambda: 2)
    monkeypatch.setattr(nccl.dist, "new_group", lambda ranks, **given: calls.append((ranks, given)) or "made")
    gpu = torch.device("cuda", 1)
    backend = nccl.NcclBackend(NodeNetworks.described(ROCE), gpu, FakeOptions)
    assert backend.new_group((0, 2), "data", "roce", timedelta(seconds=9)) == "made"
    assert backend.new_group((3, 1), "pipeline", "ethernet", timedelta(seconds=9)) is None
    (first, first_given), (second, second_given) = calls
    assert {*first_given, *second_given} <= NEW_GROUP_TAKES
    assert (first, second) == ([0, 2], [3, 1])
    assert first_given["pg_options"].config.net_name == "IB"
    assert second_given["pg_options"].config.net_name == "Socket"
    assert second_given["pg_options"].is_high_priority_stream
    assert second_given["pg_options"].config.max_ctas == nccl.EDGE_CTAS
    assert not getattr(first_given["pg_options"], "is_high_priority_stream", False)
    for given in (first_given, second_given):
        assert given["pg_options"]._timeout == given["timeout"]
        assert given["backend"] == "nccl"
        assert given["device_id"] == gpu
        assert given["timeout"] == timedelta(seconds=9)
    assert "sort_ranks" not in first_given
    assert second_given["sort_ranks"] is False
    assert backend.describe("roce") == (
        "net_name IB, NCCL_IB_HCA==mlx5_1, NCCL_IB_GID_INDEX=3, NCCL_SOCKET_IFNAME==eno1"
    )
