"""Whoever is killed, nothing is left: no process, no namespace, no file."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.runs.job import process_start

END_SECONDS = 30
"""How soon a killed run is over, as docs promise."""
ROOT = Path(__file__).parent.parent
PROGRAM = Path(__file__).with_name("world_program.py")
NOBODY = 65534
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--"]
# As in many containers: who inherits a mount over a part of /proc may not mount a fresh one.
MASK_PROC = """
for proc in $(awk '$3 == "proc" {print $2}' /proc/self/mounts); do
    mount --bind /dev/null $proc/version || exit 1
done
exec unshare -Urm "$@"
"""
WITH_MASKED_PROC = ["unshare", "-Urm", "sh", "-c", MASK_PROC, "sh"]
SETTINGS = {"emulated": ("emulated", []), "emulated, as nobody": ("emulated", AS_NOBODY),
            "emulated, no PID namespace": ("emulated", WITH_MASKED_PROC), "local": ("local", [])}


@pytest.fixture(params=SETTINGS, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def program(request):
    """A running world_program and its pids, under every way that the world is made."""
    mode, prefix = SETTINGS[request.param]
    available, reason = namespaces_available()
    if (mode == "emulated" or prefix is WITH_MASKED_PROC) and not available:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="holmes-world-"))
    if prefix is AS_NOBODY:
        _can_nobody_run(folder)
    process = subprocess.Popen([*prefix, sys.executable, str(PROGRAM), mode, str(folder)],
                               stdout=subprocess.PIPE, text=True, cwd="/",
                               env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"})
    try:
        yield _Running(process, folder, own_pids=mode == "emulated" and prefix is not WITH_MASKED_PROC)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _can_nobody_run(folder):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.chown(folder, NOBODY, NOBODY)
    check = subprocess.run([*AS_NOBODY, sys.executable, "-c", "import holmes_hpc, sys"], cwd="/", check=False,
                           env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    if check.returncode != 0:
        pytest.skip(f"nobody may not read this checkout: {check.stderr.strip().splitlines()[-1]}")


class _Running:
    def __init__(self, process, folder, own_pids):
        self.process, self.folder, self.own_pids = process, folder, own_pids
        self.events = []
        while not self.events or self.events[-1]["event"] != "pids":
            line = process.stdout.readline()
            assert line, f"it ended before its ranks ran: {self.events}"
            self.events.append(json.loads(line))
        self.pids = {name: pid for name, pid in self.events[-1].items() if name != "event"}
        self.starts = {name: process_start(pid) for name, pid in self.pids.items()}

    def left(self):
        return [name for name, pid in self.pids.items()
                if process_start(pid) is not None and process_start(pid) == self.starts[name]]

    def remaining_events(self):
        return [json.loads(line) for line in self.process.stdout.read().splitlines()]


def _names_in_run():
    return sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else []


@pytest.mark.emulated
@pytest.mark.parametrize("victim", ["main", "mid", "init", "rank 1"])
def test_a_kill_of_any_process_leaves_nothing(program, victim):
    names = _names_in_run()
    assert program.left() == ["main", "mid", "init", "rank 0", "rank 1"]
    assert len(set(program.pids.values())) == 5
    rank_pid = program.pids["rank 1"]
    assert Path(f"/proc/{rank_pid}/comm").read_text().strip() == "rank1 ib-1"
    began = time.monotonic()
    os.kill(program.pids[victim], signal.SIGKILL)
    program.process.wait(END_SECONDS)
    deadline = began + END_SECONDS
    while program.left() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert program.left() == []
    assert _names_in_run() == names
    events = program.remaining_events()
    if victim == "main":
        assert program.process.returncode == -signal.SIGKILL
    elif victim == "rank 1":
        assert events == [{"event": "ended", "rank": 1, "status": -9}, {"event": "status", "status": 9}]
    else:
        assert events[-1] == {"event": "status", "status": 128 + 9}


@pytest.mark.emulated
def test_a_rank_sees_its_own_pid_and_the_main_process_the_outer_one(program):
    inner = {event["pid"] for event in program.events if event["event"] == "rank"}
    outer = {program.pids["rank 0"], program.pids["rank 1"]}
    namespaces = {os.readlink(f"/proc/{program.pids[name]}/ns/pid") for name in ("init", "main")}
    assert (len(namespaces) == 2) == program.own_pids
    assert (inner != outer) == program.own_pids


@pytest.mark.emulated
def test_init_ends_its_ranks_on_a_signal(program):
    os.kill(program.pids["init"], signal.SIGTERM)
    program.process.wait(END_SECONDS)
    assert program.left() == []
    assert program.remaining_events()[-1] == {"event": "status", "status": 128 + 15}
