import dataclasses
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from holmes_hpc.cluster import LinkRate, Machine, host, kept_speed, read_cluster
from holmes_hpc.cluster import machine as machine_module
from holmes_hpc.cluster.host import HostSpeed, host_memory_gib, measured_speed
from holmes_hpc.config.cluster_schema import Cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError, NetworkError, RunFailedError
from holmes_hpc.planner import plan
from holmes_hpc.planner.simulation.prices import core_pools
from holmes_hpc.planner.task import task_of

TEXT = """
name: mixed
partitions:
  ib: {nodes: 2, gpus_per_node: 8, gpu: a100-80g, nic: hdr200, nics_per_node: 4}
  roce: {nodes: 2, gpus_per_node: 8, gpu: v100, nic: roce100, nics_per_node: 2, ethernet_gbps: 10}
"""


def read(text=TEXT):
    return read_cluster(
        OmegaConf.merge(OmegaConf.structured(Cluster), OmegaConf.create(text))
    )


def test_described():
    machine = Machine.described(read())
    ib, ib_too, roce, _ = machine.cluster.nodes
    assert (machine.label, machine.oversubscription) == ("described", 1.0)
    assert (machine.tflops(ib, "bfloat16"), machine.tflops(roce, "float16")) == (312, 125)
    assert (machine.memory_gib(ib), machine.memory_gib(roce)) == (80, 32)
    assert machine.link("ib", ib, ib_too) == LinkRate(200, 1.1)
    assert machine.link("ethernet", ib, roce) == LinkRate(10, 30)
    assert machine.link("ethernet", ib, ib_too) == LinkRate(25, 30)
    assert machine.link("local", ib, ib).bandwidth_gbps == 2400
    assert machine.node_bandwidth_gbps(ib, "ib") == 800
    assert machine.node_bandwidth_gbps(roce, "roce") == 200
    assert machine.node_bandwidth_gbps(roce, "ethernet") == 10
    assert machine.trunk_gbps("ib", "roce") is None


def test_what_the_hardware_lacks_is_refused():
    machine = Machine.described(read())
    ib, _, roce, _ = machine.cluster.nodes
    with pytest.raises(
        ConfigurationError, match="train.precision=bfloat16: the GPU v100 of roce/0 .*float16"
    ):
        machine.tflops(roce, "bfloat16")
    with pytest.raises(NetworkError, match="ib/0 .*roce/0 .*'ib'"):
        machine.link("ib", ib, roce)
    with pytest.raises(NetworkError):
        machine.node_bandwidth_gbps(roce, "ib")
    with pytest.raises(NetworkError):
        machine.link("local", ib, roce)


@pytest.mark.parametrize(
    ("link", "rate", "trunk"),
    [
        ("bandwidth_gbps: 5, latency_us: 900", LinkRate(5, 900), None),
        ("bandwidth_gbps: 50", LinkRate(50, 30), None),
        ("shared_gbps: 4", LinkRate(4, 30), 4),
        ("shared_gbps: 100", LinkRate(10, 30), 100),
        ("latency_us: 20000", LinkRate(10, 20000), None),
    ],
)
def test_links_between_fabrics(link, rate, trunk):
    machine = Machine.described(read(TEXT + f"links: [{{between: [ib, roce], {link}}}]"))
    ib, ib_too, roce, _ = machine.cluster.nodes
    assert machine.link("ethernet", roce, ib) == rate
    assert machine.link("ethernet", ib, ib_too) == LinkRate(25, 30)
    assert machine.trunk_gbps("roce", "ib") == trunk


def test_emulated_with_real_compute():
    machine = Machine.emulated(read(TEXT + "emulate: {rates: {ib: 1.5, ethernet: 0.1}}"), cores=2)
    ib, ib_too, roce, roce_too = machine.cluster.nodes
    assert (machine.label, machine.oversubscription) == ("emulated", 16.0)
    assert machine.tflops(ib, "float32") == pytest.approx(measured_speed().matmul_gflops / 1000)
    assert machine.tflops(ib, "float32") == machine.tflops(roce, "bfloat16")
    assert machine.memory_gib(ib) == pytest.approx(host_memory_gib() / 32)
    assert machine.link("ib", ib, ib_too).bandwidth_gbps == 1.5
    assert machine.link("roce", roce, roce_too).bandwidth_gbps == 2.0
    assert machine.link("ethernet", ib, roce).bandwidth_gbps == 0.1
    assert machine.node_bandwidth_gbps(ib, "ib") == 1.5
    with pytest.raises(NetworkError):
        machine.link("ib", ib, roce)


def test_plain_local_processes_have_one_network():
    machine = Machine.emulated(read(), cores=64, shaped=False)
    ib, _, roce, _ = machine.cluster.nodes
    assert machine.oversubscription == 1.0
    assert machine.link("ethernet", ib, roce) == machine.link("local", ib, ib)


