"""A user's own configuration file that is none: each is named by its path, with what is wrong and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.config.files import check_file, own_file
from holmes_hpc.errors import ConfigurationError
from tests.runs_for_tests import ROOT, open_to_all

WRONG = [
    ("cluster", b"", "the file is empty"),
    ("model", b"# only a remark\n", "the file is empty. Write settings of model"),
    ("cluster", b"- a\n- b\n", "holds a list"),
    ("train", b"just text\n", "holds a single value"),
    ("optimizer", b"42\n", "holds a single value"),
    ("cluster", b"name: caf\xe9\n", "not UTF-8 text: byte 0xe9 at place 9. Save the file as UTF-8"),
    ("model", b"\xff\xfen\0a\0", "not UTF-8 text"),
    ("data", b'name: "x\0y"\n', "not readable as YAML"),
    ("cluster", b"name: [x\n", "line 2, column 1"),
    ("cluster", b"name: x\n\tnodes: 1\n", "line 2"),
    ("cluster", b"name: x\n---\nname: y\n", "line 2"),
    ("model", b"defaults: 3\n", "`defaults` names the files to build on, and is no list"),
    ("cluster", b"partitions: {}\n", "cluster.partitions has no label"),
    ("cluster", b"name: x\npartitions:\n", "cluster.partitions is no mapping"),
    ("cluster", b"name: x\npartitions: [a]\n", "cluster.partitions is no mapping"),
    ("cluster", b"name: x\npartitions: {a: }\n", "the label a of cluster.partitions holds no settings"),
    ("cluster", b"name: x\npartitions: {1: {nodes: 1}}\n", "the label 1 of cluster.partitions is no text"),
]


@pytest.mark.parametrize(("group", "content", "message"), WRONG)
def test_a_file_without_settings_is_refused_by_its_path(group: str, content: bytes, message: str, tmp_path: Path
                                                        ) -> None:
    path = tmp_path / "ours.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        check_file(group, path)
    assert str(refused.value).startswith(str(path)) and message in str(refused.value)


@pytest.mark.parametrize("content", [
    "name: x\npartitions: {a: {nodes: 1}}\n", "name: x\nnodes: 2\npartitions: {}\n", "defaults: [mixed]\n",
    "# @package _global_\nname: x\n", "? [a, b]\n: 1\n",
])
def test_files_with_settings_are_left_to_the_schema(content: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(content)
    check_file("cluster", path)
    assert path.read_text() == content


@pytest.fixture(name="own")
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for group in ("cluster", "model"):
        (tmp_path / "holmes_hpc" / group).mkdir(parents=True)
    return tmp_path / "holmes_hpc"


def test_folders_and_dangling_links_are_named(own: Path) -> None:
    (own / "cluster" / "site.yaml").mkdir()
    (own / "model" / "ours.yaml").symlink_to("nowhere.yaml")
    for overrides, message in ((["+cluster=site"], "site.yaml is a folder"),
                               (["+cluster=mixed", "model=ours"], "ours.yaml is a link to a file that does not exist")):
        with pytest.raises(ConfigurationError, match=message):
            compose(overrides)


def test_every_group_is_looked_at_and_values_are_traced_to_their_file(own: Path) -> None:
    path = own / "model" / "ours.yaml"
    for content, message in ((b"", "the file is empty"), (b"caf\xe9: 1\n", "not UTF-8"),
                             (b"num_layers: abc\n", "could not be converted to Integer"),
                             (b"num_layers: 0\n", "model.num_layers=0: expected a whole number from 1")):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError) as refused:
            compose(["+cluster=mixed", "model=ours"])
        assert str(path) in str(refused.value) and message in str(refused.value)
    with pytest.raises(ConfigurationError) as refused:  # of two causes, the one on the command line
        compose(["+cluster=mixed", "model=ours", "model.num_layers=-1"])
    assert str(path) not in str(refused.value)


@pytest.mark.parametrize(("text", "message"), [
    ("links:\n  between: [ib, roce]\n  bandwidth_gbps: 10\n", "cluster.links: expected a list, each item a mapping"),
    ("features: [IB, OPA]\n", "cluster.features: expected a mapping of names"),
    ("partitions: {a: {nodes: 1, gpu: cpu, nic: eth10, sbatch: [mem]}}\n",
     "cluster.partitions.a.sbatch: expected a mapping"),
])
def test_a_list_in_place_of_a_mapping_is_named_with_its_file(own: Path, text: str, message: str) -> None:
    (own / "cluster" / "site.yaml").write_text(f"defaults: [mixed]\nname: site\n{text}")
    with pytest.raises(ConfigurationError) as refused:
        compose(["+cluster=site"])
    assert str(refused.value).startswith(f"file {own}/cluster/site.yaml: {message}")


def test_files_in_search_paths_are_found_and_ours_are_not_a_users(own: Path, tmp_path: Path) -> None:
    (tmp_path / "site" / "cluster").mkdir(parents=True)
    (tmp_path / "site" / "cluster" / "centre.yaml").write_text("")
    (own / "cluster" / "mixed.yaml").write_text("")
    search = f"hydra.searchpath=[{tmp_path}/site]"
    assert own_file("cluster", "centre", [search]) == tmp_path / "site" / "cluster" / "centre.yaml"
    assert own_file("cluster", "mixed", [search]) is None
    with pytest.raises(ConfigurationError, match=r"site/cluster/centre\.yaml: the file is empty"):
        compose(["+cluster=centre", search])


def test_a_users_file_with_the_name_of_one_of_ours_is_refused_where_it_is_meant(own: Path) -> None:
    (own / "cluster" / "ib.yaml").write_text("name: ib\npartitions: {a: {nodes: 7}}\n")
    with pytest.raises(ConfigurationError, match=r"cluster/ib\.yaml has the name of a file that ships.*Rename yours"):
        compose(["+cluster=ib"])
    assert compose(["+cluster=roce"]).cluster.name == "roce"


@pytest.mark.parametrize("text", ["defaults: [ours]\n", "name: x\npartitions: &p\n  ib: *p\n"])
def test_a_file_that_leads_back_to_itself_is_refused(own: Path, text: str) -> None:
    (own / "cluster" / "ours.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"\+cluster=ours: a configuration file leads back to itself"):
        compose(["+cluster=ours"])


def test_a_file_that_may_not_be_read_is_refused_without_a_traceback(own: Path, tmp_path: Path) -> None:
    path = own / "cluster" / "secret.yaml"
    path.write_text("name: secret\n")
    path.chmod(0)
    within = [] if os.geteuid() else ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--reuid=65534",
                                      "--clear-groups"]
    if within and subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("an ordinary user cannot be played here")
    open_to_all(own)
    done = subprocess.run([*within, sys.executable, "-m", "holmes_hpc.plan", "+cluster=secret"], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
                          capture_output=True, text=True, check=False)
    if "No module named" in done.stderr or "Permission denied: '/root" in done.stderr or "can't open" in done.stderr:
        pytest.skip("this Python cannot be run by an ordinary user")
    assert f"{path}: it may not be read" in done.stderr
    assert done.returncode == 2 and "Traceback" not in done.stderr
