import pytest
from omegaconf import OmegaConf

from holmes_hpc import resources
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.cluster_schema import Cluster
from holmes_hpc.errors import ConfigurationError

MIXED = """
name: mixed
partitions:
  ib: {nodes: 2, gpus_per_node: 2, gpu: a100-80g, nic: hdr200}
  roce: {nodes: 2, gpus_per_node: 2, gpu: v100, nic: roce200, gid_index: 3, hca: mlx5_0, interface: bond0}
"""


def read(text):
    return read_cluster(
        OmegaConf.merge(OmegaConf.structured(Cluster), OmegaConf.create(text))
    )


def refusal(text):
    with pytest.raises(ConfigurationError) as caught:
        read(text)
    return str(caught.value)


def test_the_full_form():
    cluster = read(MIXED)
    assert cluster.world_size == 8
    assert [node.slot for node in cluster.nodes] == ["ib/0", "ib/1", "roce/0", "roce/1"]
    assert list(cluster.fabrics) == ["ib", "roce"]
    node = cluster.nodes[3]
    assert (node.gpu, node.network, node.gid_index, node.hca, node.interface) == (
        "v100",
        "roce",
        3,
        "mlx5_0",
        "bond0",
    )
    assert cluster.node_of(5).slot == "roce/0"
    assert cluster.ranks_of(node) == (6, 7)
    assert [cluster.local_rank(rank) for rank in range(8)] == [0, 1] * 4
    with pytest.raises(IndexError):
        cluster.node_of(8)


def test_the_short_form_is_one_label_of_the_family():
    cluster = read("{name: uniform, nodes: 3, gpus_per_node: 4, gpu: h100, nic: eth100, nics_per_node: 2}")
    assert [node.slot for node in cluster.nodes] == ["ethernet/0", "ethernet/1", "ethernet/2"]
    assert cluster.world_size == 12
    assert (cluster.nodes[0].nics, cluster.nodes[0].ethernet_gbps) == (2, 200)


def test_alternate_order_deals_nodes_over_the_labels():
    cluster = read(
        MIXED.replace("nodes: 2, gpus_per_node: 2, gpu: v100", "nodes: 3, gpus_per_node: 4, gpu: v100")
        + "order: alternate"
    )
    assert [node.slot for node in cluster.nodes] == ["ib/0", "roce/0", "ib/1", "roce/1", "roce/2"]
    assert cluster.ranks_of(cluster.nodes[1]) == (2, 3, 4, 5)
    assert cluster.node_of(6).slot == "ib/1"
    assert [node.slot for node in cluster.fabrics["ib"]] == ["ib/0", "ib/1"]


def test_shared_networks():
    cluster = read(MIXED)
    assert cluster.shared_network([4, 5]) == "local"
    assert cluster.shared_network([3]) == "local"
    assert cluster.shared_network([0, 2]) == "ib"
    assert cluster.shared_network([4, 5, 6, 7]) == "roce"
    assert cluster.shared_network([3, 4]) == "ethernet"
    assert cluster.shared_network(range(8)) == "ethernet"


def test_two_infiniband_clusters_are_two_fabrics_unless_joined():
    text = MIXED.replace("roce200", "ndr400")
    assert read(text).shared_network([0, 7]) == "ethernet"
    joined = read(text.replace("gid_index: 3", "fabric: ib"))
    assert list(joined.fabrics) == ["ib"]
    assert joined.shared_network([0, 7]) == "ib"


@pytest.mark.parametrize(
    ("nic", "ethernet", "expected"),
    [
        ("hdr200", "25", 25),
        ("hdr200", "10", 10),
        ("eth10", "25", 10),
        ("hdr200", "null", 25),
        ("eth100", "null", 100),
        ("eth100", "24", 24),
        ("eth100", "25", 25),
        ("eth100", "26", 26),
        ("eth100", "40", 40),
    ],
)
def test_an_ethernet_nic_is_the_nodes_ethernet(nic, ethernet, expected):
    cluster = read(f"{{name: x, partitions: {{a: {{nodes: 1, nic: {nic}, ethernet_gbps: {ethernet}}}}}}}")
    assert cluster.nodes[0].ethernet_gbps == expected


