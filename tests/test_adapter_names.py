"""Names of adapters, interfaces and GPUs: no patterns, and questions about slices and nodes of several types."""

from __future__ import annotations

import functools

import pytest
from omegaconf import DictConfig

from holmes_hpc.cluster.nccl import node_environment
from holmes_hpc.config.check import check
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.submit.components import job_components, job_shape
from holmes_hpc.submit.fit import check_fit, is_slice
from holmes_hpc.submit.inventory import Inventory, read_saved
from holmes_hpc.submit.site import describe_site, find_labels

IB = "cluster.partitions.ib"
composed = functools.cache(lambda: compose(["+cluster=mixed"]))


def named(key: str, value: str) -> DictConfig:
    """Return the configuration with a name in the label `ib`, checked as after composing."""
    config = composed().copy()
    config.cluster.partitions.ib[key] = value
    check(config)
    return config


@pytest.mark.parametrize(("key", "value", "why"), [
    ("hca", "^mlx5_3", "to leave out"), ("hca", "^=mlx5_3", "to leave out"), ("hca", "mlx5_0,^mlx5_3", "to leave out"),
    ("hca", "mlx5", "begins names"), ("hca", "mlx5_", "begins names"), ("hca", "=mlx5", "begins names"),
    ("hca", "mlx", "begins names"), ("hca", "mlx5_bond_", "begins names"), ("hca", "ib", "begins names"),
    ("hca", "mlx5_0,", "no name"), ("hca", ",", "no name"), ("hca", "mlx5_[0-3]", "no name"), ("hca", "", "no name"),
    ("hca", "mlx5_0 mlx5_1", "no name"), ("hca", "mlx5_0:", "no name"), ("hca", "mlx5_*", "no name"),
    ("hca", "mlx5_0,mlx5_0", "twice"),
    ("interface", "eth0,eth1", "no list"), ("interface", "^docker", "no list"), ("interface", "^lo,docker0", "no list"),
    ("interface", "eth", "begins names"), ("interface", "=eth0", "no name"), ("interface", "eth*", "no name"),
    ("interface", "a_name_of_sixteen", "no name"), ("interface", "eth 0", "no name"), ("interface", "", "no name"),
    ("interface", "lo", "itself alone"), ("fabric_interface", "lo", "itself alone"),
    ("interface", "10.0.0.1", "an address"), ("fabric_interface", "192.168.10.1", "an address"),
    ("fabric_interface", "ib", "begins names"), ("fabric_interface", "ib0,ib1", "no list"),
])
def test_patterns_of_nccl_are_refused_at_composing(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        named(key, value)
    message = str(refused.value)
    assert message.startswith(f"{IB}.{key}={value}: ") and why in message
    assert ("/sys/class/infiniband" if key == "hca" else "ip -br address") in message


@pytest.mark.parametrize(("key", "value", "told"), [
    ("hca", "mlx5_0,mlx5_1", "=mlx5_0,mlx5_1"), ("hca", "=mlx5_0,mlx5_1", "=mlx5_0,mlx5_1"),
    ("hca", "mlx5_0, mlx5_10", "=mlx5_0,mlx5_10"), ("hca", "mlx5_0:1,mlx5_bond_0", "=mlx5_0:1,mlx5_bond_0"),
    ("hca", "rocep1s0f0", "=rocep1s0f0"), ("hca", "bnxt_re0", "=bnxt_re0"), ("hca", "hfi1_0", "=hfi1_0"),
    ("hca", "ibp23s0", "=ibp23s0"), ("interface", "bond0", "=bond0"), ("interface", "enp1s0f0np0", "=enp1s0f0np0"),
    ("interface", "lan", "=lan"), ("interface", "eth0:1", "=eth0:1"),
])
def test_exact_names_reach_nccl_as_such(key: str, value: str, told: str) -> None:
    part = named(key, value).cluster.partitions.ib
    assert list(node_environment(part.hca, None, part.interface).values()) == [told]


def nodes(gres: str, count: int = 2, name: str = "g") -> str:
    return f"NodeName={name}[1-{count}] Gres={gres} Feature=ib_ndr\n"


def labelled(*lines: str) -> dict[str, tuple[str | int, int, str | None, str]]:
    """Return of each label that `holmes site` finds: GPU, how many, resource and remark."""
    names = ",".join(line.split()[0].partition("=")[2] for line in lines)
    told = read_saved("".join(lines) + f"PartitionName=gpu Nodes={names}\n")
    return {label.name: (label.gpu.value, label.gpus_per_node, label.gres, label.remark or "") for label in
            find_labels(told)}


@pytest.mark.parametrize(("gres", "gpu", "count", "asked", "remark"), [
    ("gpu:nvidia_h200_nvl_4g.71gb:4,gpu:nvidia_h200_nvl_3g.71gb:4", "h200", 4, "gpu:nvidia_h200_nvl_4g.71gb:4",
     "slice"),
    ("gpu:a100_1g.5gb:14,gpu:a100:2", "a100-40g", 2, "gpu:a100:2", "a100_1g.5gb"),
    ("gpu:a100_3g.20gb:7", "a100-40g", 7, "gpu:a100_3g.20gb:7", "slice"),
    ("gpu:1g.10gb:7", "a100-80g", 7, "gpu:1g.10gb:7", "slice"),
    ("gpu:v100:4,gpu:t4:2", "v100", 4, "gpu:v100:4", "t4"), ("gpu:t4:2,gpu:v100:4", "v100", 4, "gpu:v100:4", "t4"),
    ("gpu:v100:4(S:0),gpu:v100:4(S:1)", "v100", 8, None, ""), ("gpu:v100:8,nic:ndr400:4", "v100", 8, None, ""),
    ("gpu:v100:8,shard:64,mps:800", "v100", 8, None, ""),
    ("gpu:A100-SXM4-80GB:8", "a100-80g", 8, None, ""), ("gpu:a100_80gb_pcie:2", "a100-80g", 2, None, ""),
])
def test_one_types_own_count_and_a_question_about_slices(gres: str, gpu: str, count: int, asked: str | None,
                                                        remark: str) -> None:
    (found,) = labelled(nodes(gres)).values()
    assert found[:3] == (gpu, count, asked)
    assert (remark in found[3]) if remark else not found[3]
    if remark:
        assert found[3].startswith("? ")
    text = describe_site(read_saved(nodes(gres) + "PartitionName=gpu Nodes=g[1-2]\n"), "ours")
    assert f"    gpus_per_node: {count}" in text and ("# ?" in text.split("ib")[1] or not remark)


def test_a_slices_speed_is_a_guess() -> None:
    (label,) = find_labels(read_saved(nodes("gpu:h200_3g.71gb:4") + "PartitionName=gpu Nodes=g[1-2]\n"))
    assert label.gpu.value == "h200" and "slice" in str(label.gpu.doubt)


@pytest.mark.parametrize(("name", "slice_of_one"), [
    ("nvidia_h200_nvl_4g.71gb", True), ("1g.5gb", True), ("a100_1g.10gb.me", True), ("3g.39gb", True), ("1g5gb", True),
    ("A100_7G.80GB", True), ("a100", False), ("tesla_v100-pcie-32gb", False), ("rtx8000", False), (None, False),
    ("gh200_480gb", False), ("a100-sxm4-40gb", False), ("l4g", False),
])
def test_slices_are_known_by_their_names(name: str | None, slice_of_one: bool) -> None:
    assert is_slice(name) is slice_of_one


def facts(gres: str, *overrides: str) -> list[str]:
    told: Inventory = read_saved(nodes(gres) + "PartitionName=gpu Nodes=g[1-2]\n")
    config = compose(["+cluster=ib", f"{IB}.partition=gpu", f"{IB}.nic=ndr400", f"{IB}.nodes=2", *overrides])
    return [str(fact) for fact in check_fit(config.cluster, told) if fact.fatal]


def test_a_label_that_counts_two_types_together_does_not_fit() -> None:
    mixed = "gpu:v100:4,gpu:t4:4"
    assert "0 have so many (the most: 4)" in facts(mixed, f"{IB}.gpus_per_node=8")[0]
    assert facts(mixed, f"{IB}.gpus_per_node=4") == []
    two = "gpu:v100:4,gpu:t4:2"
    assert facts(two, f"{IB}.gpus_per_node=2", f"{IB}.gres=gpu:t4:2") == []
    assert facts(two, f"{IB}.gpus_per_node=4", f"{IB}.gres=gpu:t4:4")


def test_an_or_inside_counted_features_is_refused_and_not_chosen() -> None:
    cluster = compose(["+cluster=mixed", f"{IB}.partition=all", "cluster.partitions.roce.partition=all",
                       f"{IB}.constraint=ib|opa", "cluster.partitions.roce.constraint=roce"]).cluster
    assert job_shape(cluster) == "het"
    assert [part.options["constraint"] for part in job_components(cluster, {})] == ["ib|opa", "roce"]
    cluster.shape = "features"
    with pytest.raises(ConfigurationError, match=r"partitions\.ib\.constraint=ib\|opa.*cluster\.shape=het"):
        job_components(cluster, {})
    cluster.partitions.ib.constraint = "ib&hdr200"
    assert job_components(cluster, {})[0].options["constraint"] == "[(ib&hdr200)*2&roce*2]"
