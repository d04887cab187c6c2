import pytest

from holmes_hpc.cluster import GPUS, NICS, gpu, nic
from holmes_hpc.cluster.gpus import PRECISIONS
from holmes_hpc.cluster.nics import (
    DEFAULT_INTERFACES,
    NicFeature,
    check_features,
    nic_of_feature,
    nics_of_features,
)
from holmes_hpc.errors import ConfigurationError

# Dense figures as the vendors print them.
PEAKS = [
    ("a100-80g", "float16", 312),
    ("a100-40g", "tf32", 156),
    ("a100-80g", "float32", 19.5),
    ("h100", "bfloat16", 989.4),
    ("h200", "float16", 989.4),
    ("v100", "float16", 125),
    ("t4", "float16", 65),
    ("3080ti", "float16", 68.2),
    ("3090", "bfloat16", 71.2),
    ("4090", "float16", 165.2),
    ("l40s", "float16", 362),
    ("a10", "bfloat16", 125),
    ("a6000", "float16", 154.8),
    ("b200", "bfloat16", 2250),
]


@pytest.mark.parametrize(("name", "precision", "tflops"), PEAKS)
def test_peaks(name, precision, tflops):
    assert gpu(name).peak_tflops[precision] == tflops


@pytest.mark.parametrize(
    ("name", "gib", "gb_per_second"),
    [
        ("a100-40g", 40, 1555),
        ("a100-80g", 80, 2039),
        ("h100", 80, 3350),
        ("h200", 141, 4800),
        ("v100", 32, 900),
        ("v100-16g", 16, 900),
        ("3080ti", 12, 912),
        ("mi250x", 64, 1638),
    ],
)
def test_memory(name, gib, gb_per_second):
    assert (gpu(name).memory_gib, gpu(name).memory_bandwidth_gb_per_second) == (gib, gb_per_second)


def test_every_gpu_is_plausible():
    for name, kind in GPUS.items():
        assert kind.name == name
        assert set(kind.peak_tflops) <= set(PRECISIONS)
        assert kind.peak_tflops["float32"] < kind.peak_tflops["float16"]
        assert kind.intra_node_gb_per_second < kind.memory_bandwidth_gb_per_second


def test_bfloat16_came_with_ampere():
    assert {name for name, kind in GPUS.items() if "bfloat16" not in kind.peak_tflops} == {
        "v100",
        "v100-16g",
        "p100",
        "t4",
        "rtx8000",
    }


def test_the_cpu_is_measured():
    kind = gpu("cpu")
    assert 0.001 < kind.peak_tflops["float32"] < 1
    assert 0.1 < kind.memory_gib < 100_000
    assert gpu("cpu").peak_tflops == kind.peak_tflops


@pytest.mark.parametrize(
    ("name", "near"),
    [("a100-80gb", "a100-80g"), ("H100", "h100"), ("rtx3090", "3090"), ("a100-8", "a100-80g")],
)
def test_an_unknown_gpu_is_refused_with_a_near_match(name, near):
    with pytest.raises(ConfigurationError) as caught:
        gpu(name, "cluster.partitions.ib.gpu")
    assert str(caught.value).startswith(
        f"cluster.partitions.ib.gpu: unknown GPU kind {name!r}; did you mean {near}? Valid: a100-40g, "
    )
    assert str(caught.value).endswith(", cpu")


@pytest.mark.parametrize(
    ("name", "family", "gbps", "rdma"),
    [
        ("hdr200", "ib", 200, True),
        ("ndr400", "ib", 400, True),
        ("edr100", "ib", 100, True),
        ("hdr100", "ib", 100, True),
        ("xdr800", "ib", 800, True),
        ("roce25", "roce", 25, True),
        ("roce400", "roce", 400, True),
        ("efa3200", "efa", 3200, True),
        ("slingshot200", "slingshot", 200, True),
        ("opa100", "opa", 100, True),
        ("eth1", "ethernet", 1, False),
        ("eth25", "ethernet", 25, False),
        ("eth100", "ethernet", 100, False),
    ],
)
def test_nics(name, family, gbps, rdma):
    kind = nic(name)
    assert (kind.family, kind.bandwidth_gbps, kind.rdma) == (family, gbps, rdma)


def test_ethernet_answers_latest_and_every_family_has_an_interface():
    slowest = max(kind.latency_us for kind in NICS.values() if kind.rdma)
    assert all(kind.latency_us > slowest for kind in NICS.values() if not kind.rdma)
    assert {kind.family for kind in NICS.values()} == set(DEFAULT_INTERFACES)


def test_an_unknown_nic_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"cluster.nic: unknown NIC kind 'hdr'; did you mean hdr100 or hdr200\?"
    ):
        nic("hdr", "cluster.nic")


@pytest.mark.parametrize(
    ("feature", "family", "kind"),
    [
        ("ib", "ib", None),
        ("IB", "ib", None),
        ("InfiniBand", "ib", None),
        ("IB:HDR", "ib", "hdr200"),
        ("IB:EDR", "ib", "edr100"),
        ("ib_hdr", "ib", "hdr200"),
        ("ib_qdr", "ib", "qdr40"),
        ("EDR", "ib", "edr100"),
        ("hdr200", "ib", "hdr200"),
        ("HDR100", "ib", "hdr100"),
        ("ndr", "ib", "ndr400"),
        ("OPA", "opa", None),
        ("Omni-Path", "opa", None),
        ("opa100", "opa", "opa100"),
        ("roce", "roce", None),
        ("RoCEv2", "roce", None),
        ("roce-100g", "roce", "roce100"),
        ("efa", "efa", None),
        ("efa-c5n", "efa", None),
        ("slingshot", "slingshot", None),
        ("eth", "ethernet", None),
        ("25GbE", "ethernet", "eth25"),
        ("eth_10g", "ethernet", "eth10"),
        ("interconnect:hdr", "ib", "hdr200"),
    ],
)
def test_features_that_name_a_nic(feature, family, kind):
    assert nic_of_feature(feature) == NicFeature(family, kind)


@pytest.mark.parametrize(
    "feature",
    [
        "CPU-N",
        "BigMem",
        "CPU-Gold-6130",
        "V100",
        "a100",
        "GPU_MEM:40GB",
        "CPU_FRQ:2.10GHz",
        "512GiB",
        "NO_IB",
        "noib",
        "static",
        "c5n.18xlarge",
        "row0",
        "x86_64",
        "turing",
        "48gb",
        "CLASS:SH3_G4TF64",
        "group0",
        "",
        "nvidia-gpu",
    ],
)
def test_features_of_other_things(feature):
    assert nic_of_feature(feature) is None


def test_a_site_extends_the_table():
    site = {"Island1": "hdr200", "EDR": "roce100", "fast": "slingshot"}
    assert nic_of_feature("island1", site) == NicFeature("ib", "hdr200")
    assert nic_of_feature("edr", site) == NicFeature("roce", "roce100")
    assert nic_of_feature("FAST", site) == NicFeature("slingshot", None)
    with pytest.raises(ConfigurationError, match="cluster.features.x: unknown NIC kind or family 'hdr20'"):
        check_features({"x": "hdr20"})


def test_a_node_may_have_several():
    assert nics_of_features(["ib", "hdr200", "a100"]) == (NicFeature("ib", "hdr200"),)
    assert nics_of_features(["eth", "roce", "v100"]) == (NicFeature("roce"), NicFeature("ethernet"))
    assert nics_of_features(["CPU-N"]) == ()
