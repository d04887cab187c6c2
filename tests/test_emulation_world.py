"""The world seen from its body and from main: ranks, events, failures, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holmes_hpc.emulation import namespaces
from holmes_hpc.emulation.namespaces import find_isolation, namespaces_available
from holmes_hpc.emulation.network import EmulatedInterface, EmulatedNetwork, EmulatedNode
from holmes_hpc.emulation.world import start_world
from holmes_hpc.errors import ConfigurationError, LaunchImpossibleError

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.emulated


def _run(body, network=None, seconds=20):
    world = start_world(network, body)
    status = world.wait(seconds)
    world.kill()
    return status, list(world.events())


def test_a_rank_writes_its_log_and_returns_its_status(tmp_path):
    def speak():
        print("on standard output")
        sys.stderr.write("on standard error\n")
        subprocess.run(["echo", "from a child"], check=True)
        return 7

    def fail():
        raise ValueError("what went wrong")

    functions = [speak, fail, lambda: sys.exit(5), lambda: sys.exit("no way"),
                 lambda: os.kill(os.getpid(), signal.SIGKILL)]

    def body(context):
        pids = [context.fork_rank(rank, "node", function, tmp_path / f"{rank}.log")
                for rank, function in enumerate(functions)]
        assert list(context.ranks.values()) == [(rank, "node") for rank in range(5)]
        ended = dict(context.wait() for _ in pids)
        context.send({"event": "ended", "statuses": [ended[pid] for pid in pids], "left": len(context.ranks)})
        return 3

    assert _run(body) == (3, [{"event": "ended", "statuses": [7, 1, 5, 1, -9], "left": 0}])
    assert (tmp_path / "0.log").read_text() == "on standard output\non standard error\nfrom a child\n"
    assert (tmp_path / "1.log").read_text().startswith("Traceback")
    assert "ValueError: what went wrong" in (tmp_path / "1.log").read_text()
    assert (tmp_path / "3.log").read_text() == "no way\n"


def test_long_events_of_many_ranks_arrive_whole(tmp_path):
    def body(context):
        def tell(letter):
            for _ in range(20):
                context.send({"event": "text", "text": letter * 30_000})
            return 0

        for rank, letter in enumerate("abc"):
            context.fork_rank(rank, "node", lambda letter=letter: tell(letter), tmp_path / f"{rank}.log")
        return max(context.wait()[1] for _ in range(3))

    world = start_world(None, body)
    texts = []
    while not world.events_ended:
        texts += [event["text"] for event in world.events(timeout_seconds=1)]
    assert world.wait(5) == 0
    assert sorted(texts) == sorted(letter * 30_000 for letter in "abc" for _ in range(20))


def test_wait_gives_up_after_its_time_and_kill_ends_all(tmp_path):
    def body(context):
        context.fork_rank(0, "node", lambda: time.sleep(60) or 0, tmp_path / "0.log")
        context.send({"event": "waited", "result": context.wait(0.1)})
        context.wait()
        return 0

    world = start_world(None, body)
    assert list(world.events(timeout_seconds=10)) == [{"event": "waited", "result": None}]
    assert world.poll() is None
    rank, = world.outer_pids().values()
    world.kill()
    assert world.poll() == 128 + signal.SIGKILL
    for pid in (world.mid_pid, world.init_pid, rank):
        assert not Path(f"/proc/{pid}").exists()


def test_terminate_lets_a_rank_end_in_order(tmp_path):
    def rank(context):
        def leave(number, frame):
            (tmp_path / "left").write_text("in order")
            os._exit(0)

        signal.signal(signal.SIGTERM, leave)
        context.send({"event": "ready"})
        time.sleep(60)
        return 0

    def body(context):
        context.fork_rank(0, "node", lambda: rank(context), tmp_path / "0.log")
        context.wait()
        return 0

    world = start_world(None, body)
    assert list(world.events(timeout_seconds=10)) == [{"event": "ready"}]
    os.kill(world.mid_pid, signal.SIGTERM)
    assert world.wait(30) == 128 + signal.SIGTERM
    assert (tmp_path / "left").read_text() == "in order"


def test_a_failing_body_is_an_event_and_a_status(capfd):
    def refuse(context):
        raise ConfigurationError("the fact; the remedy")

    assert _run(refuse) == (2, [{"event": "failed", "message": "the fact; the remedy"}])
    status, (event,) = _run(lambda context: 1 // 0)
    assert status == 1
    assert event["message"] == "ZeroDivisionError: integer division or modulo by zero"
    assert "1 // 0" in event["traceback"]
    assert capfd.readouterr().err == ""


def test_a_network_that_cannot_be_built_says_why(capfd):
    available, reason = namespaces_available()
    if not available:
        pytest.skip(reason)
    name = "a_name_that_is_too_long"
    interface = EmulatedInterface(name, "ethernet", "10.0.0.1", 1.0, "bridge-eth", 1500)
    node = EmulatedNode("a/0", "a-0", (interface,))
    status, (event,) = _run(lambda context: 0, EmulatedNetwork((node,)))
    assert status == 1
    assert event["message"].startswith("the emulated network could not be built: ip: ")
    assert name in event["message"]
    assert "launch.mode=local" in event["message"]
    assert capfd.readouterr().err == ""


def test_missing_programs_are_named_with_the_package(monkeypatch):
    monkeypatch.setattr(namespaces, "find_program", lambda name: None if name == "tc" else f"/sbin/{name}")
    available, reason = namespaces_available()
    assert not available
    assert "`tc` is missing" in reason
    assert "iproute2" in reason
    with pytest.raises(LaunchImpossibleError, match="iproute2.*launch.mode=local"):
        start_world(EmulatedNetwork(()), lambda context: 0)


def test_ip_is_found_where_an_ordinary_users_path_does_not_look(monkeypatch):
    if namespaces.find_program("ip") is None:
        pytest.skip("iproute2 is not installed")
    monkeypatch.setenv("PATH", "/nowhere")
    assert namespaces.find_program("ip").endswith("/ip")


def test_a_kernel_that_refuses_is_reported_with_the_remedy():
    if find_isolation()[0] is None:
        pytest.skip(find_isolation()[1])
    # A user namespace in which no further namespace may be made.
    limit = ("echo 0 >/proc/sys/user/max_net_namespaces && echo 0 >/proc/sys/user/max_user_namespaces "
             "&& exec \"$@\"")
    program = ("import json; from holmes_hpc.emulation.namespaces import namespaces_available; "
               "print(json.dumps(namespaces_available()))")
    command = ["unshare", "-Ur", "sh", "-c", limit, "sh", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "max_" in done.stderr:
        pytest.skip(f"limits cannot be set here: {done.stderr.strip()}")
    available, reason = json.loads(done.stdout)
    assert not available
    assert "unshare: No space left on device" in reason
    assert "user.max_user_namespaces" in reason


def test_the_network_of_eight_nodes_comes_up():
    available, reason = namespaces_available()
    if not available:
        pytest.skip(reason)
    nodes = tuple(EmulatedNode(f"n/{i}", f"n-{i}", (
        EmulatedInterface("eth0", "ethernet", f"10.0.0.{i + 1}", 0.2, "bridge-eth", 1500),
        EmulatedInterface("ib0", "ib", f"10.1.0.{i + 1}", 2.0, "bridge-f0", 9000))) for i in range(8))
    status, events = _run(lambda context: len(context.node_networks), EmulatedNetwork(nodes))
    assert (status, events) == (8, [])