def test_the_wind_tunnel_prices_the_described_cluster():
    machine = Machine.emulated(read(TEXT + "emulate: {compute: timed, scale: 40}"), cores=2)
    ib, ib_too, *_ = machine.cluster.nodes
    assert (machine.label, machine.oversubscription) == ("emulated", 1.0)
    assert machine.tflops(ib, "float16") == 312
    assert machine.link("ib", ib, ib_too).bandwidth_gbps == 200


def test_a_described_cpu_shares_the_memory_of_its_node():
    text = "{name: laptop, partitions: {a: {nodes: 1, gpus_per_node: 4, gpu: cpu, nic: eth10}}}"
    machine = Machine.described(read(text))
    assert machine.memory_gib(machine.cluster.nodes[0]) == pytest.approx(host_memory_gib() / 4)


@pytest.mark.parametrize("ranks", [(8, 2), (2, 8)])
def test_every_described_node_of_cpus_has_cores_of_its_own(ranks, monkeypatch):
    monkeypatch.setattr(machine_module, "host_cores", lambda: 4)
    labels = ", ".join(f"{label}: {{nodes: 1, gpus_per_node: {count}, gpu: cpu, nic: eth10}}"
                       for label, count in zip("ab", ranks, strict=True))
    task = task_of(compose(["+cluster.name=two", f"+cluster.partitions={{{labels}}}"]), "slurm")
    pools, sizes = core_pools(task)
    assert sizes == {f"{label}/0": min(4, count) for label, count in zip("ab", ranks, strict=True)}
    assert list(pools.values()) == ["a/0"] * ranks[0] + ["b/0"] * ranks[1]
    small = task.cluster.only([f"{'ab'[ranks.index(2)]}/0"])
    assert dataclasses.replace(task.machine, cluster=small).oversubscription == 1


@pytest.fixture
def new_cache(tmp_path, monkeypatch):
    """An empty cache, and a process that has measured nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    measured_speed.cache_clear()
    yield tmp_path / "cache"
    measured_speed.cache_clear()


@pytest.fixture
def measurements(monkeypatch):
    """Count measurements, each of which finds another speed."""
    found = []

    def measure():
        found.append(HostSpeed(10.0 + len(found), 20.0))
        return found[-1]

    monkeypatch.setattr(host, "_measure", measure)
    return found


def test_a_speed_is_measured_once_and_kept_for_later_commands(new_cache, measurements):
    assert not new_cache.exists()
    for _ in range(3):
        assert measured_speed() == HostSpeed(10.0, 20.0)
        measured_speed.cache_clear()  # as another command would
    assert len(measurements) == 1
    (file,) = new_cache.rglob("*.json")
    assert f"10.0 GFLOP/s, as measured once and kept in {file}; remove that file" in host.speed_words()
    file.unlink()
    measured_speed.cache_clear()
    assert measured_speed() == HostSpeed(11.0, 20.0)


def test_a_speed_of_another_machine_is_not_used(new_cache, measurements, monkeypatch):
    measured_speed()
    monkeypatch.setattr(kept_speed, "_cpu_model", lambda: "another CPU")
    measured_speed.cache_clear()
    assert measured_speed() == HostSpeed(11.0, 20.0)
    assert len(list(new_cache.rglob("*.json"))) == 2


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"matmul_gflops": 0, "copy_gb_per_second": 1}',
                                    '{"matmul_gflops": "fast", "copy_gb_per_second": 1}',
                                    '{"matmul_gflops": NaN, "copy_gb_per_second": 1}'])
def test_a_damaged_file_is_replaced(damage, new_cache, measurements):
    measured_speed()
    (file,) = new_cache.rglob("*.json")
    file.write_text(damage)
    measured_speed.cache_clear()
    assert measured_speed() == HostSpeed(11.0, 20.0)
    measured_speed.cache_clear()
    assert measured_speed() == HostSpeed(11.0, 20.0)


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null"])
def test_a_cache_that_cannot_be_written_costs_a_measurement_each_time(place, new_cache, measurements, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    assert measured_speed() == HostSpeed(10.0, 20.0)
    assert "not kept" in host.speed_words()
    measured_speed.cache_clear()
    assert measured_speed() == HostSpeed(11.0, 20.0)


def test_without_a_home_directory_nothing_is_kept(new_cache, measurements, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(kept_speed.Path, "home", homeless)
    assert measured_speed() == HostSpeed(10.0, 20.0)
    assert "a home directory cannot be written" in host.speed_words()


def test_a_failed_measurement_is_told(new_cache, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(RunFailedError, match="could not be measured"):
        measured_speed()
    assert not new_cache.exists()


def test_the_floor_loads_no_torch():
    code = "import sys, holmes_hpc.cluster; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_plan_of_this_machine_is_the_same_for_every_command_and_says_why(new_cache, measurements):
    config = compose(["+cluster=laptop", "launch.mode=local"])
    texts = set()
    for _ in range(2):
        texts.add(plan(config, mode="local").to_json())
        measured_speed.cache_clear()
    assert len(texts) == 1
    assert f"kept in {new_cache}" in texts.pop()
