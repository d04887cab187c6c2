"""Run folders are for their user alone, and one that others could have written is not run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from matplotlib.figure import Figure

from analysis.pictures import save
from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.data.cache import _lock
from holmes_hpc.data.token_file import TokenFileWriter
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.train import make_folder
from holmes_hpc.planner import plan
from holmes_hpc.runs import RunFolder, write_job
from holmes_hpc.runs.files import write_text_atomic
from holmes_hpc.runs.place import check_umask
from holmes_hpc.runs.private import PRIVATE_NAMES, ExposedError, check_own, create_file, own_folder, put_file
from holmes_hpc.runs.sweeps import Sweep, find_sweep


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0, 0o002, 0o022, 0o077], ids=["000", "002", "022", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def filled(place: Path, *overrides: str) -> RunFolder:
    """Make a run's folder as a start does, and write what its ranks write."""
    config = compose(["+cluster=laptop", f"run.folder={place}", *overrides])
    folder = make_folder(config, plan(config, mode="local"), "local")
    write_job(folder)
    folder.write_json(folder.rendezvous_path, {"host": "127.0.0.1", "port": 1})
    folder.write_text(folder.path / "code.diff", "+a key")
    folder.append_metrics({"step": 1})
    folder.write_json(folder.result_path, {})
    return folder


def test_a_run_is_for_its_user_alone_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    folder = filled(tmp_path)
    assert mode(folder.path) == 0o700
    for name in PRIVATE_NAMES:
        assert mode(folder.path / name) == 0o600, name


def test_a_setting_opens_the_results_to_the_group_and_keeps_the_settings(umask: int, tmp_path: Path) -> None:
    if umask != 0o022:  # of 000 and 002 the group could write what it reads
        what = "cannot read" if umask == 0o077 else "can write"
        with pytest.raises(ConfigurationError, match=rf"the umask of this shell, {umask:03o}.*{what}.*umask 027"):
            check_umask(group_readable=True)
        check_umask(group_readable=False)
        return
    check_umask(group_readable=True)
    folder = filled(tmp_path, "run.group_readable=true")
    for place in (folder.path, folder.ranks, folder.logs, folder.checkpoints):
        assert mode(place) == 0o750, place
    for path in (folder.plan_path, folder.metrics_path, folder.result_path):
        assert mode(path) & 0o040, path
    for name in PRIVATE_NAMES:
        assert mode(folder.path / name) == 0o600, name


def test_others_may_write_nothing_that_is_made_on_the_way(umask: int, tmp_path: Path) -> None:
    """The folders above a run, in which others could put another one, and files beside it, such as cached tokens."""
    folder = RunFolder.create(tmp_path / "all" / "runs", "mine")
    write_text_atomic(tmp_path / "file", "text")
    with TokenFileWriter(tmp_path / "tokens", 256) as writer:
        writer.write(numpy.arange(4))
    for path in (folder.path.parent, folder.path.parent.parent, tmp_path / "all", tmp_path / "file",
                 tmp_path / "tokens"):
        assert not mode(path) & 0o002, path