def test_links_and_rates():
    cluster = read(
        MIXED + "links: [{between: [roce, ib], shared_gbps: 100, latency_us: 500}]\n"
        "emulate: {rates: {ib: 3}, scale: 40, compute: timed}"
    )
    assert cluster.link_between("ib", "roce").shared_gbps == 100
    assert cluster.link_between("ib", "ib") is None
    assert (cluster.rates, cluster.scale, cluster.compute) == ({"ib": 3.0}, 40.0, "timed")
    node = cluster.nodes[0]
    assert [cluster.emulated_gbps(node, family) for family in ("ib", "ethernet")] == [3.0, 0.2]
    assert cluster.emulated_gbps(cluster.nodes[2], "roce") == 2.0


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (resources.folder("conf") / "cluster").glob("*.yaml"))
)
def test_every_shipped_cluster_is_read(name):
    cluster = read((resources.folder("conf") / "cluster" / f"{name}.yaml").read_text())
    assert cluster.name == name
    assert cluster.world_size >= 2


def test_the_papers_nodes():
    cluster = read((resources.folder("conf") / "cluster" / "holmes_paper.yaml").read_text())
    assert [(node.gpus, node.nics, node.nic) for node in cluster.nodes] == [(8, 4, "hdr200")] * 2 + [
        (8, 2, "roce200")
    ] * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{name: x}", ["no nodes", "cluster.partitions.<label>", "cluster.nodes"]),
        ("{name: x, gpu: h100}", ["no nodes"]),
        ("{name: x, nodes: 0}", ["cluster.nodes is 0", "1 and more"]),
        ("{partitions: {ib: {nodes: 1}}}", ["cluster.name is missing"]),
        ("{name: x, nodes: 2, nic: hdr}", ["cluster.nic: unknown NIC kind 'hdr'", "did you mean"]),
        (MIXED + "nodes: 2", ["cluster.nodes and cluster.partitions exclude each other"]),
        (
            MIXED.replace("a100-80g", "a100_80g"),
            ["cluster.partitions.ib.gpu", "did you mean a100-80g?", "Valid: "],
        ),
        (MIXED.replace("roce200", "rocee200"), ["cluster.partitions.roce.nic", "did you mean roce200?"]),
        (MIXED.replace("roce:", "ro/ce:"), ["cluster.partitions.ro/ce", "letters, digits"]),
        (
            MIXED.replace("nodes: 2, gpus_per_node: 2, gpu: v100", "nodes: 0"),
            ["cluster.partitions.roce.nodes is 0"],
        ),
        (MIXED.replace("gpus_per_node: 2, gpu: v100", "gpus_per_node: -1"), ["roce.gpus_per_node is -1"]),
        (MIXED.replace("gid_index: 3", "ethernet_gbps: 0"), ["roce.ethernet_gbps is 0", "above 0"]),
        (
            MIXED.replace("gid_index: 3", "fabric: ib"),
            ["fabric 'ib'", "hdr200", "roce200", "cannot talk", "cluster.partitions.roce.fabric"],
        ),
        (
            MIXED + "links: [{between: [ib, rocee]}]",
            ["cluster.links[0].between", "'rocee'", "did you mean roce?"],
        ),
        (MIXED + "links: [{between: [ib]}]", ["exactly two", "ib, roce"]),
        (MIXED + "links: [{between: [ib, ib]}]", ["exactly two different"]),
        (
            MIXED + "links: [{between: [ib, roce], bandwidth_gbps: 1, shared_gbps: 2}]",
            ["exclude each other", "trunk"],
        ),
        (MIXED + "links: [{between: [ib, roce], shared_gbps: -2}]", ["cluster.links[0].shared_gbps is -2"]),
        (MIXED + "links: [{between: [ib, roce]}, {between: [roce, ib]}]", ["cluster.links[1]", "once"]),
        (
            MIXED + "emulate: {rates: {infiniband: 2}}",
            ["cluster.emulate.rates", "'infiniband'", "Valid: ib, roce"],
        ),
        (MIXED + "emulate: {rates: {ib: 0}}", ["cluster.emulate.rates.ib is 0", "above 0"]),
        (MIXED + "features: {fast: hdr20}", ["cluster.features.fast", "hdr200"]),
        (MIXED + "order: shuffled", ["cluster.order", "grouped, alternate"]),
    ],
)
def test_refusals(text, words):
    message = refusal(text)
    for word in words:
        assert word in message
    assert "\n" not in message
