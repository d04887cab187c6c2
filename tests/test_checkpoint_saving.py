"""Saves by several ranks while they go on; disks that refuse; kills at any moment."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from holmes_hpc.checkpoint import shard_file
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.checkpoint.naming import looking_again, newest_first, tidy
from holmes_hpc.checkpoint.reading import fill
from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.engine.saving.resuming import load_newest
from holmes_hpc.engine.saving.saver import Saver
from holmes_hpc.engine.sharing import share_numbers, share_texts
from holmes_hpc.errors import CheckpointError
from tests.checkpoints_for_tests import save, whole
from tests.forked import run_ranks
from tests.runs_for_tests import ROOT, environment
from tests.tiny_plans import tiny_plan

KEYS = ("model/matrix", "optimizer/exp_avg/matrix", "model/vector")


def communicator_of(given):
    return connect(given.store, given.rank, given.world_size, tiny_plan(given.world_size, []),
                   NodeNetworks.local(), start_timeout=30, train_timeout=30)


def entries_of(rank, world_size, step):
    """Return this rank's rows of every tensor, of a step, or zeros."""
    entries = []
    for key in KEYS:
        full = whole(key, step or 0)
        count = len(full)
        begin, end = count * rank // world_size, count * (rank + 1) // world_size
        rest = (0,) * (full.dim() - 1)
        part = torch.zeros_like(full[begin:end]) if step is None else full[begin:end].clone()
        entries.append(Entry(key, tuple(full.shape), (begin, *rest), tuple(part.shape), part))
    return entries


def checked_step(path):
    """Fill everything from a checkpoint in one process, compare with its step's values, and return the step."""
    index = read_index(path)
    for entry in (entry for entry in entries_of(0, 1, None)):
        fill(path, index, [entry])
        assert torch.equal(entry.tensor, whole(entry.key, index.step)), entry.key
    return index.step


def saver_of(communicator, folder, said, goes_on=False, keep=2, token="t"):
    return Saver(folder, communicator, token=token, keep=keep, goes_on=goes_on, say=said.append,
                 texts={"plan.json": "{}"})


def test_ranks_tell_each_other(tmp_path):
    def talk(given):
        communicator = communicator_of(given)
        texts = share_texts(("", "ü" * 3000, "three")[given.rank], communicator)
        return share_numbers(given.rank + 0.5, communicator), texts

    for numbers, texts in run_ranks(3, talk):
        assert numbers == [0.5, 1.5, 2.5]
        assert texts == ["", "ü" * 1024, "three"]


