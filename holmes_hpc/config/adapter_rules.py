"""Rules for the names of adapters and interfaces: exact names, none of the patterns that NCCL's variables know.

A run compares these names with what each node has, and gives them to NCCL as exact ones, since `mlx5_1` as a prefix
would also choose `mlx5_10`. A pattern would be found wrong on the nodes, after the job has waited for them.
"""

from __future__ import annotations

import re

from omegaconf import DictConfig

from holmes_hpc.errors import ConfigurationError

_ADAPTER = re.compile(r"[A-Za-z][\w.-]*(:\d+)?", re.ASCII)
_DRIVER = re.compile(r"(mlx\d?|mlx\d_|mlx\d_bond_?|hfi\d|hfi\d_|irdma|bnxt_re|efa_?|rocep?|ibp?)", re.ASCII)
_INTERFACE = re.compile(r"[^\s/,^=*:]{1,15}(:\d+)?")
_ADDRESS = re.compile(r"\d+(\.\d+){3}")
_INTERFACE_PREFIX = frozenset({"eth", "ib", "en", "eno", "ens", "enp", "hsn", "ibs", "ibp", "roce"})


def check_adapters(config: DictConfig) -> None:
    """Check `hca`, `interface` and `fabric_interface` of every label. Raises ConfigurationError for a pattern."""
    for label, partition in config.cluster.partitions.items():
        path = f"cluster.partitions.{label}"
        if partition.hca is not None:
            _adapters(f"{path}.hca={partition.hca}", str(partition.hca))
        for key in ("interface", "fabric_interface"):
            name = partition[key]
            if name is not None:
                _interface(f"{path}.{key}={name}", str(name))


def _adapters(what: str, text: str) -> None:
    remedy = ("Name those to use, as in mlx5_0,mlx5_1 (`ls /sys/class/infiniband` on a node; a port is written "
              "mlx5_0:1), or leave it out: then NCCL takes all that are active.")
    names = [name.strip() for name in text.removeprefix("=").split(",")]
    if "^" in text:
        raise ConfigurationError(f"{what}: it says what to leave out, and here stands what is used. {remedy}")
    for name in names:
        if not _ADAPTER.fullmatch(name):
            raise ConfigurationError(f"{what}: {name!r} is no name of an adapter. {remedy}")
        if _DRIVER.fullmatch(name) or name.endswith("_"):
            raise ConfigurationError(f"{what}: {name} begins names, and adapters are named in full. {remedy}")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{what}: an adapter is named twice. {remedy}")


def _interface(what: str, name: str) -> None:
    remedy = "Name the one that all nodes of the label have, as in eth0 or bond0 (`ip -br address` on a node)."
    if "^" in name or "," in name:
        raise ConfigurationError(f"{what}: one interface is named, and no list or pattern of NCCL. {remedy}")
    if not _INTERFACE.fullmatch(name):
        raise ConfigurationError(f"{what}: this is no name of an interface, which has 1 to 15 letters. {remedy}")
    if name == "lo" or _ADDRESS.fullmatch(name):
        what_it_is = "by it a node reaches itself alone" if name == "lo" else "this is an address"
        raise ConfigurationError(f"{what}: {what_it_is}. {remedy}")
    if name in _INTERFACE_PREFIX:
        raise ConfigurationError(f"{what}: it begins names, and an interface is named in full. {remedy}")
