"""The typed schema of a cluster file: the group `cluster` of `config.schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holmes_hpc.config.fields import GBPS, MOST_NICS, MOST_RANKS, MOST_STEPS, group, setting
from holmes_hpc.values.disturbances import MOST_TRAFFIC


@dataclass
class Partition:
    """One label of a cluster file: equal nodes of one Slurm partition."""

    partition: str | None = setting(None, "the Slurm partition; default: the label")
    nodes: int = setting(1, "number of nodes", minimum=1, maximum=10**6)
    gpus_per_node: int = setting(8, "GPUs, and so ranks, on each node", minimum=1, maximum=10**6)
    gpu: str = setting("a100-80g", "GPU kind, a name of the catalogue")
    nic: str = setting("hdr200", "NIC kind of the fast network, a name of the catalogue")
    nics_per_node: int = setting(1, "fast NICs on each node", minimum=1, maximum=MOST_NICS)
    fabric: str | None = setting(None, "name of the set of nodes that reach each other by the fast network; "
                                       "default: one fabric for each label")
    ethernet_gbps: float | None = setting(None, "bandwidth of a node's Ethernet, 10^9 bit/s; default: 25, or what its "
                                                "NICs have if they are Ethernet", **GBPS)
    hca: str | None = setting(None, "NCCL_IB_HCA on these nodes, such as mlx5_0,mlx5_1")
    gid_index: int | None = setting(None, "NCCL_IB_GID_INDEX on these nodes (RoCE)", minimum=0, maximum=65535)
    interface: str | None = setting(None, "Ethernet interface on these nodes, such as eth0 or bond0")
    fabric_interface: str | None = setting(None, "IP interface of the fast NIC, for gloo, such as ib0")
    constraint: str | None = setting(None, "Slurm features to ask for (--constraint)")
    account: str | None = setting(None, "Slurm account (--account)")
    qos: str | None = setting(None, "Slurm quality of service (--qos)")
    time_limit: str | None = setting(None, "Slurm time limit, such as 12:00:00")
    exclude: str | None = setting(None, "nodes to leave out (--exclude)")
    gres: str | None = setting(None, "Slurm generic resources (--gres); default: from gpus_per_node")
    cpus_per_task: int | None = setting(None, "CPU cores of each rank", minimum=1, maximum=65536)
    sbatch: dict[str, Any] = setting({}, "further options of sbatch for this label, such as {reservation: a}; null "
                                         "leaves out one that we write")


@dataclass
class Link:
    """The network between fabrics, where it differs from the nodes' Ethernet."""

    between: list[str] = setting([], "the two fabrics that this link joins")
    bandwidth_gbps: float | None = setting(None, "bandwidth for each node, 10^9 bit/s", **GBPS)
    shared_gbps: float | None = setting(None, "bandwidth of a trunk that all nodes share, 10^9 bit/s", **GBPS)
    latency_us: float | None = setting(None, "one-way latency, microseconds", minimum=0, maximum=1e7)


@dataclass
class Disturbance:
    """What is done to the emulated cluster on purpose: exactly one of rate, traffic, delay, loss and slowdown."""

    rate: float | None = setting(None, "so many times its rate is what a link has, such as 0.2 for a fifth",
                                 minimum=1e-3, maximum=1e3)
    traffic: float | None = setting(None, "share of a link's rate that other traffic takes", minimum=0.01,
                                    maximum=MOST_TRAFFIC)
    delay_ms: float | None = setting(None, "so much later every packet arrives, milliseconds", minimum=0, maximum=1e4)
    jitter_ms: float | None = setting(None, "up to so much later still, anew for every packet, milliseconds", minimum=0,
                                      maximum=1e4)
    loss: float | None = setting(None, "share of packets that is lost, such as 0.01", minimum=1e-5, maximum=0.5)
    slowdown: float | None = setting(None, "forwards and backwards take so many times as long", minimum=1, maximum=1e3)
    network: str | None = setting(None, "the links: ethernet (default), or the name of a fabric")
    nodes: list[str] = setting([], "slots, such as [ib/0]; default: all nodes that have the network")
    between: list[str] = setting([], "for delay and loss: two slots or fabrics, and only what passes between them")
    ranks: list[int] = setting([], "ranks that slowdown is for, or give nodes", minimum=0, maximum=MOST_RANKS)
    from_step: int = setting(1, "the first disturbed step", minimum=1, maximum=MOST_STEPS)
    until_step: int | None = setting(None, "the last disturbed step; default: to the end", minimum=1,
                                     maximum=MOST_STEPS)


@dataclass
class Emulate:
    """How the cluster is emulated on one machine."""

    rates: dict[str, float] = setting({}, "10^9 bit/s of each network family, such as {ib: 2, ethernet: 0.2}", **GBPS)
    compute: str = setting("real", "what stands for the GPU: this CPU, or waits of the GPU's own time (wind tunnel)",
                           valid=("real", "timed"))
    scale: float = setting(1.0, "described rates are divided by this, where rates gives none, and with timed compute "
                                "bytes too", minimum=1, maximum=1e9)
    dilation: float | None = setting(None, "timed compute: how many times slower than the cluster all goes; default: "
                                           "what this machine's cores keep up with", minimum=1, maximum=1e6)
    disturbances: list[Disturbance] = setting([], "what disturbs links and ranks, and in which steps")
    plan_for_step: int | None = setting(None, "plan for the cluster as disturbed in this step; default: undisturbed",
                                        minimum=1, maximum=MOST_STEPS)


@dataclass
class Cluster:
    """A cluster file. The short form (`nodes`, `gpu`, `nic`, ...) describes one label of equal nodes."""

    name: str = setting("???", "the cluster's name; default of run.name")
    partitions: dict[str, Partition] = setting({}, "labels, each with equal nodes")
    links: list[Link] = setting([], "links between fabrics that differ from the nodes' Ethernet")
    features: dict[str, str] = setting({}, "Slurm feature to NIC kind, beside the built-in table")
    measured: str | None = setting(None, "file of `holmes probe`, whose rates go before those described here")
    calibrated: str | None = setting(None, "file of `holmes calibrate`: how fast GPUs proved to be in finished runs")
    communicator_gib: float = setting(0.25, "GPU memory of each communicator of a rank beyond eight, 2^30 bytes; set "
                                            "what you measured of your NCCL", minimum=0, maximum=8)
    profiled: str | None = setting(None, "file of `holmes probe`: how long the model's layers take on each GPU kind")
    shape: str = setting("auto", "how one job spans the partitions", valid=("auto", "het", "features", "plain"))
    order: str = setting("grouped", "how ranks are numbered over nodes in emulation",
                         valid=("grouped", "alternate"))
    emulate: Emulate = group(Emulate, "the emulated cluster")
    nodes: int | None = setting(None, "short form: number of nodes", minimum=1, maximum=10**6)
    gpus_per_node: int | None = setting(None, "short form: GPUs on each node", minimum=1, maximum=10**6)
    gpu: str | None = setting(None, "short form: GPU kind")
    nic: str | None = setting(None, "short form: NIC kind")
    nics_per_node: int | None = setting(None, "short form: fast NICs on each node", minimum=1, maximum=MOST_NICS)
