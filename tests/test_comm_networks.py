"""Which interface stands for each network on real, emulated and local nodes."""

from types import SimpleNamespace

import pytest

from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.errors import NetworkError


def node(network, interface=None, fabric_interface=None):
    return SimpleNamespace(
        slot="fast/1", label="fast", network=network, hca=None, gid_index=None,
        interface=interface, fabric_interface=fabric_interface,
    )


@pytest.mark.parametrize(
    ("described", "interfaces"),
    [
        (node("ib"), {"local": "lo", "ib": "ib0", "ethernet": "eth0"}),
        (node("ib", "bond0", "ibp1s0"), {"local": "lo", "ib": "ibp1s0", "ethernet": "bond0"}),
        (node("roce", "eno1"), {"local": "lo", "roce": "roce0", "ethernet": "eno1"}),
        (node("slingshot"), {"local": "lo", "slingshot": "hsn0", "ethernet": "eth0"}),
        (node("ethernet", "eno1"), {"local": "lo", "ethernet": "eno1"}),
    ],
)
def test_described_node(described, interfaces):
    assert NodeNetworks.described(described).interfaces == interfaces


def test_emulated_node_has_its_own_interface_names():
    networks = NodeNetworks.emulated(node("roce", "eno1", "ens5"))
    assert networks.interfaces == {"local": "lo", "roce": "roce0", "ethernet": "eth0"}
    assert networks.nccl_environment == {}


def test_local_mode_takes_the_loopback_for_every_network():
    networks = NodeNetworks.local()
    assert {networks.interface(name) for name in ("local", "ib", "roce", "ethernet", "efa", "opa")} == {"lo"}


def test_network_that_the_node_lacks_is_named():
    with pytest.raises(NetworkError, match=r"gpu17 has no network 'roce'.*ethernet, ib, local.*fast\.nic"):
        NodeNetworks.described(node("ib"), "gpu17").interface("roce")


def test_setting_names_the_label():
    networks = NodeNetworks.described(node("ib"))
    assert networks.setting("ethernet") == "cluster.partitions.fast.interface"
    assert networks.setting("ib") == "cluster.partitions.fast.fabric_interface"
