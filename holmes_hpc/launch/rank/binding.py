"""Keeps a rank on the CPUs near its GPU, and says which adapters of its node are near."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holmes_hpc.cluster.locality import Nearness, Place, adapter_places, device_place
from holmes_hpc.launch.rank.ports import adapters_of
from holmes_hpc.launch.rank.settings import RankSettings


@dataclass(frozen=True)
class Binding:
    """What a rank is bound to: its CPUs from now on (None: as they are), what its log says, and what the user reads."""

    cpus: frozenset[int] | None
    log: str
    warning: str | None = None


def bind_near(settings: RankSettings, gpu: str, say: Callable[[str], None]) -> None:
    """Bind this rank to the CPUs near its GPU; its log says what was done, and rank 0 warns where they are far away."""
    binding = choose(gpu, device_place(gpu), adapter_places(adapters_of(settings)), frozenset(os.sched_getaffinity(0)))
    bind(binding)
    sys.stderr.write(f"{binding.log}\n")
    if binding.warning and settings.rank == 0:
        say(binding.warning)


def choose(gpu: str, place: Place | None, adapters: Mapping[str, Place], allowed: frozenset[int]) -> Binding:
    """Return what a rank whose GPU has the address `gpu` is bound to; `allowed` are the CPUs that it has now.

    Of those it keeps the ones near its GPU. Where none is, whoever started it has bound it elsewhere: it stays there,
    and the user is told, since every copy and every start of a kernel then passes the link between the processors.
    """
    if place is None or not place.cpus:
        return Binding(None, f"GPU {gpu}: the kernel does not say which CPUs are near")
    where = f"GPU {gpu}" + ("" if place.numa_node is None else f" (NUMA node {place.numa_node})")
    near, words = allowed & place.cpus, _adapter_words(place, adapters)
    if not near:
        return Binding(None, f"{where}: none of this rank's CPUs {list_words(allowed)} is near{words}",
                       f"{where} is near CPUs {list_words(place.cpus)}, and this rank was bound to "
                       f"{list_words(allowed)}, which are far from it: with Slurm add --gpu-bind=closest, or "
                       "--cpu-bind=none, to launch.srun_args")
    if near == allowed:
        return Binding(None, f"{where}: CPUs {list_words(allowed)} are near{words}")
    return Binding(near, f"{where}: bound to CPUs {list_words(near)}, which are near{words}")


def bind(binding: Binding) -> None:
    """Keep this thread, and those that it starts later, on the CPUs; where the system refuses they stay as they are."""
    if binding.cpus is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, binding.cpus)


def list_words(cpus: frozenset[int]) -> str:
    """Return numbers of CPUs in the kernel's list form, such as `0-15,64-79`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _adapter_words(place: Place, adapters: Mapping[str, Place]) -> str:
    levels: dict[Nearness, list[str]] = {}
    for name, other in adapters.items():
        levels.setdefault(place.nearness(other), []).append(name)
    told = "; ".join(f"{', '.join(sorted(levels[level]))} {level.words}" for level in sorted(levels, reverse=True))
    return f"; adapters: {told}" if told else ""