def test_training_goes_on_while_a_save_is_written(tmp_path):
    def train(given):
        communicator, said = communicator_of(given), []
        saver = saver_of(communicator, tmp_path, said)
        saver.probe()
        slow_write, steps_meanwhile = shard_file.write_shards, 0

        def write_slowly(path, entries, **options):
            time.sleep(0.5 if given.rank == 1 else 0)
            return slow_write(path, entries, **options)

        patched = pytest.MonkeyPatch()
        patched.setattr("holmes_hpc.checkpoint.writing.write_shards", write_slowly)
        entries = entries_of(given.rank, given.world_size, 1)
        saver.save(1, entries, {"a": 1})
        while not newest_first(tmp_path):
            for entry in entries:
                entry.tensor.mul_(2)  # the state that was saved is a copy
            saver.poll()
            steps_meanwhile += 1
        for step in (2, 3):
            saver.save(step, entries_of(given.rank, given.world_size, step), {})  # waits for the last one
        saver.finish()
        return steps_meanwhile, said

    outcomes = run_ranks(3, train)
    assert all(steps > 2 for steps, _ in outcomes)
    assert [checked_step(path) for path in newest_first(tmp_path)] == [3, 2]
    assert [len(said) for _, said in outcomes] == [3, 0, 0]
    assert "step-000003 written in" in outcomes[0][1][-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003"]


def failing(given, folder, goes_on):
    """Save step 1, fail to save step 2 on rank 1, save step 3."""
    communicator, said = communicator_of(given), []
    saver = saver_of(communicator, folder, said, goes_on)
    saver.save(1, entries_of(given.rank, 2, 1), {})
    saver.finish()
    patched = pytest.MonkeyPatch()
    if given.rank == 1:
        def refuse(*arguments, **options):
            raise OSError(28, "No space left on device")
        patched.setattr("holmes_hpc.checkpoint.writing.write_shards", refuse)
    saver.save(2, entries_of(given.rank, 2, 2), {})
    saver.finish()
    patched.undo()
    saver.save(3, entries_of(given.rank, 2, 3), {})
    saver.finish()
    return said


def test_a_failed_save_ends_the_run_on_every_rank_with_the_reason(tmp_path):
    for outcome in run_ranks(2, failing, tmp_path, False, check=False):
        assert outcome.error == "CheckpointError"
        assert "the checkpoint of step 2 was not written: rank 1 on node roce/0" in outcome.message
        assert "No space left on device" in outcome.message
        assert "train.on_save_error=continue" in outcome.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001"], "what was written is cleared away"


def test_a_failed_save_lets_the_run_go_on_where_that_is_set(tmp_path):
    said = run_ranks(2, failing, tmp_path, True)
    assert ["WARNING" in text for text in said[0]] == [False, True, False]
    assert "rank 1 on node roce/0" in said[0][1]
    assert said[1] == []
    assert [checked_step(path) for path in newest_first(tmp_path)] == [3, 1]


def resumed(given, paths):
    communicator, said = communicator_of(given), []

    def load_entries(path):
        entries = entries_of(given.rank, given.world_size, None)
        fill(path, read_index(path), entries)
        return read_index(path).step

    try:
        step = load_newest(paths if given.rank == 0 else [], load_entries, communicator, said.append)
    except CheckpointError as error:
        return str(error), said
    return step, said


def test_all_ranks_take_the_newest_that_each_of_them_can_load(tmp_path):
    paths = [save(tmp_path, step, 2, (4, 1, 1)) for step in (3, 2, 1)]
    last_rows = next(shard for shard in read_index(paths[0]).shards
                     if (shard.key, shard.offsets) == ("model/matrix", (3, 0)))  # rank 0 reads rows 0 and 1
    data = bytearray((paths[0] / last_rows.file).read_bytes())
    data[last_rows.begin] ^= 1
    (paths[0] / last_rows.file).write_bytes(data)
    (paths[1] / "rank-0000.safetensors").unlink()
    outcomes = run_ranks(3, resumed, paths)
    assert [step for step, _ in outcomes] == [1, 1, 1]
    said = outcomes[0][1]
    assert len(said) == 3
    assert "step-000003: a shard is damaged" in said[0]
    assert "step-000002: a shard is missing" in said[1]
    assert "resuming after step 1 from" in said[2]


def test_a_checkpoint_that_goes_while_it_is_read_gives_way_to_the_next(tmp_path):
    path = save(tmp_path, 1, 2)
    looks = iter([path])

    def look():
        if next(looks, None) is None:  # the run that saves goes on: step 2 takes the place of step 1
            return [path.parent / "step-000002"]
        return [path]

    def refused_once():
        for found in looking_again(look):
            if found == path:
                save(tmp_path, 2, 2)
                shutil.rmtree(path)
            yield found

    outcomes = run_ranks(2, resumed, refused_once())
    assert [step for step, _ in outcomes] == [2, 2]
    assert ["refused" in text for text in outcomes[0][1]] == [True, False]


def test_when_none_can_be_loaded_the_run_does_not_start_anew_by_itself(tmp_path):
    path = save(tmp_path, 1, 2)
    (path / "rank-0000.safetensors").write_bytes(b"")
    for message, _ in run_ranks(2, resumed, [path]):
        assert "no checkpoint can be used" in message
        assert "a shard is torn" in message
        assert "train.resume=never" in message
    assert [step for step, _ in run_ranks(2, resumed, [])] == [0, 0]


MOUNTED = """
import sys
from pathlib import Path
from tests.forked import run_ranks
from tests import test_checkpoint_saving as tests
folder = Path("/mnt")
outcomes = run_ranks(2, tests.on_small_disk, folder, sys.argv[1], check=False)
print([outcome.error for outcome in outcomes], outcomes[0].value or outcomes[0].message)
print(sorted(path.name for path in folder.iterdir()), [tests.checked_step(p) for p in tests.newest_first(folder)])
"""


def on_small_disk(given, folder, policy):
    communicator, said = communicator_of(given), []
    saver = saver_of(communicator, folder, said, policy == "continue", keep=100)
    saver.probe()
    for step in range(1, 16):
        saver.save(step, entries_of(given.rank, 2, step), {})
    saver.finish()
    return said[-1] if said else None


def within(mount, policy):
    shell = ["unshare", "-Urm", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if subprocess.run([*shell, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    done = subprocess.run([*shell, sys.executable, "-c", MOUNTED, policy], cwd=ROOT, env=environment(), timeout=120,
                          capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.emulated
@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_full_disk(policy):
    result, left = within("mount -t tmpfs -o size=128k tmpfs /mnt", policy)
    assert "was not written: rank" in result
    assert "No space left on device; free space there" in result
    assert result.startswith("[None, None] WARNING" if policy == "continue" else "['CheckpointError', 'Check")
    steps = json.loads(left.rpartition("] ")[2])
    assert len(steps) >= 3, "those before are whole"
    assert left.count("step-") == len(steps), "and nothing else is left"


@pytest.mark.emulated
def test_a_read_only_folder_is_said_before_the_first_step():
    result, left = within("mount -t tmpfs -o ro tmpfs /mnt", "stop")
    assert result.startswith("['CheckpointError', 'CheckpointError'] checkpoints cannot be written: rank 0 on "
                             "node ib/0: /mnt/.probe.t ")
    assert "Read-only file system" in result
    assert left == "[] []"


def saving_for_ever(given, folder, reports, token):
    """Save step after step; report each step when training has done it, and each checkpoint when it is complete."""
    communicator, said = communicator_of(given), []
    for path in tidy(folder) if given.rank == 0 else []:
        assert checked_step(path) > 0
    found = newest_first(folder) if given.rank == 0 else []
    first = load_newest(found, checked_step, communicator, said.append)
    if given.rank == 0:
        assert not [text for text in said if "refused" in text], said
        os.write(reports, f"resumed {first}\n".encode())
    saver = saver_of(communicator, folder, said, token=token)
    for step in range(first + 1, 1_000_000):
        saver.save(step, entries_of(given.rank, given.world_size, step), {})
        if given.rank == 0 and step > first + 1:
            os.write(reports, f"complete {step - 1}\n".encode())  # `save` has waited for it


def run_until_killed(folder, reports, token):
    """Start a world of two ranks as a process group of its own; return its leader's pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            run_ranks(2, saving_for_ever, folder, reports, token, timeout_seconds=120)
        finally:
            os._exit(1)
    return pid


def read_reports(descriptor, until, seconds):
    """Read reports until one begins with `until`."""
    deadline, text = time.monotonic() + seconds, ""
    while not any(line.startswith(until) for line in text.splitlines()):
        assert time.monotonic() < deadline, text
        text += os.read(descriptor, 1 << 16).decode()
        time.sleep(0.005)
    return text


def test_twenty_kills_lose_nothing_that_was_complete(tmp_path):
    """Kill -9 at random moments while checkpoints are written, one after another without a pause."""
    dice = random.Random(7)
    complete = torn = 0
    for attempt in range(20):
        read, write = os.pipe()
        pid = run_until_killed(tmp_path, write, f"a{attempt}")
        text = read_reports(read, "complete", 60)
        time.sleep(dice.uniform(0.0, 0.15))
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        torn += any(path.name.endswith(".partial") for path in tmp_path.iterdir())
        os.close(write)
        while chunk := os.read(read, 1 << 16):
            text += chunk.decode()
        os.close(read)
        numbers = [line.split() for line in text.splitlines()]
        resumed_at = [int(number) for word, number in numbers if word == "resumed"]
        assert len(resumed_at) == 1
        assert resumed_at[0] >= complete, "a complete checkpoint was lost"
        assert resumed_at[0] <= complete + 2, "saves wait for each other"
        complete = max(int(number) for word, number in numbers if word == "complete")
    assert torn >= 5, "the kills fell into saves"
    tidy(tmp_path)
    assert checked_step(newest_first(tmp_path)[0]) >= complete >= 20
