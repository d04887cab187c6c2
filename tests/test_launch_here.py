"""A run on this machine: what ends it, and what its folder is documented to hold."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_hpc.cluster import ClusterDescription, read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.config.schema import Launch
from holmes_hpc.emulation.context import ENDING_SIGNALS
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.follow.interruption import InterruptedRunError, interruptible
from holmes_hpc.launch.here import run as here
from holmes_hpc.launch.here.left_to_slurm import LEFT_TO_SLURM, left_to_slurm
from holmes_hpc.launch.here.played import check_played, scale_warnings
from holmes_hpc.launch.rank.torch_log import errors_only
from holmes_hpc.planner import bind, plan
from holmes_hpc.runs import RunFolder, read_result
from tests.runs_for_tests import ROOT

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU]


@pytest.fixture
def handlers() -> Iterator[None]:
    """What an interruption leaves as it is until the process ends is put back."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in before.items():
        if handler != signal.SIG_DFL:  # ignored as under nohup, or another's, which a run heeds
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.usefixtures("handlers")
def test_signals_end_a_run_with_130_and_a_result(number: signal.Signals, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def start_world(network: object, body: object) -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was not taken")

    monkeypatch.setattr(here, "start_world", start_world)
    config = compose(["+cluster=laptop", f"run.folder={tmp_path}"])
    cluster, folder = read_cluster(config.cluster), RunFolder.create(tmp_path, "laptop")
    chosen = plan(config, mode="local")
    bound = bind(chosen, {place.slot: place.slot.replace("/", "-") for place in chosen.ranks})
    assert here.run_here(bound, config, cluster, folder, "local") == 130
    result = read_result(folder)
    assert result is not None
    assert (result["status"], result["error"]) == ("failed", f"interrupted by {number.name}")


@pytest.mark.usefixtures("handlers")
def test_only_the_first_signal_interrupts() -> None:
    with pytest.raises(InterruptedRunError, match="SIGTERM"):  # noqa: PT012
        try:
            with interruptible():
                os.kill(os.getpid(), signal.SIGTERM)
                raise AssertionError("the signal was not taken")
        finally:
            for number in ENDING:
                os.kill(os.getpid(), number)


@pytest.mark.usefixtures("handlers")
def test_a_signal_in_the_middle_of_a_line_that_is_logged_is_not_swallowed() -> None:
    class Stream(io.StringIO):
        def flush(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    handler = logging.StreamHandler(Stream())
    with pytest.raises(InterruptedRunError, match="SIGTERM"), interruptible():
        handler.emit(logging.makeLogRecord({"msg": "job 1"}))


@pytest.mark.usefixtures("handlers")
def test_handlers_come_back_after_a_body_that_nothing_interrupted() -> None:
    before = [signal.getsignal(number) for number in ENDING_SIGNALS]
    with interruptible():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in ENDING_SIGNALS] == before


@pytest.mark.usefixtures("handlers")
def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.usefixtures("handlers")
def test_handlers_of_the_caller_stay_in_their_place() -> None:
    taken: list[int] = []
    signal.signal(signal.SIGPROF, lambda number, frame: taken.append(number))
    with interruptible():
        os.kill(os.getpid(), signal.SIGPROF)
    assert taken == [signal.SIGPROF]


LASTING = """
import os, sys
from holmes_hpc.launch.follow.console import lasting_output
name = sys.argv[1]
reader, writer = os.pipe()
os.close(reader)
target = os.open(sys.argv[2], os.O_WRONLY) if len(sys.argv) > 2 else writer
os.dup2(target, getattr(sys, name).fileno())
with lasting_output():
    stream = getattr(sys, name)
    for number in range(3):
        print("words", number, file=stream)
        stream.flush()
    print("kept", file=sys.stdout if name == "stderr" else sys.stderr)
"""


@pytest.mark.parametrize("where", [[], ["/dev/full"]], ids=["no reader", "full"])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_that_nobody_takes_ends_nothing(name: str, where: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LASTING, name, *where], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "kept\n")


def test_everything_in_a_run_folder_is_documented() -> None:
    folder, text = RunFolder(Path("runs/mixed/id")), (ROOT / "docs" / "running.md").read_text()
    table = text.partition("## The run folder")[2].partition("\n\n`bubble_fraction`")[0]
    parts = {name: value.fget(folder) for name, value in vars(RunFolder).items() if isinstance(value, property)}
    paths = {name: path for name, path in parts.items() if isinstance(path, Path)}
    assert len(paths) > 10
    for name, path in paths.items():
        assert f"`{path.name}" in table, f"{name} ({path.name}) has no line in docs/running.md"
    for path in (folder.log_path(0), folder.timeline_path(0), folder.rank_error_path(0), folder.beat_path(0)):
        assert path.name.replace("0", "N") in table, path.name


def test_torch_logs_errors_unless_the_user_chose_a_level() -> None:
    chosen: dict[str, str] = {}
    errors_only(chosen)
    assert chosen == {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    chosen["TORCH_CPP_LOG_LEVEL"] = "INFO"
    errors_only(chosen)
    assert chosen["TORCH_CPP_LOG_LEVEL"] == "INFO"


@pytest.mark.parametrize("module", ["here.supervisor", "slurm.rank"])
def test_the_level_is_set_before_torch_is_imported(module: str) -> None:
    """torch reads it when it is loaded: nothing that the launcher imports may load it before."""
    text = (ROOT / "holmes_hpc" / "launch" / f"{module.replace('.', '/')}.py").read_text()
    loads = min(text.find(words) for words in ("import torch\n", "import run_rank") if words in text)
    assert 0 < text.find("errors_only(os.environ)") < loads
    program = f"import sys, holmes_hpc.launch.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_what_only_a_job_of_slurm_heeds_is_said() -> None:
    for each in LEFT_TO_SLURM:
        assert each in vars(Launch())
    assert left_to_slurm(compose(["+cluster=laptop", "launch.probe=true", "launch.mode=local"]), "local") == ""
    said = left_to_slurm(compose(["+cluster=laptop", "launch.container=/a.sif", "launch.setup=[module load a]",
                                  "launch.requeue=false"]), "local")
    assert said.startswith("launch.container=/a.sif, launch.setup=['module load a'], launch.requeue=False: no part of "
                           "local runs")


def test_what_emulate_says_and_no_run_does_is_refused_or_said() -> None:
    def cluster(*words: str) -> ClusterDescription:
        return read_cluster(compose(["+cluster=mixed", *words]).cluster)

    timed, links = "cluster.emulate.compute=timed", "cluster.links=[{between: [ib, roce], shared_gbps: 10}]"
    for real in (cluster(), cluster(links)):
        check_played(real, "local")
    check_played(cluster(timed), "emulated")
    with pytest.raises(ConfigurationError, match="set launch.mode=emulated, or cluster.emulate.compute=real"):
        check_played(cluster(timed), "local")
    with pytest.raises(ConfigurationError, match=r"between fabrics \(ib and roce\).*leave cluster.links out"):
        check_played(cluster(timed, links), "emulated")
    assert not list(scale_warnings(cluster()))
    said, = scale_warnings(cluster(timed, "cluster.emulate.scale=10"))
    assert "ethernet, ib, roce play no part" in said
    assert "divided by cluster.emulate.scale=10" in said
    said, = scale_warnings(cluster("cluster.emulate.scale=10", "~cluster.emulate.rates.ib"))
    assert "does not change the rates of ethernet, roce:" in said
    removed = said.partition("(")[2].partition(")")[0].split()
    assert not list(scale_warnings(cluster("cluster.emulate.scale=10", "~cluster.emulate.rates.ib", *removed)))
