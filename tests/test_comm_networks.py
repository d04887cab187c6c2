"""Which interface stands for each network on real, emulated and local nodes."""

import pytest

from holmes_hpc.cluster.cluster import Node
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.emulation.network import EmulatedInterface, EmulatedNode
from holmes_hpc.errors import NetworkError


def node(nic, interface=None, fabric_interface=None):
    return Node("fast/1", "fast", 1, "fast", "a100-80g", 8, nic, 1, 25.0,
                interface=interface, fabric_interface=fabric_interface)


@pytest.mark.parametrize(
    ("described", "interfaces"),
    [
        (node("hdr200"), {"local": "lo", "ib": "ib0", "ethernet": "eth0"}),
        (node("hdr200", "bond0", "ibp1s0"), {"local": "lo", "ib": "ibp1s0", "ethernet": "bond0"}),
        (node("roce200", "eno1"), {"local": "lo", "roce": "roce0", "ethernet": "eno1"}),
        (node("slingshot200"), {"local": "lo", "slingshot": "hsn0", "ethernet": "eth0"}),
        (node("eth100", "eno1"), {"local": "lo", "ethernet": "eno1"}),
    ],
)
def test_described_node(described, interfaces):
    assert NodeNetworks.described(described).interfaces == interfaces


def test_emulated_node_has_the_interfaces_that_were_made_for_it():
    made = (
        EmulatedInterface("eth0", "ethernet", "10.0.0.1", 0.2, "bridge-eth", 1500),
        EmulatedInterface("roce0", "roce", "10.1.0.1", 1.5, "bridge-f0", 9000),
    )
    networks = NodeNetworks.emulated(EmulatedNode("far/west/0", "far-west-0", made))
    assert networks.interfaces == {"local": "lo", "roce": "roce0", "ethernet": "eth0"}
    assert networks.nccl_environment == {}
    assert networks.node == "far-west-0"
    assert networks.setting("roce") == "cluster.partitions.far/west.fabric_interface"


def test_local_mode_takes_the_loopback_for_every_network():
    networks = NodeNetworks.local()
    assert {networks.interface(name) for name in ("local", "ib", "roce", "ethernet", "efa", "opa")} == {"lo"}


def test_network_that_the_node_lacks_is_named():
    with pytest.raises(NetworkError, match=r"gpu17 has no network 'roce'.*ethernet, ib, local.*fast\.nic"):
        NodeNetworks.described(node("hdr200"), "gpu17").interface("roce")


def test_setting_names_the_label():
    networks = NodeNetworks.described(node("hdr200"))
    assert networks.setting("ethernet") == "cluster.partitions.fast.interface"
    assert networks.setting("ib") == "cluster.partitions.fast.fabric_interface"
