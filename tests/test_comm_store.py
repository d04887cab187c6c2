"""The store that ranks meet at: who does not know the run's secret can neither read, write nor disturb it."""

from __future__ import annotations

import errno
import os
import resource
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.store.channel import (
    CHALLENGE_BYTES,
    PROOF_BYTES,
    SEAL_BYTES,
    SecretError,
    channels,
    counter_proof,
    is_counter_proof,
    is_proof,
    proof,
)
from holmes_hpc.comm.store.client import TRIES, RunStore
from holmes_hpc.comm.store.server import MOST_UNPROVED, StoreServer
from holmes_hpc.runs.private import ExposedError, make_secret, read_secret
from holmes_hpc.values import Group
from tests.forked import ForkedRank, run_ranks
from tests.tiny_plans import tiny_plan

SECRET = bytes(range(32))
HERE = "127.0.0.1"
SOON = timedelta(seconds=20)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    made = StoreServer(HERE, SECRET, ranks=2)
    yield made
    made.close()


def store_of(server: StoreServer, seconds: float = 20.0) -> RunStore:
    return RunStore(HERE, server.port, SECRET, timedelta(seconds=seconds))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ranks_share_values_of_any_bytes(server: StoreServer) -> None:
    first, second = store_of(server), store_of(server)
    first.set("bytes", bytes(range(256)))
    assert second.get("bytes") == bytes(range(256))
    assert [first.add("sum", 2), second.add("sum", -5)] == [2, -3]
    first.append("text", "a")
    second.append("text", "b")
    assert first.multi_get(["text", "sum"]) == [b"ab", b"-3"]
    assert second.check(["text"]) and not second.check(["text", "other"])
    assert first.compare_set("text", "ab", "c") == b"c" and second.compare_set("text", "ab", "d") == b"c"
    assert second.compare_set("new", "", "d") == b"d" and first.compare_set("none", "x", "y") == b"x"
    assert first.delete_key("sum") and not first.delete_key("sum")
    assert first.list_keys() == ["bytes", "new", "text"] and second.num_keys() == 3
    second.multi_set(["x", "y"], [b"1", b"2"])
    assert dist.PrefixStore("p", first).check(["z"]) is False
    dist.PrefixStore("p", first).set("z", "through torch")
    assert second.get("p/z") == b"through torch"


def test_a_value_that_comes_later_is_waited_for_and_one_that_does_not_is_named(server: StoreServer) -> None:
    first, second = store_of(server), store_of(server, 0.2)
    waiting = threading.Thread(target=lambda: first.wait(["late", "later"]))
    waiting.start()
    assert second.check(["late"]) is False
    second.set("late", "1")
    second.set("later", "1")
    waiting.join(10)
    assert not waiting.is_alive()
    with pytest.raises(RuntimeError, match="wait timeout after 200ms, keys: never"):
        second.get("never")
    assert first.get("late") == b"1"


def test_a_closed_store_says_so(server: StoreServer) -> None:
    store = store_of(server)
    store.close()
    assert store.check(["anything"]) is False
    with pytest.raises(RuntimeError, match="the store of this start is closed"):
        store.set("a", "b")