def test_a_folder_whose_name_can_be_guessed_is_ones_own(tmp_path: Path) -> None:
    own_folder(tmp_path / "new")
    own_folder(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(ExposedError, match="is there already, and others may write it"):
        own_folder(tmp_path / "new")
    (tmp_path / "goal").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "goal")
    with pytest.raises(FileExistsError):
        own_folder(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(tmp_path / "goal", 65534, 65534)
        with pytest.raises(ExposedError, match="user nobody|user 65534"):
            own_folder(tmp_path / "goal")


def test_tokenize_uses_no_parts_that_others_put_beside_its_output(tmp_path: Path,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("words\n")
    (tmp_path / ".out.parts").mkdir()
    (tmp_path / ".out.parts").chmod(0o777)
    assert cli.run(["tokenize", str(tmp_path / "out"), str(tmp_path / "a.txt")]) == 2
    assert "who could have put their own files there" in capsys.readouterr().err
    assert not any((tmp_path / ".out.parts").iterdir())


def test_pages_pictures_and_cluster_files_follow_no_link(tmp_path: Path) -> None:
    goal = tmp_path / "goal"
    goal.write_text("kept")
    figure = Figure()
    for number, write in enumerate((lambda path: put_file(path, "new"), lambda path: save(figure, path))):
        link = tmp_path / f"{number}.png"
        link.symlink_to(goal)
        write(link)
        assert not link.is_symlink() and link.stat().st_size and goal.read_text() == "kept"
    put_file(Path(os.devnull), "new")
    assert not Path(os.devnull).is_file()


def test_files_never_go_where_a_link_of_somebody_else_leads(tmp_path: Path) -> None:
    goal = tmp_path / "goal"
    goal.write_text("kept")
    (tmp_path / "link").symlink_to(goal)
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "link")
    with pytest.raises(FileExistsError):
        create_file(goal)
    (tmp_path / "cache.lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"), _lock(tmp_path / "cache.lock", lambda *told: None):
        pass
    assert not (tmp_path / "made").exists()
    write_text_atomic(tmp_path / "link", "new")
    assert goal.read_text() == "kept" and (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


def test_names_of_files_being_written_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Path, "replace", lambda self, target: seen.append(self.name))
    for _ in range(2):
        write_text_atomic(tmp_path / "a", "text")
    assert len(set(seen)) == 2 and all(len(name) > 16 for name in seen)


def test_a_run_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    check_own(folder.path)
    folder.path.chmod(0o755)
    check_own(folder.path)
    for changed in (folder.path, folder.config_path):
        before = mode(changed)
        for open_mode in (0o777, 0o1777, 0o602):
            changed.chmod(open_mode)
            with pytest.raises(ExposedError, match=f"{changed} may be written by others.*chmod go-w"):
                check_own(folder.path)
        changed.chmod(before)
    folder.config_path.rename(folder.path / "other")
    check_own(folder.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_run_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    os.chown(folder.config_path, 12345, -1)
    with pytest.raises(ExposedError, match="belongs to another user .12345."):
        check_own(folder.path)
    os.chown(folder.config_path, 0, 12345)
    folder.config_path.chmod(0o620)
    with pytest.raises(ExposedError, match="may be written by others"):
        check_own(folder.path)


def test_a_rank_loads_no_plug_in_of_a_folder_that_others_may_write(tmp_path: Path) -> None:
    from types import SimpleNamespace
    from typing import Any, cast

    from holmes_hpc.launch.slurm.rank import be_rank

    folder = filled(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    folder.write_text(folder.config_path, f"plugins: [{tmp_path / 'evil.py'}]\n")
    folder.path.chmod(0o777)
    layout = cast(Any, SimpleNamespace(name="1-0-0", rank=0, node="n1", local_rank=0))
    assert be_rank(folder, layout, supervised=True) == 1
    assert not (tmp_path / "ran").exists()
    assert "may be written by others" in folder.rank_error_path(0).read_text()


def test_a_sweep_that_others_could_have_written_is_not_gone_on_with(tmp_path: Path) -> None:
    config = compose(["+cluster=laptop"])
    place = tmp_path / "sweeps" / "first"
    sweep = Sweep.begin(place, [config], ["a"])
    assert mode(place / "configs" / "0" / "config.yaml") == 0o600
    assert find_sweep(place.parent, sweep.fingerprint) is not None and len(sweep.configs()) == 1
    for changed in (place, place / "configs", place / "configs" / "0"):
        before = mode(changed)
        changed.chmod(0o777)
        with pytest.raises(ExposedError, match="may be written by others"):
            sweep.configs()
        assert (find_sweep(place.parent, sweep.fingerprint) is None) == (changed == place)
        changed.chmod(before)
