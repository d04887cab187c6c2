"""Text settings hold the text that was written, in files and on the command line; what leads nowhere is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from holmes_hpc.config.compose import compose, compose_sweep
from holmes_hpc.config.written_overrides import as_written, corrected
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.submit.components import job_components

WORDS = ["no", "off", "yes", "on", "true", "False", "1e5", "5e10", "3.10", "2026_11_30", "0x10", "010", "0o7", "1_000",
         ".5", "1.", "12:00", "2026-11-30", "inf", ".nan", "NaN", "+5", "-1", "1e400", "0b11", "n", "y"]
MIXED = ["+cluster=mixed"]
IB = "cluster.partitions.ib"


@pytest.fixture(name="site")
def site_folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster").mkdir()
    return tmp_path


def composed(site: Path, text: str, *overrides: str, name: str = "ours") -> object:
    (site / "cluster" / f"{name}.yaml").write_text(text)
    return compose([f"hydra.searchpath=[{site}]", f"+cluster={name}", *overrides])


def test_words_of_a_cluster_file_stay_as_they_are_written(site: Path) -> None:
    labels = "".join(f"  p{place}: {{partition: {word}, qos: {word}, exclude: {word}, account: {word}, "
                     f"interface: {word}, sbatch: {{comment: {word}}}, time_limit: 12:00:00, nodes: 2, "
                     "ethernet_gbps: 1e2}\n" for place, word in enumerate(WORDS))
    features = ", ".join(f"{word}: ib" for word in WORDS)
    cluster = composed(site, f"name: x\nfeatures: {{{features}}}\npartitions:\n{labels}").cluster
    assert list(cluster.features) == WORDS
    for part, word in zip(cluster.partitions.values(), WORDS, strict=True):
        assert [part.partition, part.qos, part.exclude, part.account, part.interface] == [word] * 5
        flag = {"true": True}.get(word, word)  # as in {exclusive: true}
        assert part.sbatch.comment == flag and type(part.sbatch.comment) is type(flag)
        assert (part.time_limit, part.nodes, part.ethernet_gbps) == ("12:00:00", 2, 100.0)


def test_words_of_overrides_stay_as_they_are_written(site: Path) -> None:
    labels = ", ".join(f"p{place}: {{nodes: 1}}" for place in range(len(WORDS)))
    setup = [line for word in WORDS for line in (word, f"echo {word}")]
    config = composed(site, f"name: x\npartitions: {{{labels}}}\n", f"launch.setup=[{', '.join(setup)}]", *(
        override for place, word in enumerate(WORDS) for override in (
            f"cluster.partitions.p{place}.account={word}", f"cluster.partitions.p{place}.partition={word}",
            f"+launch.sbatch.option{place}={word}",
            f"+cluster.partitions.p{place}.sbatch={{comment: {word}, exclusive: true, mem: 0}}")))
    assert list(config.launch.setup) == setup
    for place, word in enumerate(WORDS):
        part = config.cluster.partitions[f"p{place}"]
        assert (part.account, part.partition) == (word, word)
        flag = {"true": True, "False": False}.get(word, word)
        assert config.launch.sbatch[f"option{place}"] == flag
        assert dict(part.sbatch) == {"comment": flag, "exclusive": True, "mem": "0"}


NAMES = [word for word in WORDS if word[0] not in "+-." and ":" not in word]


@pytest.mark.parametrize("word", NAMES)
def test_names_of_runs_and_clusters_are_text_too(site: Path, word: str) -> None:
    config = composed(site, f"name: {word}\npartitions: {{{word}: {{nodes: 1}}}}\n", f"run.name={word}", name=word)
    assert config.run.name == config.cluster.name == word and list(config.cluster.partitions) == [word]


def test_names_of_the_runs_of_a_sweep_are_text_too() -> None:
    assert [job.run.name for job in compose_sweep([*MIXED, f"run.name={','.join(NAMES)}"])] == NAMES


def test_null_is_still_none(site: Path) -> None:
    config = composed(site, "name: x\npartitions: {a: {nodes: 1, account: null, qos: ~, exclude: }}\n",
                      "cluster.partitions.a.account=null")
    part = config.cluster.partitions.a
    assert part.account is part.qos is part.exclude is None


def test_numbers_and_truth_values_of_files_have_their_types(site: Path) -> None:
    (site / "experiment").mkdir()
    config = composed(site, "# @package _global_\ncluster:\n  name: ours\n  partitions: {a: {nodes: 1_0}}\n"
                            "  emulate: {rates: {ib: 1e-1}, scale: 3}\n"
                            "launch: {wait: no, requeue: off, dry_run: true,\n"
                            "         sbatch: {exclusive: true, mem: 0, nice: -5}}\n"
                            "parallel: {layer_split: [2, 2], warmup_extra: 1}\noptimizer: {epsilon: 1e-4}\n")
    assert (config.cluster.partitions.a.nodes, config.cluster.emulate.scale) == (10, 3.0)
    assert dict(config.cluster.emulate.rates) == {"ib": 0.1} and config.optimizer.epsilon == 1e-4
    assert (config.launch.wait, config.launch.requeue, config.launch.dry_run) == (False, False, True)
    assert dict(config.launch.sbatch) == {"exclusive": True, "mem": "0", "nice": "-5"}
    assert list(config.parallel.layer_split) == [2, 2] and config.parallel.warmup_extra == 1


def test_pipelines_of_a_file_have_numbers(site: Path) -> None:
    config = composed(site, "# @package _global_\ncluster: {name: x, partitions: {a: {nodes: 1, gpus_per_node: 2}}}\n"
                            "parallel:\n  strategy: manual\n  pipelines:\n  - microbatches: 8\n    stages:\n"
                            "    - {ranks: [0], layers: 2}\n    - {ranks: [1], layers: 2}\n")
    assert OmegaConf.to_container(config.parallel.pipelines) == [
        {"microbatches": 8, "stages": [{"ranks": [0], "layers": 2}, {"ranks": [1], "layers": 2}]}]


def test_the_text_reaches_sbatch_and_config_yaml() -> None:
    config = compose([*MIXED, f"{IB}.account=5e10", f"+{IB}.sbatch={{comment: 3.10}}", f"{IB}.exclude=1e5"])
    options = job_components(config.cluster, config.launch.sbatch)[0].options
    assert (options["account"], options["comment"], options["exclude"]) == ("5e10", "3.10", "1e5")
    again = OmegaConf.create(OmegaConf.to_yaml(config))  # as the ranks read it
    assert again == config


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="$"), min_size=1))
def test_config_yaml_gives_every_text_back(text: str) -> None:
    assert OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create({"a": text}))).a == text


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_quotes_give_hydra_every_text(text: str) -> None:
    (parsed,) = OverridesParser.create().parse_overrides([corrected(f"run.name={text}")])
    assert parsed.value() == text


@given(st.text("ab1.,:=~<|>[]{}()'\" -_/\\$%&*#;!?+e", min_size=1, max_size=12))
def test_quoting_twice_changes_nothing_and_what_is_read_is_what_was_written(text: str) -> None:
    for key in ("run.name", "launch.setup", "+launch.sbatch", "train.steps", "cluster", "data.sources"):
        once = as_written([f"{key}={text}"])
        assert as_written(once) == once
    (once,) = as_written([f"run.name={text}"])
    if "," in text or text[0] in "'\" " or text[-1] == " " or "${" in text or text.strip() == "" or "(" in text:
        return  # sweeps, quotes and functions of Hydra's own
    (parsed,) = OverridesParser.create().parse_overrides([once])
    assert parsed.value() == text


@pytest.mark.parametrize(("override", "path", "expected"), [
    ("run.folder=~/runs", "run.folder", "~/runs"),
    ("data.end_of_document=<|endoftext|>", "data.end_of_document", "<|endoftext|>"),
    (f"{IB}.constraint=[ib*2&roce*2]", f"{IB}.constraint", "[ib*2&roce*2]"),
    (f"{IB}.constraint=(ib|roce)&hdr200", f"{IB}.constraint", "(ib|roce)&hdr200"),
    (f"{IB}.exclude=n[1-3]", f"{IB}.exclude", "n[1-3]"),
    ("launch.setup=[module load cuda/12, export A=1, source ~/env.sh; true]", "launch.setup",
     ["module load cuda/12", "export A=1", "source ~/env.sh; true"]),
    ("+run.tracker_options={wandb: {mode: offline}}", "run.tracker_options", {"wandb": {"mode": "offline"}}),
    ("+run.tracker_options.wandb={tags: [a, b]}", "run.tracker_options.wandb", {"tags": ["a", "b"]}),
    ("launch.srun_args=[--mpi=none, --cpu-bind=map_cpu:0]", "launch.srun_args", ["--mpi=none", "--cpu-bind=map_cpu:0"]),
    ("run.name=a b", "run.name", "a b"),
    ("run.name=größer", "run.name", "größer"),
    ("launch.setup=[echo it's]", "launch.setup", ["echo it's"]),
    ("launch.setup=['a, b', \"c, d\"]", "launch.setup", ["a, b", "c, d"]),
])
def test_texts_need_no_quotes_of_hydra(override: str, path: str, expected: object) -> None:
    found = OmegaConf.select(compose([*MIXED, override]), path)
    assert (list(found) if isinstance(expected, list) else found) == expected


def test_paths_in_a_mixture_need_no_quotes() -> None:
    config = compose([*MIXED, "data=mixture", "data.sources=[{name: tokens, path: web.tokens, weight: 7}, "
                              "{name: text, path: ~/books, weight: 3}]"])
    assert [(source.path, source.weight) for source in config.data.sources] == [("web.tokens", 7.0), ("~/books", 3.0)]


def test_the_home_folder_is_known_in_the_search_path(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(site))
    (site / "mine" / "cluster").mkdir(parents=True)
    (site / "mine" / "cluster" / "ours.yaml").write_text("name: x\npartitions: {a: {nodes: 1}}\n")
    assert compose(["hydra.searchpath=[~/mine]", "+cluster=ours"]).cluster.name == "x"


@pytest.mark.parametrize(("override", "remedy"), [
    (f"{IB}.exclude=n[1-3],n5", f"'{IB}.exclude=\"n[1-3],n5\"'"),
    (f"{IB}.hca=mlx5_0,mlx5_1", f"'{IB}.hca=\"mlx5_0,mlx5_1\"'"),
    ("train.steps=<5>", "'train.steps=\"<5>\"'"),
])
def test_a_message_about_quotes_prints_the_override_that_works(override: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        compose([*MIXED, override])
    assert remedy in str(refused.value)


@pytest.mark.parametrize(("override", "path"), [
    ("launch.setup=[export A=${HOME}/x]", "launch.setup.0=export A=${HOME}/x"),
    ("launch.srun_args=[a, '--x=${HOME}']", "launch.srun_args.1=--x=${HOME}"),
    ("+launch.sbatch.comment=${HOME}", "launch.sbatch.comment=${HOME}"),
    (f"+{IB}.sbatch.comment=${{USER}}", f"{IB}.sbatch.comment=${{USER}}"),
    ("launch.setup=['echo ${HOME:-x}']", "launch.setup.0="), ("launch.setup=['echo ${A%%.*}']", "launch.setup.0="),
    ("run.folder=${HOME}/runs", "run.folder=${HOME}/runs"), ("launch.container_args=['${']", "launch.container_args="),
    ("data.path=${DATA}/x", "data.path=${DATA}/x"), ("run.folder=${oc.env:NO_SUCH_VARIABLE}", "run.folder="),
    ("run.name=${run.name}", "run.name="), ("plugins=['${HOME}/a.py']", "plugins.0=${HOME}/a.py"),
])
def test_a_variable_of_a_shell_is_one_message_with_the_ways_to_write_it(override: str, path: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        compose([*MIXED, override])
    message = str(refused.value)
    assert message.startswith(path) and "\n" not in message
    for way in ("\\${NAME}", "$NAME", "${oc.env:NAME}"):
        assert way in message


@pytest.mark.parametrize("override", ["launch.container_args=['${']", "launch.setup=[export A=${HOME}/x]"])
def test_causes_that_lead_back_to_their_error_end(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OmegaConf names causes so under OC_CAUSE=1, as under any debugger: it took all memory, without an end."""
    with pytest.raises(ConfigurationError) as plain:
        compose([*MIXED, override])
    monkeypatch.setenv("OC_CAUSE", "1")
    with pytest.raises(ConfigurationError) as refused:
        compose([*MIXED, override])
    assert str(refused.value) == str(plain.value)


def test_the_ways_that_the_message_names_work(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    monkeypatch.setenv("PLACE", "here")
    written = ["echo \\${HOME} $HOME ${oc.env:PLACE} ${run.folder}"]
    config = compose([*MIXED, f"launch.setup=[{written[0]}]"])
    assert list(config.launch.setup) == ["echo ${HOME} $HOME here runs"]
    config = composed(site, f"# @package _global_\ndefaults: [/cluster/mixed@cluster]\nlaunch:\n  setup:\n"
                            f"  - {written[0]}\n")
    assert list(config.launch.setup) == ["echo ${HOME} $HOME here runs"]


def test_yaml_is_as_before_when_nothing_is_composed() -> None:
    compose(MIXED)
    assert yaml.safe_load("a: no\nb: 1e5\nc: 3.10") == {"a": False, "b": "1e5", "c": 3.1}
