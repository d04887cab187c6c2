"""The real Slurm of the tests: it starts, its links are shaped, it requeues and preempts, it leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holmes_hpc.emulation.world import children
from tests.slurm_cluster import ClusterSettings, SlurmCluster, unavailable_reason
from tests.slurm_cluster.cluster import ORDINARY_USER
from tests.slurm_cluster.fixture import MakeSlurm

ROOT = Path(__file__).resolve().parent.parent
ALL = ["ib-1", "ib-2", "roce-1", "roce-2"]
SHOW_TASK = "'echo $SLURM_PROCID $SLURM_NTASKS $SLURMD_NODENAME'"
HET_JOB = f"""\
#SBATCH --partition=ib --nodes=2 --ntasks-per-node=2 --gpus-per-node=2
#SBATCH hetjob
#SBATCH --partition=roce --nodes=2 --ntasks-per-node=1 --gpus-per-node=1
srun --het-group=0,1 sh -c {SHOW_TASK}
"""


def test_every_release_has_four_idle_nodes_and_runs_a_het_job(each_slurm: SlurmCluster) -> None:
    listed = each_slurm.run("sinfo --noheader --Node --partition=mixed --format='%N %t'").stdout.split()
    assert dict(zip(listed[::2], listed[1::2], strict=True)) == dict.fromkeys(ALL, "idle")

    assert sorted(each_slurm.run("srun -p mixed -N4 hostname").stdout.split()) == ALL

    job = each_slurm.sbatch(HET_JOB, "--output=het.out")
    assert each_slurm.wait_for(job) == ["COMPLETED", "COMPLETED"]
    tasks = sorted((each_slurm.shared / "het.out").read_text().splitlines())
    assert tasks == ["0 6 ib-1", "1 6 ib-1", "2 6 ib-2", "3 6 ib-2", "4 6 roce-1", "5 6 roce-2"]


def test_a_node_sees_its_own_interfaces_and_devices(slurm: SlurmCluster) -> None:
    assert slurm.run("ls /sys/class/net", "roce-2").stdout.split() == ["eth0", "lo", "roce0"]
    assert slurm.run("hostname", "roce-2").stdout == "roce-2\n"
    devices = slurm.run("srun -p ib -N1 --gpus=2 sh -c 'echo $CUDA_VISIBLE_DEVICES'").stdout
    assert devices == "0,1\n"


_SEND = """\
import socket, sys, time
address, megabytes = sys.argv[1], int(sys.argv[2])
for attempt in range(100):
    try:
        sender = socket.create_connection((address, 7000), timeout=30)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
start = time.monotonic()
sender.sendall(bytes(megabytes * 1_000_000))
sender.shutdown(socket.SHUT_WR)
sender.recv(1)
print(megabytes * 8 / 1000 / (time.monotonic() - start))
"""
_RECEIVE = """\
import socket
listener = socket.create_server(("", 7000))
receiver = listener.accept()[0]
while receiver.recv(1 << 20):
    pass
