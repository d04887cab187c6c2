"""Disturbances on purpose: what a cluster file may say, what the simulator makes of it, and how ranks slow down."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from analysis.disturbed import disturbed_table, spans
from analysis.printing import print_disturbed
from analysis.reading import read_runs
from holmes_hpc.cluster import Machine, read_cluster
from holmes_hpc.cluster.disturbed import at_step
from holmes_hpc.config.compose import compose
from holmes_hpc.config.places import text_to_keep
from holmes_hpc.engine.pace import Pace
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.here import supervisor
from holmes_hpc.launch.here.played import played_disturbances
from holmes_hpc.planner.simulation import prices
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.task import disturbed
from holmes_hpc.planner.telling.compare import Compared, compare
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.result import disturbed_step_seconds, median_step_seconds
from holmes_hpc.values.disturbances import SLOWDOWN, Disturbance, acting_at, changes, phases
from tests.plans_for_tests import make
from tests.run_folders import make_plan, make_run, metric
from tests.runs_for_tests import train

MIXED = "+cluster=mixed"


def given(*disturbances: str) -> str:
    return f"cluster.emulate.disturbances=[{', '.join(disturbances)}]"


def cluster_of(*disturbances: str, overrides: tuple[str, ...] = ()):
    return read_cluster(compose([MIXED, *overrides, given(*disturbances)]).cluster)


@pytest.mark.parametrize(("text", "words"), [
    ("{rate: 0.2}", "ethernet at 0.2 of its rate"),
    ("{rate: 0.5, network: ib, nodes: [ib/0]}", "ib of ib/0 at 0.5 of its rate"),
    ("{traffic: 0.5}", "other traffic takes 0.5 of ethernet"),
    ("{delay_ms: 5, jitter_ms: 2, between: [ib, roce]}",
     "ethernet between ib and roce 5 ms later with 2 ms of jitter"),
    ("{jitter_ms: 20}", "ethernet with 20 ms of jitter"),
    ("{loss: 0.01, nodes: [roce/1]}", "ethernet of roce/1 loses 1 % of the packets"),
    ("{slowdown: 2, ranks: [0, 3]}", "ranks 0, 3 2 times slower"),
    ("{slowdown: 1.5, nodes: [ib/1]}", "ib/1 1.5 times slower"),
])
def test_a_disturbance_says_what_it_does_and_where(text, words):
    (found,) = cluster_of(text).disturbances
    assert found.words == words
    assert (found.first_step, found.last_step) == (1, None)


@pytest.mark.parametrize(("text", "fact", "remedy"), [
    ("{from_step: 3}", "disturbances.0 gives nothing", "exactly one of rate, traffic, delay_ms"),
    ("{rate: 0.2, loss: 0.01}", "rate=0.2 and loss=0.01", "exactly one of"),
    ("{delay_ms: 0}", "disturbances.0.delay_ms=0: delays nothing", "jitter_ms above 0"),
    ("{rate: 0.2, between: [ib, roce]}", "disturbances.0.between", "disturbances.0.network or"),
    ("{slowdown: 2, network: ib, ranks: [0]}", "disturbances.0.network=ib", "disturbances.0.nodes or"),
    ("{slowdown: 2}", "says not who is slow", "disturbances.0.ranks"),
    ("{slowdown: 2, ranks: [0], nodes: [ib/0]}", "says not who is slow", "either"),
    ("{slowdown: 2, ranks: [8]}", "there is no rank 8", "valid: 0 to 7"),
    ("{rate: 0.2, nodes: [ib/7]}", "unknown node 'ib/7'", "Valid: ib/0, ib/1, roce/0, roce/1"),
    ("{rate: 0.2, network: ip}", "unknown network 'ip'", "Valid: ethernet, ib, roce"),
    ("{rate: 0.2, network: ib, nodes: [roce/0]}", "unknown node 'roce/0'", "Valid: ib/0, ib/1"),
    ("{traffic: 0.2, nodes: [ib/0]}", "between two nodes and more", "valid: ib/0, ib/1"),
    ("{loss: 0.1, between: [ib, ib]}", "between=['ib', 'ib']", "two different slots or fabrics"),
    ("{loss: 0.1, between: [ib, eth]}", "unknown node or fabric 'eth'", "Valid: ib, roce, ib/0"),
    ("{rate: 0.2, from_step: 5, until_step: 4}", "until_step=4: comes before", "valid: 5 and more"),
    ("{rate: 0}", "disturbances.0.rate=0", "0.001"),
    ("{loss: 0.9}", "disturbances.0.loss=0.9", "0.5"),
    ("{speed: 2}", "cluster.emulate.disturbances.0.speed: no such key", "slowdown"),
    ("slow", "cluster.emulate.disturbances.0=slow: expected a mapping", "slowdown"),
    ("{rate: x}", "cluster.emulate.disturbances.0.rate=x: expected a number", "0.001"),
    ("{slowdown: 1, ranks: [0]}", "disturbances.0.slowdown=1: changes nothing", "a factor above 1"),
    ("{rate: 1}", "disturbances.0.rate=1: changes nothing", "another factor than 1"),
    ("{rate: 0.2, from_step: 151}", "disturbances.0.from_step=151: the run ends with step 150", "raise train.steps"),
])
def test_what_is_no_disturbance_is_refused_with_what_is_valid(text, fact, remedy):
    with pytest.raises(ConfigurationError) as caught:
        cluster_of(text)
    assert fact in str(caught.value)
    assert remedy in str(caught.value)


def test_other_traffic_leaves_something_of_each_link():
    with pytest.raises(ConfigurationError) as caught:
        cluster_of("{traffic: 0.5, until_step: 9}", "{traffic: 0.6, nodes: [ib/1, roce/0], from_step: 4}")
    assert "disturbances.0.traffic=0.5 and cluster.emulate.disturbances.1.traffic=0.6: take 1.1 of the ethernet link " \
           "of ib/1 together in step 4; valid: 0.95 in all" in str(caught.value)
    cluster_of("{traffic: 0.5, until_step: 3}", "{traffic: 0.6, from_step: 4}")
    both = at_step(cluster_of("{traffic: 0.5}", "{traffic: 0.3}"), 1)
    assert links(both, "ethernet", "ib/0", "roce/0")[1] == pytest.approx(0.2 * 0.2)


def test_a_plan_is_for_a_step_that_there_is():
    with pytest.raises(ConfigurationError, match="plan_for_step=151: the run ends with step 150; valid: 1 to 150"):
        compose([MIXED, "cluster.emulate.plan_for_step=151"])


def test_an_item_of_a_list_is_told_with_its_path_and_its_file(tmp_path):
    with pytest.raises(ConfigurationError, match=r"^cluster\.links\.0\.foo: no such key\. Valid keys of"):
        compose([MIXED, "cluster.links=[{between: [ib, roce], foo: 5}]"])
    (tmp_path / "cluster").mkdir()
    own = tmp_path / "cluster" / "own.yaml"
    own.write_text("defaults: [mixed, _self_]\nemulate: {disturbances: [{rate: 0.5}, {los: 0.5}]}\n")
    with pytest.raises(ConfigurationError) as caught:
        compose([f"hydra.searchpath=[{tmp_path}]", "+cluster=own"])
    assert str(caught.value).startswith(f"file {own}: cluster.emulate.disturbances.1.los: no such key. Did you mean "
                                        "cluster.emulate.disturbances.1.loss?")


def test_a_network_of_one_node_is_no_link():
    with pytest.raises(ConfigurationError, match="joins no two nodes of this cluster; its fabrics are ib \\(1 node\\)"):
        cluster_of("{loss: 0.1, network: ib}", overrides=("cluster.partitions.ib.nodes=1",))


def test_a_run_falls_into_phases_whose_ends_are_disturbed_too():
    found = cluster_of("{rate: 0.2, from_step: 3, until_step: 6}", "{loss: 0.1, from_step: 5, until_step: 5}",
                       "{slowdown: 2, ranks: [0], from_step: 9}").disturbances
    assert changes(found) == (3, 5, 6, 7, 9)
    assert [(phase.first_step, phase.last_step, len(phase.acting)) for phase in phases(found, 8)] == [
        (1, 2, 0), (3, 4, 1), (5, 5, 2), (6, 6, 1), (7, 8, 0)]
    assert [phase.steps for phase in phases(found, 8)][:3] == ["steps 1 to 2", "steps 3 to 4", "step 5"]


def links(cluster, network, a, b):
    machine = Machine.emulated(cluster, cores=8)
    nodes = {node.slot: node for node in cluster.nodes}
    return (machine.link(network, nodes[a], nodes[b]), machine.node_bandwidth_gbps(nodes[a], network))


def test_links_are_worth_what_a_disturbance_leaves_of_them():
    usual, _ = links(cluster_of(), "ethernet", "ib/0", "roce/0")
    slow = at_step(cluster_of("{rate: 0.2, nodes: [roce/0], from_step: 4}"), 4)
    link, own = links(slow, "ethernet", "ib/0", "roce/0")
    assert link.bandwidth_gbps == pytest.approx(0.04)
    assert own == pytest.approx(0.2)
    assert links(slow, "ethernet", "roce/0", "ib/0")[1] == pytest.approx(0.04)
    assert links(slow, "ethernet", "ib/0", "ib/1")[0] == usual
    crowded = at_step(cluster_of("{traffic: 0.5}", "{rate: 0.5}"), 1)
    assert links(crowded, "ethernet", "ib/0", "roce/0")[1] == pytest.approx(0.05)
    late = at_step(cluster_of("{delay_ms: 10, jitter_ms: 20, between: [ib/0, roce]}"), 1)
    assert links(late, "ethernet", "roce/1", "ib/0")[0].latency_us == pytest.approx(usual.latency_us + 20_000)
    assert links(late, "ethernet", "roce/1", "ib/1")[0] == usual


def test_a_loss_costs_little_where_the_answer_comes_at_once_and_much_where_it_is_late():
    lossy = at_step(cluster_of("{loss: 0.01}"), 1)
    assert links(lossy, "ethernet", "ib/0", "roce/0")[0].bandwidth_gbps > 0.04
    far = at_step(cluster_of("{loss: 0.01}", "{delay_ms: 20}"), 1)
    assert links(far, "ethernet", "ib/0", "roce/0")[0].bandwidth_gbps < 0.005


@pytest.mark.parametrize("machine", [Machine.emulated, Machine.described])
def test_a_slow_node_has_a_slower_kind_of_gpu_and_a_slow_rank_has_not(machine):
    cluster = cluster_of("{slowdown: 2, nodes: [ib/1]}", "{slowdown: 3, ranks: [0]}")
    slow = at_step(cluster, 1)
    kinds = [machine(slow).gpu(node) for node in slow.nodes]
    assert [kind.slowdown("float32") for kind in kinds] == [1.0, 2.0, 1.0, 1.0]
    assert machine(cluster).on(slow).gpu(slow.nodes[1]) == kinds[1]


PLANNED = (MIXED, "parallel=holmes", "parallel.pipeline=2")


def step(*disturbances: str, overrides: tuple[str, ...] = (), mode: str = "slurm") -> float:
    """Return the predicted step of one and the same plan while all of these act."""
    plan = make(*PLANNED, mode=mode)
    config = compose([*PLANNED, *overrides, given(*disturbances)])
    task, layout = restore(config, plan, mode)
    return predict(disturbed(task, acting_at(task.cluster.disturbances, 1)), layout, plan.schedule).step_seconds


@pytest.mark.parametrize("mode", ["slurm", "emulated"])
def test_a_disturbed_rate_is_priced_like_a_cluster_that_has_it(mode):
    slower = (("cluster.emulate.rates.ethernet=0.04",) if mode == "emulated" else
              ("cluster.partitions.ib.ethernet_gbps=5", "cluster.partitions.roce.ethernet_gbps=5"))
    assert step("{rate: 0.2}", mode=mode) == pytest.approx(step(overrides=slower, mode=mode))
    assert step("{rate: 0.2}", mode=mode) > step(mode=mode)
    assert step("{traffic: 0.8}", mode=mode) == pytest.approx(step("{rate: 0.2}", mode=mode))


def test_one_slow_rank_holds_up_its_stage_and_all_of_them_double_the_compute():
    one, all_of_them = (step(f"{{slowdown: 2, ranks: {ranks}}}") for ranks in ("[3]", "[0, 1, 2, 3, 4, 5, 6, 7]"))
    nodes = step("{slowdown: 2, nodes: [ib/0, ib/1, roce/0, roce/1]}")
    assert step() < one < all_of_them
    assert nodes == pytest.approx(all_of_them)


def test_a_slow_rank_leaves_its_core_to_others_while_it_waits(monkeypatch):
    """On one core as many seconds are computed as ever; a core that waited with it would make the step longer."""
    config = compose([*PLANNED, given("{slowdown: 2, ranks: [0]}")])
    task, layout = restore(config, make(*PLANNED, mode="emulated"), "emulated")
    one_core = dataclasses.replace(task, machine=dataclasses.replace(task.machine, cores=1))
    choice = make(*PLANNED, mode="emulated").schedule
    usual = predict(one_core, layout, choice).step_seconds
    slow = predict(disturbed(one_core, task.cluster.disturbances), layout, choice).step_seconds
    waits = prices._waits
    monkeypatch.setattr(prices, "_waits", lambda *arguments: waits(*arguments) and {})
    held = predict(disturbed(one_core, task.cluster.disturbances), layout, choice).step_seconds
    assert usual <= slow * (1 + 1e-9)
    assert slow < held


def test_a_plan_is_made_for_the_undisturbed_cluster_and_tells_its_step_under_each_disturbance():
    plan = make(*PLANNED, given("{rate: 0.2, from_step: 3, until_step: 4}"), "train.steps=6", mode="emulated")
    plain = make(*PLANNED, mode="emulated")
    assert (plan.pipelines, plan.predicted.step_seconds) == (plain.pipelines, plain.predicted.step_seconds)
    assert [note for note in plan.notes if "disturbed" in note] == [
        note for note in plan.notes
        if note.startswith("disturbed on purpose in steps 3 to 4 (ethernet at 0.2 of its rate): predicted ")]
    assert len(plan.notes) == len(plain.notes) + 1


def test_a_plan_may_be_made_for_a_disturbed_step():
    schedule = given("{rate: 0.05, from_step: 3, until_step: 4}")
    plan = make(MIXED, "parallel=holmes", schedule, "cluster.emulate.plan_for_step=3", mode="emulated")
    usual = make(MIXED, "parallel=holmes", schedule, mode="emulated")
    assert plan.pipelines != usual.pipelines
    assert any("ethernet at 0.05 of its rate (cluster.emulate.plan_for_step)" in note for note in plan.notes)


def test_what_a_run_cannot_play_is_said_with_what_can():
    cluster = cluster_of("{rate: 0.2}", "{slowdown: 2, ranks: [0]}")
    assert played_disturbances(cluster, "emulated", on_gpus=False) == (cluster, "")
    local, said = played_disturbances(cluster, "local", on_gpus=False)
    assert [each.kind for each in local.disturbances] == [SLOWDOWN]
    assert "not played (ethernet at 0.2 of its rate): a local run has no emulated links; launch.mode=emulated" in said
    for mode, on_gpus, remedy in (("slurm", False, "launch.mode=emulated"), ("local", True, "launch.backend=gloo")):
        none, said = played_disturbances(cluster, mode, on_gpus=on_gpus)
        assert none.disturbances == ()
        assert "rank 0 2 times slower" in said
        assert remedy in said


def test_a_run_ends_with_what_disturbs_it():
    """Its ranks would wait for links that nobody changes any more."""
    graces: list[float] = []

    def end_ranks(grace_seconds: float) -> None:
        graces.append(grace_seconds)

    context = SimpleNamespace(wait=lambda timeout_seconds: (7, 1) if timeout_seconds is None else None,
                              end_ranks=end_ranks)
    assert supervisor._watch(context, {5: SimpleNamespace()}, lambda pid: False, helper=7) == 1
    assert graces == [0.0]


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_slow_rank_waits_in_proportion_to_what_its_thread_computed():
    pace = Pace([Disturbance(SLOWDOWN, 3.0, 2, 2, "slow", ranks=frozenset({("ib/0", 1)}))], "ib/0", 1)
    taken = {}
    for step_number in (1, 2, 3):
        assert not pace.begin(step_number)  # no link changes, so that nobody waits for another rank
        taken[step_number] = pace.factor
        began, computed = time.perf_counter(), time.thread_time()
        with pace.computing():
            compute(0.01)
            pace.breathe()
            compute(0.01)
        waited = time.perf_counter() - began - (time.thread_time() - computed)
        assert waited >= 0.038 * (step_number == 2)
    assert taken == {1: 1.0, 2: 3.0, 3: 1.0}


def test_ranks_wait_for_links_in_steps_that_change_them_alone_and_at_once_where_a_run_goes_on():
    asked: list[int] = []
    several = cluster_of("{rate: 0.2, from_step: 3, until_step: 4}", "{slowdown: 2, ranks: [0], from_step: 2}")
    pace = Pace(several.disturbances, "ib/0", 0, asked.append)
    assert [number for number in range(1, 8) if pace.begin(number)] == asked == [3, 5]
    later = Pace(several.disturbances, "ib/0", 0, asked.append)
    assert later.begin(4)
    assert later.words == ("ethernet at 0.2 of its rate", "rank 0 2 times slower")


def rows_of_a_run() -> list[dict]:
    return [metric(number, 0.5, disturbed=["slow links"]) if 6 <= number <= 8 else metric(number, 0.1)
            for number in range(1, 11)]


def test_disturbed_steps_are_in_no_median_and_in_a_table_of_their_own(tmp_path):
    folder = make_run(tmp_path, metrics=rows_of_a_run())
    assert median_step_seconds(RunFolder(folder)) == pytest.approx(0.1)
    assert disturbed_step_seconds(RunFolder(folder)) == {"slow links": pytest.approx(0.5)}
    table = disturbed_table(read_runs(folder))
    assert table[["first_step", "last_step", "disturbed", "steps"]].values.tolist() == [
        [4, 5, "", 2], [6, 8, "slow links", 3], [9, 10, "", 2]]
    assert table["times_undisturbed"].tolist() == pytest.approx([1.0, 5.0, 1.0])
    assert spans(rows_of_a_run()) == [(6, 8, "slow links")]


def test_a_local_run_has_a_prediction_for_what_it_could_play(tmp_path):
    """Of the schedule it has neither the loss of step 4, nor that of step 5 beside the slow rank."""
    config = compose([*PLANNED, given("{loss: 0.02, from_step: 4}", "{slowdown: 2, ranks: [1], from_step: 5}")])
    slow = "rank 1 2 times slower"
    rows = [metric(number, 0.1, emulated=False, **({"disturbed": [slow]} if number > 4 else {}))
            for number in range(1, 7)]
    folder = make_run(tmp_path, plan=make(*PLANNED, mode="local"), metrics=rows)
    (folder / "config.yaml").write_text(text_to_keep(config))
    table = disturbed_table(read_runs(folder))
    assert table[["first_step", "last_step", "disturbed"]].values.tolist() == [[4, 4, ""], [5, 6, slow]]
    usual, slowed = table["predicted_step_seconds"]
    assert table["predicted_times_undisturbed"].tolist() == pytest.approx([1.0, slowed / usual])
    assert slowed > usual
    console = Console(record=True, width=200)
    print_disturbed(console, table)
    assert "4 undisturbed 100 ms 1.00" in " ".join(console.export_text().split())


def test_a_table_says_why_ratios_and_predictions_are_missing(tmp_path):
    """The first steps are in no median, so that a run which is disturbed from then on has nothing to compare with."""
    rows = [metric(number, 0.1, **({"disturbed": ["slow links"]} if number > 3 else {})) for number in range(1, 7)]
    console = Console(record=True, width=200)
    print_disturbed(console, disturbed_table(read_runs(make_run(tmp_path, metrics=rows))))
    said = " ".join(console.export_text().split())
    assert "no x undisturbed: no step was undisturbed, but maybe the first ones, which medians leave out" in said
    assert "no prediction where" in said


def test_a_comparison_tells_disturbed_steps_apart():
    sides = [Compared(name, make_plan(), 0.1, {"slow links": seconds}) for name, seconds in (("a", 0.5), ("b", 0.25))]
    row = next(row for row in compare(*sides) if row.label == "measured step, slow links")
    assert (row.first, row.second, row.ratio) == ("500 ms", "250 ms", 0.5)


def test_a_disturbed_run_learns_bit_for_bit_what_an_undisturbed_one_does(tmp_path):
    small = [MIXED, "cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1", "parallel=holmes",
             "cluster.partitions.ib.gpus_per_node=1", "cluster.partitions.roce.gpus_per_node=1", "model.num_layers=2",
             "model.hidden_size=32", "model.sequence_length=32", "train.global_batch_size=4", "train.steps=7",
             "train.validate_every=0", "train.checkpoint_every=0", "optimizer.warmup_steps=2"]
    plain = train(tmp_path, small)
    found = train(tmp_path, [*small, given(
        "{rate: 0.2, from_step: 2, until_step: 2}", "{slowdown: 2, ranks: [1], from_step: 3, until_step: 3}",
        "{loss: 0.02, from_step: 4, until_step: 4}", "{delay_ms: 5, jitter_ms: 5, from_step: 5, until_step: 5}",
        "{traffic: 0.5, from_step: 6, until_step: 6}")])
    assert [row["loss"] for row in found.rows] == [row["loss"] for row in plain.rows]
    assert [row.get("disturbed") for row in found.rows] == [
        None, ["ethernet at 0.2 of its rate"], ["rank 1 2 times slower"], ["ethernet loses 2 % of the packets"],
        ["ethernet 5 ms later with 5 ms of jitter"], ["other traffic takes 0.5 of ethernet"], None]
    assert found.result["status"] == "completed"
