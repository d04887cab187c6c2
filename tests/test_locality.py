"""Where GPUs and adapters sit, read from made-up trees of the kernel, and the CPUs that a rank keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_hpc.cluster.locality import Nearness, Place, adapter_places, device_place, read_cpu_list
from holmes_hpc.launch.rank.binding import Binding, bind, choose, list_words

# Two processors: GPU 3d and adapter mlx5_0 behind one switch, mlx5_1 beside them at a root of its own, GPU bd and
# mlx5_2 on the other processor, a card of which the firmware says nothing.
TREE = {
    "0000:3d:00.0": ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0", "0", "0-3,8-11"),
    "0000:3e:00.0": ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0", "0", "0-3,8-11"),
    "0000:5e:00.0": ("pci0000:5d/0000:5d:00.0", "0", "0-3,8-11"),
    "0000:bd:00.0": ("pci0000:ba/0000:ba:00.0", "1", "4-7,12-15"),
    "0000:be:00.1": ("pci0000:bb/0000:bb:00.0", "1", "4-7,12-15"),
    "0000:01:00.0": ("pci0000:00", "-1", "0-15"),
}
ADAPTERS = {"mlx5_0": "0000:3e:00.0", "mlx5_1": "0000:5e:00.0", "mlx5_2": "0000:be:00.1", "old_0": "0000:01:00.0"}
ALL = frozenset(range(16))
BINDING = """
import os, sys, threading
from holmes_hpc.launch.rank.binding import Binding, bind
cpu, seen = int(sys.argv[1]), []
bind(Binding(frozenset({cpu}), ""))
thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
thread.start()
thread.join()
bind(Binding(frozenset({60000}), ""))
print(seen == [{cpu}] and os.sched_getaffinity(0) == {cpu})
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sys")
    for folder in ("bus", "infiniband"):
        (root / folder).mkdir()
    for address, (above, node, cpus) in TREE.items():
        place = root / "devices" / above / address
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
        (place / "local_cpulist").write_text(f"{cpus}\n")
        (root / "bus" / address).symlink_to(place)
    for name, address in ADAPTERS.items():
        (root / "infiniband" / name).mkdir()
        (root / "infiniband" / name / "device").symlink_to(root / "bus" / address)
    return root


def bound(machine: Path, gpu: str, allowed: frozenset[int] = ALL, names: tuple[str, ...] = ()) -> Binding:
    return choose(gpu, device_place(gpu, machine / "bus"), adapter_places(names, machine / "infiniband"), allowed)


def test_a_rank_keeps_the_cpus_near_its_gpu_and_names_adapters_by_nearness(machine: Path) -> None:
    binding = bound(machine, "0000:3D:00.0")
    assert binding == Binding(frozenset({0, 1, 2, 3, 8, 9, 10, 11}), (
        "GPU 0000:3D:00.0 (NUMA node 0): bound to CPUs 0-3,8-11, which are near; adapters: mlx5_0 behind the same "
        "switch; mlx5_1 on the same NUMA node; mlx5_2 on another NUMA node; old_0 at an unknown place"))
    named = bound(machine, "0000:bd:00.0", names=("mlx5_2", "mlx5_9"))
    assert named.log.endswith("which are near; adapters: mlx5_2 on the same NUMA node")


def test_of_what_slurm_gave_only_near_cpus_are_kept_and_far_ones_are_told(machine: Path) -> None:
    assert bound(machine, "0000:3d:00.0", frozenset({2, 3, 4, 5})).cpus == {2, 3}
    assert bound(machine, "0000:3d:00.0", frozenset({2, 3})).cpus is None
    far = bound(machine, "0000:bd:00.0", frozenset({0, 1, 2}))
    assert far.cpus is None and far.warning is not None
    assert "near CPUs 4-7,12-15, and this rank was bound to 0-2" in far.warning and "launch.srun_args" in far.warning


@pytest.mark.parametrize("gpu", ["0000:99:00.0", "", "../../etc", "0000:3d:00.0/numa_node"])
def test_a_device_of_which_the_kernel_says_nothing_binds_nothing(machine: Path, gpu: str) -> None:
    assert bound(machine, gpu).cpus is None and "does not say" in bound(machine, gpu).log


def test_where_the_firmware_knows_no_node_all_cpus_are_near(machine: Path) -> None:
    place = device_place("0000:01:00.0", machine / "bus")
    assert place == Place(None, ALL, ("pci0000:00",)) and bound(machine, "0000:01:00.0").cpus is None
    assert place.nearness(place) is Nearness.UNKNOWN


@pytest.mark.parametrize(("text", "cpus"), [
    ("0-2,5", {0, 1, 2, 5}), ("7\n", {7}), ("", set()), ("\n", set()), ("a", set()), ("0-", set()), ("-3", set()),
    ("0-99999999999", set()), ("1,,2", set()), ("0x1", set()), ("٣", set()), ("3-1", set())])
def test_lists_of_the_kernel(text: str, cpus: set[int]) -> None:
    assert read_cpu_list(text) == cpus
    assert not cpus or read_cpu_list(list_words(frozenset(cpus))) == cpus


def test_the_threads_that_come_later_stay_there_and_a_refusal_ends_nothing() -> None:
    ours = sorted(os.sched_getaffinity(0))
    done = subprocess.run([sys.executable, "-c", BINDING, str(ours[-1])], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
    bind(Binding(None, ""))
    assert sorted(os.sched_getaffinity(0)) == ours