def test_who_does_not_know_the_secret_is_dropped_counted_and_said_once(
        server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    own = store_of(server)
    own.set("held", "kept")
    for _ in range(3):
        with pytest.raises(SecretError, match="did not take this rank"):
            RunStore(HERE, server.port, secrets.token_bytes(32), SOON)
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n" * 10, b"\0" * PROOF_BYTES, os.urandom(10_000)):
        with socket.create_connection((HERE, server.port), timeout=10) as stranger:
            asked = stranger.recv(CHALLENGE_BYTES)
            assert b"kept" not in asked
            stranger.sendall(garbage)
            with suppress(OSError):  # dropped already
                stranger.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    eventually(lambda: server.dropped == 3 * TRIES + 4)
    with pytest.raises((RuntimeError, OSError)):
        dist.TCPStore(HERE, server.port, is_master=False, timeout=timedelta(seconds=1)).set("held", "changed")
    assert own.get("held") == b"kept" and own.list_keys() == ["held"]
    server.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "from 127.0.0.1 was dropped" in said[0] and "connections" in said[1], said


def test_strangers_who_say_nothing_keep_no_rank_out(server: StoreServer) -> None:
    strangers = [socket.create_connection((HERE, server.port), timeout=10) for _ in range(2 * MOST_UNPROVED)]
    store_of(server).set("a", "1")
    assert server.dropped >= MOST_UNPROVED - 1
    for stranger in strangers:
        stranger.close()


def test_ranks_get_in_while_strangers_connect_without_end(server: StoreServer) -> None:
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with suppress(OSError):
                socket.create_connection((HERE, server.port), timeout=1).close()

    floods = [threading.Thread(target=flood) for _ in range(2)]
    for each in floods:
        each.start()
    try:
        store_of(server).set("a", "1")
        assert store_of(server).get("a") == b"1"
    finally:
        ended.set()
        for each in floods:
            each.join(10)
    assert server.dropped


def test_sixty_four_ranks_meet_and_share_what_all_wrote() -> None:
    ranks = 64
    server = StoreServer(HERE, SECRET, ranks)
    found, stores = dict[int, list[bytes]](), list[RunStore]()

    def be_rank(rank: int) -> None:
        store = store_of(server, 60.0)
        stores.append(store)
        store.set(f"address/{rank}", f"10.0.0.{rank}" * 50)
        store.add("count", 1)
        found[rank] = store.multi_get([f"address/{each}" for each in range(ranks)])
        store.wait(["go"])

    threads = [threading.Thread(target=be_rank, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 120
    while len(found) < ranks:
        assert time.monotonic() < deadline, sorted(found)
        time.sleep(0.01)
    assert not server.is_listening and server.dropped == 0
    stores[0].set("go", "")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert stores[0].get("count") == b"64"
    assert all(found[rank] == [f"10.0.0.{each}".encode() * 50 for each in range(ranks)] for rank in range(ranks))
    with pytest.raises(OSError):
        socket.create_connection((HERE, server.port), timeout=10)
    server.close()


def meet_with_few_descriptors(given: ForkedRank) -> str:
    """Meet at a store of this process that may open one file too few to take the connection."""
    server = StoreServer(HERE, SECRET, 1)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened = -1
    with suppress(OSError):
        while True:
            opened = os.open(os.devnull, os.O_RDONLY)
    os.close(opened)
    began = time.monotonic()
    try:
        RunStore(HERE, server.port, SECRET, timedelta(seconds=50), server)
    except OSError as error:
        return f"{os.strerror(error.errno or 0)} {time.monotonic() - began < 25}"
    return "met"


def test_too_few_descriptors_to_take_a_connection_are_an_error_at_once() -> None:
    assert run_ranks(1, meet_with_few_descriptors) == ["Too many open files True"]


def test_a_proof_is_of_its_own_challenge_alone(server: StoreServer) -> None:
    """Neither an overheard proof nor messages that are changed or said again are taken."""
    with socket.create_connection((HERE, server.port), timeout=10) as first:
        answer = proof(SECRET, first.recv(CHALLENGE_BYTES))
        first.sendall(answer)
        assert len(first.recv(SEAL_BYTES)) == SEAL_BYTES
    with socket.create_connection((HERE, server.port), timeout=10) as second:
        asked = second.recv(CHALLENGE_BYTES)
        assert not is_proof(SECRET, asked, answer)
        second.sendall(answer)
        assert second.recv(1) == b""
    own = proof(SECRET, asked)
    assert is_proof(SECRET, asked, own) and not is_proof(SECRET[::-1], asked, own)
    assert is_counter_proof(SECRET, asked, own, counter_proof(SECRET, asked, own))
    assert not is_counter_proof(SECRET, asked, own, own[-SEAL_BYTES:]), "a proof sent back is none"
    sender, receiver = (channels(SECRET, asked, own)[0] for _ in range(2))
    message = sender.closed(["set", ["a"], ["1"]])
    for place in range(4, len(message)):
        changed = bytearray(message)
        changed[place] ^= 1
        with pytest.raises(SecretError):
            channels(SECRET, asked, own)[0].opened(changed)
    assert receiver.opened(bytearray(message)) == ["set", ["a"], ["1"]]
    with pytest.raises(SecretError):
        receiver.opened(bytearray(message))


def test_a_stranger_in_the_servers_place_learns_and_gives_nothing() -> None:
    with socket.socket() as listener:
        listener.bind((HERE, 0))
        listener.listen()

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(b"holmes_hpc 1\0\0\0\0" + bytes(32))
                heard.append(accepted.recv(1000))
                accepted.sendall(bytes(SEAL_BYTES))
                accepted.recv(1000)

        heard: list[bytes] = []
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SecretError, match="does not know the secret"):
            RunStore(HERE, listener.getsockname()[1], SECRET, SOON)
        thread.join(10)
    assert SECRET not in heard[0]


def test_it_listens_on_one_address_until_all_ranks_are_there() -> None:
    server = StoreServer(HERE, SECRET, ranks=2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5).close()
    first = store_of(server)
    waiting = socket.create_connection((HERE, server.port), timeout=10)
    second = store_of(server)
    eventually(lambda: not server.is_listening)
    with pytest.raises(OSError):
        RunStore(HERE, server.port, SECRET, timedelta(seconds=0.1))
    waiting.recv(CHALLENGE_BYTES)
    assert waiting.recv(1) == b"", "one that had not proved itself is dropped"
    waiting.close()
    first.set("a", "1")
    assert second.get("a") == b"1"
    server.close()
    with pytest.raises(RuntimeError, match="the connection to the store of rank 0 broke"):
        first.get("a")


def _meet(given, path, ranks):
    """Meet, make all groups, close the store, and go on to use the groups."""
    if given.rank == 0:
        server = StoreServer(HERE, SECRET, ranks)
        store = RunStore(HERE, server.port, SECRET, SOON, server)
        (path / "new").write_text(str(server.port))
        (path / "new").rename(path / "port")
    else:
        eventually((path / "port").exists)
        store = RunStore(HERE, int((path / "port").read_text()), SECRET, SOON)
    began = time.monotonic()
    half = ranks // 2
    halves = [Group("data", tuple(range(half)), "ethernet"), Group("data", tuple(range(half, ranks)), "ethernet"),
              Group("pipeline", (0, ranks - 1), "ethernet")]
    plan = tiny_plan(ranks, halves)
    communicator = connect(store, given.rank, ranks, plan, NodeNetworks.local())
    communicator.barrier()
    store.close()
    value = torch.ones(1)
    dist.all_reduce(value, group=communicator.group(0))
    given.kept = store, communicator
    return value.item(), time.monotonic() - began


def test_groups_work_after_the_store_is_closed(tmp_path: Path) -> None:
    values = run_ranks(8, _meet, tmp_path, 8)
    assert [value for value, _ in values] == [8.0] * 8


def test_the_secret_is_a_file_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "start.secret"
        secret = make_secret(path)
    finally:
        os.umask(before)
    assert len(secret) == 32 and secret == read_secret(path) != make_secret(tmp_path / "other")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert make_secret(path) != secret, "an older one is not used again"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_secret(tmp_path / "link")
    path.chmod(0o640)
    with pytest.raises(ExposedError, match="not its user's alone.*set run.folder"):
        read_secret(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ExposedError, match="holds no secret"):
        read_secret(path)


def test_a_rank_whose_own_store_has_failed_waits_for_nobody(server: StoreServer) -> None:
    """It may be refused before it sees the end of a connection that was under way."""
    server.close()
    server.error = OSError(errno.EMFILE, "Too many open files")
    began = time.monotonic()
    with pytest.raises(OSError, match="Too many open files"):
        RunStore(HERE, server.port, SECRET, timedelta(seconds=50), server)
    assert time.monotonic() - began < 25
