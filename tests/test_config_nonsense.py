"""Nonsense is refused in a second, with the path of the setting and what would be right."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_hpc import registry
from holmes_hpc.config.check import check_value
from holmes_hpc.config.compose import compose, compose_sweep
from holmes_hpc.config.describe import Setting, item_schema, settings
from holmes_hpc.config.overrides import MOST_JOBS
from holmes_hpc.config.schema import Model, Root
from holmes_hpc.errors import ConfigurationError, PlanRefusedError
from holmes_hpc.planner import plan
from tests.runs_for_tests import ROOT

MIXED = ["+cluster=mixed"]
IB = "cluster.partitions.ib"
MOST_CPU_SECONDS = 3.0
"""A second on an idle machine; CPU time alone is counted, as the tests share theirs."""


def refused(function: Callable[[], object]) -> str:
    """Return the message with which something is refused, in time."""
    begin = time.process_time()
    with pytest.raises((ConfigurationError, PlanRefusedError)) as error:
        function()
    assert time.process_time() - begin < MOST_CPU_SECONDS
    return str(error.value)


@pytest.mark.parametrize(("override", "remedy"), [
    ("train.steps=9223372036854775808", "from 1 up to 1,000,000,000,000"), ("train.steps=" + "9" * 40, "from 1 up to"),
    ("train.seed=" + "9" * 30, "beyond 1e+18"), ("train.global_batch_size=1000000000", "up to 1,000,000"),
    ("train.validation_samples=" + "9" * 12, "up to 1,000,000"), ("train.checkpoint_every=" + "9" * 30, "beyond 1e+18"),
    ("train.timeout_seconds=1e308", "up to 1e+06"), ("train.timeout_seconds=inf", "a number"),
    ("model.num_layers=100000", "up to 1,024"), ("model.hidden_size=1000000000000", "up to 1,048,576"),
    ("model.vocab_size=" + "9" * 17, "up to 2,147,483,648"), ("model.sequence_length=1000000000", "up to 16,777,216"),
    ("model.num_heads=" + "9" * 30, "beyond"), (f"{IB}.ethernet_gbps=1e308", "from 1e-06 up to 100000"),
    (f"{IB}.ethernet_gbps=1e-308", "from 1e-06"), (f"{IB}.ethernet_gbps=nan", "a number"),
    (f"{IB}.nics_per_node=" + "9" * 25, "up to 256"), (f"{IB}.nodes=" + "9" * 25, "beyond"),
    (f"{IB}.cpus_per_task=" + "9" * 25, "beyond"), ("cluster.emulate.scale=1e308", "up to 1e+09"),
    ("+cluster.emulate.rates={ib: 1e308}", "beyond"), ("+cluster.emulate.rates={ib: 0}", "from 1e-06 up to 100000"),
    ("train.timeout_seconds=1e-300", "from 0.1 up to 1e+06"), ("optimizer.lr=1e-300", "from 1e-12"),
    ("train.profile_steps=[-1]", "from 1 up to"), ("launch.signal_seconds=65536", "from 1 up to 65,535"),
    ("train.profile_steps=[20,151]", "step 151 is not trained, as train.steps=150"), ("optimizer.lr=1e308", "beyond"),
    ("optimizer.lr=1e6", "up to 1000"), ("optimizer.min_lr=1e6", "up to 1000"),
    ("optimizer.epsilon=1000", "up to 1"), ("model.normalization_epsilon=1", "up to 0.1"),
    ("model.initialization_std=1000", "up to 10"), ("model.embedding_scale=1e6", "up to 10000"),
    ("model.attention_scale=1e6", "up to 10000"), ("optimizer.weight_decay=500", "optimizer.lr=0.002"),
    ("optimizer.weight_decay=1e300", "beyond"), ("parallel.bucket_mib=1e308", "up to 1e+06"),
    ("parallel.search_seconds=1e308", "beyond"), ("parallel.chunks=1024", "more stages than model.num_layers=4"),
    ("parallel.warmup_extra=100000000000", "0 to 65,536"),
    ("parallel.micro_batch_size=" + "9" * 20, "beyond"), ("parallel.alpha=1e308", "beyond"),
    ("launch.signal_seconds=" + "9" * 20, "beyond"), ("launch.gloo_threads=1000000000", "up to 1,024"),
    ("cluster.links=[{between: [ib, roce], bandwidth_gbps: 1e308}]", "up to 100000"),
    ("cluster.links=[{between: [ib, roce], latency_us: 1e300}]", "beyond"),
])
def test_numbers_that_nobody_means_are_refused_with_their_limits(override: str, remedy: str) -> None:
    key = override.partition("=")[0].lstrip("+")
    message = refused(lambda: compose([*MIXED, override]))
    assert key in message and remedy in message


def numeric_settings(schema: object = Root, path: str = "") -> Iterator[Setting]:
    """Yield every setting of the schema that is a number, or has several."""
    for each in settings(schema, path).values():
        inner = each.kind if dataclasses.is_dataclass(each.kind) else item_schema(each.kind)
        if inner is not None:
            yield from numeric_settings(inner, f"{each.path}.")
        elif {int, float} & {each.kind, *typing.get_args(each.kind)}:
            yield each


NUMERIC = {each.path: each for each in numeric_settings()}


def test_the_numeric_settings_were_found() -> None:
    assert len(NUMERIC) > 65 and {"train.timeout_seconds", "cluster.partitions.nodes", "cluster.emulate.rates",
                                  "data.sources.weight", "train.profile_ranks"} <= NUMERIC.keys()


@pytest.mark.parametrize("path", NUMERIC)
def test_every_number_has_limits_and_what_is_beyond_them_is_refused_with_both(path: str) -> None:
    each = NUMERIC[path]
    limits, is_whole = each.metadata, int in {each.kind, *typing.get_args(each.kind)}
    least, most = limits["minimum"], limits.get("maximum", limits.get("below"))
    numbers = [least - 1, most * 2 + 1, -1e300, 1e300, 10**40, -10**40]
    if not is_whole:
        numbers += [math.nan, math.inf, -math.inf, least / 2 if least else -1e-300]
        assert least == 0 or least >= 1e-30, "a number that stands for nothing"
    for number in numbers:
        value = int(number) if is_whole else number
        several = typing.get_origin(each.kind)
        with pytest.raises(ConfigurationError) as error:
            check_value([value] if several is list else {"a": value} if several is dict else value, each)
        message = str(error.value)
        assert message.startswith(path) and " from " in message and ("up to" in message or "below" in message), message
    good: list[Any] = [least, *([most] if "maximum" in limits else [])]
    for number in good:
        value = int(number) if is_whole else number
        several = typing.get_origin(each.kind)
        check_value([value] if several is list else {"a": value} if several is dict else value, each)


@pytest.mark.parametrize(("override", "remedy"), [
    ("parallel=[holmes,megatron]", "-m parallel=holmes,megatron"), ("parallel=[a,b]", "one option of parallel"),
    ("+cluster=[mixed,ib]", "-m +cluster=mixed,ib"), ("model=[]", "one option of model"),
    ("cluster.partitions={}", "~cluster.partitions.NAME"), ("+cluster.partitions={}", "~cluster.partitions.NAME"),
    ("~cluster.partitions", "is needed"), ("parallel=glob(zzz)", "-m"), ("parallel=choice(holmes)", "-m"),
])
def test_options_and_mappings_that_say_nothing(override: str, remedy: str) -> None:
    others = [] if "cluster=" in override else MIXED
    message = refused(lambda: compose([*others, override]))
    assert message.startswith(override) and remedy in message


@pytest.mark.parametrize(("override", "remedy"), [
    ("parallel=[holmes,megatron]", "-m parallel=holmes,megatron"), ("parallel=glob(zzz)", "Valid: auto"),
    ("train.seed=range(0,100000000)", f"at most {MOST_JOBS:,} jobs"),
    ("train.seed=range(0,1e18)", f"{MOST_JOBS:,} jobs"),
    ("train.seed=range(0,1000,0)", "Write range(first, end, step)"), ("train.seed=range(5,5)", "no values"),
    ("train.seed=interval(0,1)", "list the values"), ("train.seed=choice()", "cannot read"),
    ("parallel=holmes,nonsense", "parallel has no option nonsense"), ("train.steps=1,0", "train.steps=0"),
    ("cluster.partitions={},{}", "changes nothing"), ("model.num_layers=4,100000", "up to 1,024"),
    ("plugins=[os],[re]", "plugins.0=os"),
])
def test_sweeps_over_nonsense_are_refused_before_the_first_job(override: str, remedy: str) -> None:
    message = refused(lambda: compose_sweep([*MIXED, override]))
    assert override.partition("=")[0] in message and remedy in message


def test_the_product_of_sweeps_is_bounded_too() -> None:
    message = refused(lambda: compose_sweep([*MIXED, "train.seed=range(0,900)", "train.steps=range(1,900)"]))
    assert message.startswith("train.seed: ") and "809,100 jobs" in message
    assert len(compose_sweep([*MIXED, "train.seed=range(0,4)", "train.steps=1,2"])) == 8


@pytest.mark.parametrize("entry", ["os", "os.path", "antigravity", "json", "numpy", "holmes_hpc.train",
                                   "holmes_hpc.extend", "nothing.py"])
def test_plugins_that_add_nothing_are_refused(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing.py").write_text("VALUE = 3\n")
    before = "antigravity" in sys.modules
    message = refused(lambda: compose([*MIXED, f"plugins=[{entry}]"]))
    assert message.startswith(f"plugins.0={entry}: ") and "adds nothing" in message and "holmes_hpc.extend" in message
    assert ("antigravity" in sys.modules) == before  # which opens a browser


@pytest.mark.parametrize("entry", ["..", ".mine", "a..b", "a b", "mine.kinds.", ""])
def test_plugins_that_are_no_names_of_modules_are_said_to_be_none(entry: str) -> None:
    message = refused(lambda: compose([*MIXED, f"plugins=['{entry}']"]))
    assert "no name of a module" in message and "importlib" not in message, message


@pytest.fixture(name="registries")
def restored_registries() -> Iterator[None]:
    """Take back what plug-ins of a test add."""
    before = {name: dict(each) for name, each in registry.ALL.items()}
    yield
    for name, entries in before.items():
        registry.ALL[name].replace_all(entries)


@pytest.mark.usefixtures("registries")
def test_plugins_that_add_something_are_loaded_as_often_as_one_likes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from holmes_hpc.extend import add_nic\n"
                    "add_nic('nonsense100', family='roce', bandwidth_gbps=100, latency_us=2)\n")
    other = tmp_path / "other.py"
    other.write_text("from holmes_hpc import extend\n")  # adds only under some circumstances
    for _ in range(2):
        config = compose([*MIXED, f"plugins=[{path}, {path}, {other}]", f"{IB}.nic=hdr200"])
        assert list(config.plugins) == [str(path), str(path), str(other)]
        assert registry.NICS["nonsense100"].bandwidth_gbps == 100


BOMB = "name: ours\nx0: &x0 [a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 12))
MERGES = "name: ours\nm0: &m0 {a: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 12))


BAD_FILES = [
    (BOMB, "with its aliases the file has"), (MERGES, "with its aliases the file has"),
    ("name: ours\npartitions: " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply"),
    ("name: ours\npartitions: " + "{a: " * 5000 + "}" * 5000 + "\n", "nested too deeply"),
    ("name: ours\n# " + "x" * (2 << 20) + "\n", "bytes, and a configuration file at most"),
    ("name: ours\npartitions: {}\n", "no label"), ("name: ours\npartitions:\n", "cluster.partitions"),
    ("name: ours\npartitions: {a: {}, b: }\n", "the label b"), ("name: ours\npartitions: []\n", "no mapping"),
    ("name: ours\nnodes: 0\n", "cluster.nodes=0"),
]
NAMES = ["bomb", "merges", "lists", "mappings", "large", "no label", "null", "empty label", "list", "no nodes"]
LARGE = NAMES.index("large")
"""Long comments alone, which do no harm in a file that another one takes in."""


@pytest.mark.parametrize(("how", "text", "message"), [
    pytest.param(how, *BAD_FILES[number], id=f"{how}-{name}")
    for how in ("named", "in defaults") for number, name in enumerate(NAMES)
    if how == "named" or number != LARGE])
def test_files_that_are_bombs_or_empty_are_refused_by_their_path(how: str, text: str, message: str, tmp_path: Path
                                                                 ) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "ours.yaml").write_text(text)
    (folder / "other.yaml").write_text("defaults: [ours]\n")
    name = "ours" if how == "named" else "other"
    found = refused(lambda: compose([f"hydra.searchpath=[{tmp_path}]", f"+cluster={name}"]))
    if how == "named":
        assert message in found
    assert any(name in found for name in ("ours.yaml", "cluster.nodes", "other", "cluster.partitions"))
    assert "\n" not in found


@pytest.mark.parametrize("override", [
    "parallel.pipelines=" + "[" * 3000, "parallel.pipelines=" + "[" * 3000 + "]" * 3000,
    "launch.setup=" + "[" * 3000 + "]" * 3000, "+launch.sbatch=" + "{a: " * 2000 + "}" * 2000, "run.name=" + "[" * 99,
    "train.steps=" + "(" * 3000, "cluster.links=" + "[" * 3000,
], ids=lambda text: text[:24])
def test_overrides_of_brackets_end_in_one_short_message_or_are_text(override: str) -> None:
    begin = time.process_time()
    try:
        compose([*MIXED, override])
    except ConfigurationError as error:
        assert len(str(error)) < 1000 and override.partition("=")[0].lstrip("+") in str(error)
    assert time.process_time() - begin < MOST_CPU_SECONDS


@pytest.mark.parametrize(("overrides", "named", "unnamed"), [
    (["parallel=megatron", "parallel.data=1", "model.num_layers=2"], ["parallel.data=1", "model.num_layers"],
     ["parallel.pipeline", "parallel.chunks", "parallel.tensor"]),
    (["parallel=holmes", "parallel.chunks=2", "parallel.schedule=interleaved", "model.num_layers=3"],
     ["parallel.chunks=2", "model.num_layers"], ["parallel.pipeline", "parallel.data"]),
    (["parallel=holmes", "model.num_layers=1"], ["model.num_layers"], ["parallel."]),
    (["model.num_layers=1", "train.global_batch_size=1"], ["train.global_batch_size"], ["parallel.pipeline"]),
    (["parallel=holmes", "train.global_batch_size=1", "parallel.chunks=2", "parallel.schedule=interleaved",
      "model.num_layers=4"], ["train.global_batch_size"], ["Lower parallel.pipeline", "stages need"]),
    (["parallel.chunks=2", "parallel.schedule=interleaved", "train.global_batch_size=1", "model.num_layers=2"],
     ["train.global_batch_size"], ["Lower parallel.pipeline", "stages need"]),
])
def test_a_refused_plan_names_what_was_set(overrides: list[str], named: list[str], unnamed: list[str]) -> None:
    config = compose([*MIXED, *overrides])
    with pytest.raises(PlanRefusedError) as error:
        plan(config)
    message = str(error.value)
    assert all(word in message for word in named), message
    assert not any(word in message for word in unnamed), message


def test_the_shipped_files_are_far_from_the_limits() -> None:
    models = sorted((ROOT / "conf" / "model").glob("*.yaml"))
    assert len(models) > 5
    defaults = compose(MIXED).model
    for path in models:
        for name, value in {**defaults, **yaml.safe_load(path.read_text())}.items():
            if isinstance(value, int) and not isinstance(value, bool):
                limit = next(each for each in dataclasses.fields(Model) if each.name == name).metadata.get("maximum")
                assert limit is None or 4 * value <= limit, f"{path.stem}: {name}={value} of at most {limit}"


def test_ranks_that_are_not_there_are_not_to_be_profiled() -> None:
    compose([*MIXED, "train.profile_ranks=[7]", "train.profile_steps=[2]"])
    message = refused(lambda: compose([*MIXED, "train.profile_ranks=[0,8]", "train.profile_steps=[2]"]))
    assert "there is no rank 8" in message and "ranks 0 to 7" in message
