"""Every example of docs/extending.md does what the page says, and faulty plug-ins are refused with their place."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from omegaconf import OmegaConf

from holmes_hpc import registry
from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import Machine, read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.config.plugins import load_plugins
from holmes_hpc.data import open_dataset
from holmes_hpc.errors import ConfigurationError, DataError, HolmesError, PlanRefusedError
from holmes_hpc.metrics.trackers import Trackers
from holmes_hpc.model import build_stage
from holmes_hpc.planner import plan
from holmes_hpc.planner.megatron_export import export
from holmes_hpc.values.trackers import TrackedRun
from tests.runs_for_tests import ROOT, environment, train

EXAMPLES = ROOT / "docs" / "examples"
CONF = f"hydra.searchpath=[{EXAMPLES / 'conf'}]"
PLUGINS = sorted((EXAMPLES / "plugins").glob("*.py"))


def plugin(name: str) -> str:
    return f"plugins=[{EXAMPLES / 'plugins' / name}]"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = {name: dict(each) for name, each in registry.ALL.items()}
    modules = set(sys.modules)
    yield
    for name, entries in before.items():
        registry.ALL[name].replace_all(entries)
    for name in set(sys.modules) - modules:
        if name.startswith("holmes_hpc_plugin_"):
            del sys.modules[name]


def test_the_page_shows_the_files() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    shown = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL))
    files = {str(path.relative_to(EXAMPLES)): path.read_text() for path in EXAMPLES.rglob("*.*")
             if path.suffix in (".py", ".yaml") and path.name != "gpt_relu2.yaml"}
    assert shown == files


@pytest.mark.parametrize(("setting", "valid"), [("model.activation=relu2", "gelu or swiglu"),
                                                ("model.normalization=absnorm", "layernorm or rmsnorm")])
def test_megatron_is_not_told_another_model(setting: str, valid: str) -> None:
    config = compose(["+cluster=mixed", plugin("blocks.py"), setting])
    with pytest.raises(PlanRefusedError, match=rf"output=megatron: {setting}: .*Set it to {valid}\."):
        export(config, read_cluster(config.cluster))


def test_plug_ins_load_no_torch() -> None:
    paths = ",".join(str(path) for path in PLUGINS)
    code = (f"from holmes_hpc.config.compose import compose; compose(['+cluster=mixed', 'plugins=[{paths}]'])\n"
            "import sys; print(sum(name.startswith('holmes_hpc_plugin_') for name in sys.modules), "
            "'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment(),
                          timeout=60)
    assert done.stdout.split() == [str(len(PLUGINS)), "False"], done.stderr


def test_a_model_is_a_file() -> None:
    config = compose(["+cluster=mixed", "model=llama_nano", CONF])
    architecture = Architecture.from_config(config.model)
    head, table, norms = 2 * 64 * 64 + 2 * 64 * 32, 256 * 64, 2 * 64
    assert architecture.parameter_count() == 2 * table + 64 + 4 * (head + 3 * 64 * 176 + norms)
    assert plan(config, mode="slurm").num_layers == 4


def test_an_activation_and_a_normalisation() -> None:
    config = compose(["+cluster=mixed", "model=gpt_relu2", CONF, plugin("blocks.py")])
    architecture = Architecture.from_config(config.model)
    stage = build_stage(architecture, 0, 4, first=True, last=True, seed=1)
    named = {name: tuple(each.shape) for name, each in stage.named_parameters()}
    assert named == {info.name: info.shape for info in architecture.parameters()}
    assert "layers.0.attention_norm.bias" not in named, "absnorm has none, although model.bias is true"
    layer = stage.layers["0"].feed_forward
    x = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1))
    inner = torch.nn.functional.linear(x, layer.up.weight, layer.up.bias).clamp(min=0) ** 2
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(inner, layer.down.weight, layer.down.bias))
    normed = stage.head.norm(x)
    torch.testing.assert_close(normed.abs().mean(-1), torch.ones(2, 3), rtol=1e-4, atol=1e-4)


def test_a_gated_activation_has_a_third_matrix(tmp_path: Path) -> None:
    module = tmp_path / "geglu.py"
    module.write_text("from holmes_hpc import extend\n"
                      "def gelu(x):\n    import torch\n    return torch.nn.functional.gelu(x)\n"
                      "extend.add_activation('geglu', gelu, gated=True)\n")
    config = compose(["+cluster=mixed", f"plugins=[{module}]", "model.activation=geglu", "model=gpt_tiny"])
    architecture = Architecture.from_config(config.model)
    stage = build_stage(architecture, 0, 4, first=True, last=True, seed=1, device="meta")
    assert {name for name, _ in stage.named_parameters()} == {info.name for info in architecture.parameters()}
    swiglu = Architecture.from_config(compose(["+cluster=mixed", "model.activation=swiglu"]).model)
    assert architecture.model_flops_per_sample() == swiglu.model_flops_per_sample()
    assert plan(config, mode="slurm").world_size == 8


def test_a_strategy() -> None:
    made = plan(compose(["+cluster=mixed", plugin("by_node.py"), "parallel.strategy=by_node"]), mode="slurm")
    assert made.strategy == "by_node"
    nodes = {place.rank: place.slot for place in made.ranks}
    for pipeline in made.pipelines:
        assert [nodes[stage.ranks[0]] for stage in pipeline.stages] == ["ib/0", "ib/1", "roce/0", "roce/1"]
    with pytest.raises(PlanRefusedError, match=r"by_node: parallel.pipeline=3.*Set it to 4"):
        plan(compose(["+cluster=mixed", plugin("by_node.py"), "parallel.strategy=by_node", "parallel.pipeline=3"]))


def test_auto_compares_an_added_strategy() -> None:
    made = plan(compose(["+cluster=mixed", plugin("by_node.py")]), mode="slurm")
    assert "by_node" in {made.strategy, *(each.strategy for each in made.rejected)}


@pytest.mark.parametrize(("stages", "words"), [
    ("(((0,), (1,)), ((2,), (2,)))", "each of 0 to 7 must be in one"),
    ("tuple(((r, r + 4),) for r in range(4))", "here of 1 rank, and it has parts of 2"),
    ("()", "must be in one"),
])
def test_a_strategy_that_proposes_no_layout_is_refused(tmp_path: Path, stages: str, words: str) -> None:
    module = tmp_path / "wrong.py"
    module.write_text("from holmes_hpc import extend\n"
                      f"extend.add_strategy('wrong', lambda task, tensor: [extend.Shape('wrong', 'w', {stages}, "
                      "extend.GroupRules())])\n")
    with pytest.raises(PlanRefusedError, match=f"strategy wrong, 'w': .*{words}.*Mend the plug-in"):
        plan(compose(["+cluster=mixed", f"plugins=[{module}]", "parallel.strategy=wrong"]), mode="slurm")


def test_a_nic_kind() -> None:
    config = compose(["+cluster=next_year", CONF, plugin("new_nic.py")])
    cluster = read_cluster(config.cluster)
    machine = Machine.described(cluster)
    new = [node for node in cluster.nodes if node.label == "new"]
    assert new[0].network == "ib"
    assert machine.node_bandwidth_gbps(new[0], "ib") == 4 * 1600
    assert machine.link("ib", new[0], new[1]).latency_us == 1.0
    registry.NICS.replace_all({})
    with pytest.raises(ConfigurationError, match=r"partitions\.new\.nic: unknown NIC kind 'xdr1600'"):
        read_cluster(config.cluster)


def genome(folder: Path) -> Path:
    path = folder / "genome.fa"
    path.write_text(">one\nACGTN\nacgtx\n" + "ACGGT\n" * 600)
    return path


def test_a_dataset(tmp_path: Path) -> None:
    config = compose(["+cluster=mixed", plugin("fasta.py"), "data.name=fasta", f"data.path={genome(tmp_path)}",
                      "model.vocab_size=8", "model.sequence_length=16"])
    dataset = open_dataset(config.data, Architecture.from_config(config.model))
    source = dataset.sources[0]
    assert len(source.training) + len(source.validation) == 3010
    assert source.training[:10].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    tokens, targets = dataset.train_batch(1, 1, 0, 4, 4)
    assert tokens.shape == (4, 16) and int(tokens.max()) < 5 and torch.equal(tokens[:, 1:], targets[:, :-1])
    mixed = compose(["+cluster=mixed", plugin("fasta.py"), "data=mixture",
                     f"data.sources=[{{name: fasta, path: {genome(tmp_path)}}}, {{name: python_docs}}]"])
    assert len(open_dataset(mixed.data, Architecture.from_config(mixed.model)).sources) == 2
    with pytest.raises(ConfigurationError, match=r"data=fasta needs data\.path|data\.name=fasta|needs data\.path"):
        compose(["+cluster=mixed", plugin("fasta.py"), "data.name=fasta"])
    with pytest.raises(DataError, match="vocabulary of 5 tokens"):
        small = compose(["+cluster=mixed", plugin("fasta.py"), "data.name=fasta", f"data.path={genome(tmp_path)}",
                         "model.vocab_size=4", "model.sequence_length=16"])
        open_dataset(small.data, Architecture.from_config(small.model))


@pytest.mark.parametrize(("body", "words"), [
    ("lambda settings: [1, 2]", "returned list"),
    ("lambda settings: numpy.zeros((3, 4), dtype=int)", r"returned int64 of shape \(3, 4\)"),
    ("lambda settings: numpy.zeros(9)", "returned float64"),
    ("lambda settings: 1 / 0", "failed: ZeroDivisionError"),
])
def test_a_dataset_that_reads_no_tokens_is_refused(tmp_path: Path, body: str, words: str) -> None:
    module = tmp_path / "wrong_data.py"
    module.write_text(f"import numpy\nfrom holmes_hpc import extend\nextend.add_source('wrong_data', {body})\n")
    config = compose(["+cluster=mixed", f"plugins=[{module}]", "data.name=wrong_data"])
    with pytest.raises(DataError, match=words):
        open_dataset(config.data, Architecture.from_config(config.model))


@pytest.mark.parametrize(("text", "words"), [
    ("import nothing_of_that_name", r"line 1: ModuleNotFoundError.*Install it on every node"),
    ("raise SystemExit(0)", r"broken\.py, line 1: SystemExit: 0\. Mend it there"),
    ("x = 1\ndef (", r"broken\.py, line 2: SyntaxError"),
    ("x = 1\ny = 1 / 0\n", r"broken\.py, line 2: ZeroDivisionError: division by zero\. Mend it there"),
    ("from holmes_hpc import extend\nextend.add_activation('gelu', abs)", "the activation 'gelu' is built in"),
    ("from holmes_hpc import extend\nextend.add_nic('hdr200', family='ib', bandwidth_gbps=1, latency_us=1)",
     "the NIC kind 'hdr200' is built in"),
    ("from holmes_hpc import extend\nextend.add_nic('n', family='inf', bandwidth_gbps=1, latency_us=1)",
     "the NIC kind 'n': unknown NIC family 'inf'"),
    ("from holmes_hpc import extend\nextend.add_strategy('My Way', abs)", "a name is lower-case letters"),
])
def test_faulty_plug_ins_are_refused_and_leave_nothing(tmp_path: Path, text: str, words: str) -> None:
    module = tmp_path / "broken.py"
    module.write_text(f"{text}\n")
    with pytest.raises(ConfigurationError, match=rf"plugins\.0=.*{words}"):
        compose(["+cluster=mixed", f"plugins=[{module}]"])
    assert not any(registry.ALL.values())
    module.write_text("from holmes_hpc import extend\nextend.add_activation('again', abs)\n")
    assert compose(["+cluster=mixed", f"plugins=[{module}]", "model.activation=again"]).model.activation == "again"


def test_two_plug_ins_of_one_name_and_missing_ones(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("from holmes_hpc import extend\n"
                                             "extend.add_activation('same', lambda x: x)\n")
    with pytest.raises(ConfigurationError, match=r"plugins\.1=.*'same' was added before, by another plug-in"):
        compose(["+cluster=mixed", f"plugins=[{tmp_path / 'one.py'},{tmp_path / 'two.py'}]"])
    with pytest.raises(ConfigurationError, match=r"plugins\.0=.*three\.py: no such file"):
        compose(["+cluster=mixed", f"plugins=[{tmp_path / 'three.py'}]"])
    with pytest.raises(ConfigurationError, match=r"plugins\.0=no\.such: .*No module named 'no'"):
        compose(["+cluster=mixed", "plugins=[no.such]"])
    with pytest.raises(ConfigurationError, match=r"model\.activation=relu2: .*one of gelu, gelu_tanh, swiglu"):
        compose(["+cluster=mixed", "model.activation=relu2"])


def test_paths_become_absolute_and_ranks_can_load_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES / "plugins")
    config = compose(["+cluster=mixed", "plugins=[blocks.py]", "model.activation=relu2"])
    assert list(config.plugins) == [str(EXAMPLES / "plugins" / "blocks.py")]
    text = OmegaConf.to_yaml(config)
    for each in registry.ALL.values():
        each.replace_all({})
    for name in [name for name in sys.modules if name.startswith("holmes_hpc_plugin_blocks")]:
        del sys.modules[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HolmesError, match="needs its module in `plugins`"):
        _ = Architecture.from_config(config.model).gated
    load_plugins(OmegaConf.create(text))
    assert not Architecture.from_config(config.model).gated


@pytest.mark.emulated
def test_all_of_it_in_one_run(tmp_path: Path) -> None:
    paths = ",".join(str(path) for path in PLUGINS)
    done = train(tmp_path, [
        "+cluster=next_year", "cluster.partitions.new.gpus_per_node=1", "cluster.partitions.old.gpus_per_node=1",
        "model=gpt_relu2", CONF, f"plugins=[{paths}]", "parallel.strategy=by_node", "data.name=fasta",
        f"data.path={genome(tmp_path)}", "model.vocab_size=8", "model.hidden_size=32", "model.sequence_length=16",
        "train.global_batch_size=4", "parallel.micro_batch_size=1", "train.steps=3", "launch.mode=local",
    ])
    assert done.plan["strategy"] == "by_node" and len(done.plan["pipelines"][0]["stages"]) == 3
    assert done.rows[-1]["step"] == 3 and 0 < done.rows[-1]["loss"] < 2 * numpy.log(8)


def a_run(folder: Path) -> TrackedRun:
    return TrackedRun("mixed", folder, {}, cast(Any, None))


class Kept:
    """A tracker that keeps what it is given, and raises or waits where it is told to."""

    def __init__(self, wrong: tuple[int, ...] = (), wait: threading.Event | None = None) -> None:
        self.rows: list[Any] = []
        self.closed = False
        self._wrong, self._wait = wrong, wait

    def add(self, row: Any) -> None:
        if self._wait is not None:
            self._wait.wait()
        if row["step"] in self._wrong:
            raise ConnectionError(f"no server at step {row['step']}\nsecond line")
        self.rows.append(row)

    def close(self) -> None:
        self.closed = True


def test_trackers_get_all_rows_in_order_and_say_a_trouble_once(tmp_path: Path) -> None:
    said: list[str] = []
    good, bad = Kept(), Kept(wrong=(2, 3))
    with Trackers({"good": lambda run: good, "bad": lambda run: bad}, a_run(tmp_path), said.append) as trackers:
        for step in range(1, 6):
            trackers.add({"step": step, "loss": float("nan")})
    assert good.rows == [{"step": step, "loss": None} for step in range(1, 6)] and good.closed
    assert [row["step"] for row in bad.rows] == [1, 4, 5] and bad.closed
    (text,) = said
    assert re.fullmatch(r"WARNING: the tracker bad: ConnectionError: no server at step 2 \(.*test_extending.py, line "
                        r"\d+\); rows of it may be missing, and training goes on", text)


def test_a_tracker_that_cannot_be_opened_harms_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    good = Kept()

    def refuses(run: TrackedRun) -> Kept:
        raise SystemExit("not logged in")

    with Trackers({"bad": refuses, "good": lambda run: good}, a_run(tmp_path), said.append) as trackers:
        trackers.add({"step": 1})
    assert [row["step"] for row in good.rows] == [1]
    assert len(said) == 1 and "the tracker bad: it cannot be opened: SystemExit: not logged in" in said[0]


@pytest.mark.parametrize("returned", [None, 3, "loss.txt", object(), SimpleNamespace(add=[1], close=print), {}])
def test_a_tracker_that_takes_no_rows_is_refused_when_it_is_opened(tmp_path: Path, returned: object) -> None:
    """And not at each row, or with the first step alone."""
    good, said = Kept(), list[str]()
    with Trackers({"bad": lambda run: returned, "good": lambda run: good}, a_run(tmp_path), said.append) as trackers:
        for step in (1, 2):
            trackers.add({"step": step})
    assert [row["step"] for row in good.rows] == [1, 2]
    assert len(said) == 1 and said[0].startswith("WARNING: the tracker bad: it cannot be opened: TypeError: what it "
                                                 f"returned, {type(returned).__name__}, has no add(row)")


def test_a_tracker_need_not_close(tmp_path: Path) -> None:
    rows, said = list[Any](), list[str]()
    with Trackers({"bare": lambda run: SimpleNamespace(add=rows.append)}, a_run(tmp_path), said.append) as trackers:
        trackers.add({"step": 1})
    assert rows == [{"step": 1}] and not said


def test_no_step_waits_for_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holmes_hpc.metrics.trackers.MOST_WAITING", 5)
    said: list[str] = []
    go_on = threading.Event()
    stuck, good = Kept(wait=go_on), Kept()
    trackers = Trackers({"stuck": lambda run: stuck, "good": lambda run: good}, a_run(tmp_path), said.append)
    for step in range(20):
        trackers.add({"step": step})
        while len(good.rows) <= step:
            time.sleep(0.001)
    assert len(said) == 1 and "the tracker stuck: it is slower than the training, and 5 rows wait" in said[0]
    trackers.close(seconds=0.1)
    assert good.closed and not stuck.closed and len(said) == 1
    go_on.set()


def test_a_tracker_that_does_not_end_is_left(tmp_path: Path) -> None:
    said: list[str] = []
    go_on = threading.Event()
    trackers = Trackers({"stuck": lambda run: Kept(wait=go_on)}, a_run(tmp_path), said.append)
    trackers.add({"step": 1})
    trackers.close(seconds=0.1)
    assert len(said) == 1 and "the tracker stuck: it did not end within 0.1 s" in said[0]
    go_on.set()


def test_a_tracker_of_a_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("from holmes_hpc import extend\n"
                      "class Broken:\n"
                      "    def add(self, row):\n        raise OSError('no network')\n"
                      "    def close(self):\n        pass\n"
                      "extend.add_tracker('broken', lambda run: Broken())\n")
    both = f"plugins=[{EXAMPLES / 'plugins' / 'loss_file.py'},{broken}]"
    done = train(tmp_path, ["+cluster=laptop", "launch.mode=local", "train.steps=6", "train.validate_every=0",
                            "train.timeline_every=0", both, "run.trackers=[loss_file,broken]"])
    rows = done.rows
    assert (done.folder / "loss.txt").read_text() == "".join(f"{row['step']} {row['loss']}\n" for row in rows)
    assert [row["step"] for row in rows] == list(range(1, 7))
    text = "".join(path.read_text() for path in (done.folder / "logs").iterdir())
    assert text.count("the tracker broken: OSError: no network") == 1


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no such tracker\. Valid: tensorboard, wandb, mlflow; one of"):
        compose(["+cluster=mixed", "run.trackers=[loss_file]"])
    assert compose(["+cluster=mixed", plugin("loss_file.py"), "run.trackers=[loss_file]"]).run.trackers == ["loss_file"]