receiver.sendall(b"x")
"""


def _gbps(slurm: SlurmCluster, sends: list[tuple[str, str, str]], megabytes: int) -> list[float]:
    """Return the rates of (sender, receiver, address) that send so much at the same time."""
    for _, receiver, _ in sends:
        assert receiver not in {sender for sender, _, _ in sends}
    receivers = [subprocess.Popen(slurm.command_line(["python", "-c", _RECEIVE], receiver, timeout_seconds=60))
                 for _, receiver, _ in sends]
    senders = [subprocess.Popen(slurm.command_line(["python", "-c", _SEND, address, str(megabytes)], sender,
                                                   timeout_seconds=60), stdout=subprocess.PIPE, text=True)
               for sender, _, address in sends]
    rates = [float(sender.communicate(timeout=60)[0]) for sender in senders]
    assert [receiver.wait(timeout=20) for receiver in receivers] == [0] * len(sends)
    return rates


def test_traffic_takes_the_shaped_interface_that_its_address_names(slurm: SlurmCluster) -> None:
    before = slurm.sent_bytes("ib-1"), slurm.sent_bytes("roce-1")
    fabric, ethernet = _gbps(slurm, [("ib-1", "ib-2", "10.1.0.2"), ("roce-1", "roce-2", "10.0.2.2")], 30)
    after = slurm.sent_bytes("ib-1"), slurm.sent_bytes("roce-1")
    assert 30e6 < after[0]["ib0"] - before[0]["ib0"] < 33e6
    assert after[0]["eth0"] - before[0]["eth0"] < 1e6
    assert 30e6 < after[1]["eth0"] - before[1]["eth0"] < 33e6

    assert ethernet < 0.25 and fabric < 2.3, "shaped to 0.2 and 2 Gbit/s"
    assert 1.2 * ethernet < fabric, "side by side; ten times faster where the machine is idle"

    unreachable = slurm.run(["python", "-c", _SEND, "10.2.0.1", "1"], "ib-1", check=False)
    assert "Network is unreachable" in unreachable.stderr


def test_an_ordinary_user_runs_jobs_with_the_tests_python(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("srun -N2 -n2 python -c 'import os, socket; print(os.getuid(), socket.gethostname())'",
                       "--partition=ib", "--nodes=2", "--output=user.out", user=ORDINARY_USER)
    assert slurm.wait_for(job) == ["COMPLETED"], (slurm.shared / "user.out").read_text()
    assert sorted((slurm.shared / "user.out").read_text().splitlines()) == ["65534 ib-1", "65534 ib-2"]


def test_nodes_and_tasks_may_be_uneven(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=3, roce_nodes=1)
    done = slurm.run(f"srun -p ib -N3 -n4 sh -c {SHOW_TASK} : -p roce -N1 -n1 sh -c {SHOW_TASK}")
    assert sorted(done.stdout.splitlines()) == ["0 5 ib-1", "1 5 ib-1", "2 5 ib-2", "3 5 ib-3", "4 5 roce-1"]


def test_accounting_tells_how_jobs_ended(slurm_accounting: SlurmCluster) -> None:
    job = slurm_accounting.sbatch("exit 7", "--partition=ib", "--output=/dev/null")
    slurm_accounting.wait_for(job, ["FAILED"])
    deadline = time.monotonic() + 20
    while f"{job}|FAILED|7:0" not in slurm_accounting.sacct(job).splitlines():  # it lags behind
        assert time.monotonic() < deadline, slurm_accounting.sacct(job)
        time.sleep(0.2)


RESTARTS = """\
trap 'echo told $SLURM_RESTART_COUNT' USR1
echo start ${SLURM_RESTART_COUNT:-0}
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
srun sh -c 'trap "echo task told" USR1; touch ready.$SLURM_PROCID; while :; do sleep 0.1; done'
"""


def wait_for_tasks(slurm: SlurmCluster, job: int) -> None:
    """Wait until both tasks of the first start can be told."""
    slurm.wait_for(job, ["RUNNING"])
    slurm.run("until [ -e ready.0 ] && [ -e ready.1 ]; do sleep 0.05; done", timeout_seconds=30)


@pytest.mark.long
def test_an_urgent_job_preempts_after_a_signal_and_the_job_is_requeued(slurm: SlurmCluster) -> None:
    job = slurm.sbatch(RESTARTS, "--partition=ib", "--nodes=2", "--output=preempted.out", "--open-mode=append",
                       "--signal=USR1@60", "--exclusive")
    wait_for_tasks(slurm, job)
    urgent = slurm.sbatch("sleep 1", "--partition=urgent", "--nodelist=ib-1", "--exclusive",
                          "--output=/dev/null")
    assert slurm.wait_for(urgent) == ["COMPLETED"]
    assert slurm.wait_for(job, ["COMPLETED"]) == ["COMPLETED"]
    output = (slurm.shared / "preempted.out").read_text()
    assert "task told" in output
    assert "DUE TO PREEMPTION" in output
    assert output.splitlines()[-1] == "start 1"


@pytest.mark.long
def test_a_node_that_dies_ends_its_job_and_comes_back(slurm: SlurmCluster) -> None:
    job = slurm.sbatch(RESTARTS, "--partition=roce", "--nodes=2", "--output=died.out", "--open-mode=append")
    wait_for_tasks(slurm, job)
    slurm.fail_node("roce-2")
    slurm.run("scontrol update nodename=roce-2 state=down reason=died")
    slurm.start_node("roce-2")
    assert slurm.wait_for(job, ["COMPLETED"]) == ["COMPLETED"]
    output = (slurm.shared / "died.out").read_text().splitlines()
    assert output[0] == "start 0"
    assert "srun: error: Node failure on roce-2" in output
    assert output[-1] == "start 1"


@pytest.mark.long
def test_two_clusters_stand_side_by_side(make_slurm: MakeSlurm) -> None:
    first, second = make_slurm(), make_slurm(ib_nodes=1, roce_nodes=1)
    job = first.sbatch("sleep 600", "--partition=mixed", "--nodes=4", "--output=/dev/null")
    first.wait_for(job, ["RUNNING"])
    assert second.squeue().keys() == {"1"}, "only the step that tried out the start"
    assert sorted(second.run("srun -p mixed -N2 hostname").stdout.split()) == ["ib-1", "roce-1"]
    second.close()
    assert first.states(job) == ["RUNNING"]


def _descendants(pid: int) -> set[int]:
    found = set()
    for child in children(pid):
        found |= {child} | _descendants(child)
    return found


@pytest.mark.slurm
@pytest.mark.parametrize("victim", ["keeper", pytest.param("mid", marks=pytest.mark.long)])
def test_kill_9_leaves_no_process_and_no_mount(tmp_path: Path, victim: str) -> None:
    reason = unavailable_reason(ClusterSettings())
    if reason:
        pytest.skip(reason)

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "tests.slurm_cluster", "--shared", str(tmp_path / "shared"),
                               *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    mounts = Path("/proc/self/mounts").read_text()
    up = command("up")
    assert up.returncode == 0, up.stderr
    assert command("up").returncode == 1, "one cluster for each shared folder"
    assert command("shell", "roce-1", "hostname").stdout == "roce-1\n"
    command("shell", "head", "sbatch", "-N4", "-o", "/dev/null", "--wrap", "srun sleep 100")

    keeper = _keeper(tmp_path / "shared")
    processes = _descendants(keeper)
    assert len(processes) > 10
    os.kill(keeper if victim == "keeper" else children(keeper)[0], signal.SIGKILL)
    deadline = time.monotonic() + 5
    while left := [pid for pid in processes | {keeper} if _lives(pid)]:
        assert time.monotonic() < deadline, f"these live on: {left}"
        time.sleep(0.02)
    assert Path("/proc/self/mounts").read_text() == mounts
    assert command("down").returncode == 1, "nothing is left to end"


def _keeper(shared: Path) -> int:
    return json.loads((shared / "cluster.json").read_text())["keeper"]


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2:].split()[0] != b"Z"


@pytest.mark.slurm
def test_down_ends_the_cluster(tmp_path: Path) -> None:
    reason = unavailable_reason(ClusterSettings())
    if reason:
        pytest.skip(reason)
    line = [sys.executable, "-m", "tests.slurm_cluster", "--shared", str(tmp_path / "shared")]
    subprocess.run([*line, "up"], cwd=ROOT, check=True, capture_output=True, timeout=100)
    processes = _descendants(_keeper(tmp_path / "shared"))
    subprocess.run([*line, "down"], cwd=ROOT, check=True, capture_output=True, timeout=100)
    assert not [pid for pid in processes if _lives(pid)]


def test_without_root_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in (unavailable_reason(ClusterSettings()) or "")


def test_a_missing_tree_names_the_script_that_makes_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root the reason is another one")
    reason = unavailable_reason(ClusterSettings(tree=tmp_path))
    assert reason and ".ci/make_slurm_tree.sh" in reason
