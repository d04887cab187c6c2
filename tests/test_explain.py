"""What limits a plan, what could be changed, and its bytes by network."""

import dataclasses
import shlex

import pytest

from holmes_hpc import cli
from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner import plan
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.simulation.traffic import busy_seconds, loads
from holmes_hpc.planner.telling.changes import MOST_CHANGES
from holmes_hpc.planner.telling.explain import explain
from holmes_hpc.planner.telling.render import limit_lines
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.planner.telling.retrace import retrace
from holmes_hpc.planner.telling.typed import overrides_for
from holmes_hpc.values import ActionKind, Plan
from holmes_hpc.words import seconds_words

MIXED = "+cluster=mixed"
TWO_STAGES = [MIXED, "parallel=holmes", "parallel.pipeline=2", "parallel.micro_batch_size=4", "parallel.schedule=1f1b",
              "parallel.warmup_extra=0", "model.tied_embeddings=false"]
SLOW = ["cluster.partitions.ib.ethernet_gbps=1", "cluster.partitions.roce.ethernet_gbps=1"]


def made(*overrides):
    config = compose(list(overrides))
    return config, plan(config)


def changes(*overrides):
    config, chosen = made(*overrides)
    return {change.words.rpartition(" (")[0]: change.gain for change in explain(config, chosen).changes}


def test_bytes_by_network_are_those_worked_out_by_hand():
    """Four pipelines of two stages, two micro-batches of four samples each; a data group of four ranks a fabric."""
    config, chosen = made(*TWO_STAGES)
    model = Architecture.from_config(config.model)
    message = 4 * 128 * 128 * 4  # samples, tokens, width, bytes
    sent = {each.network: each.bytes for each in chosen.predicted.bytes_by_network}
    assert sent["ethernet"] == pytest.approx(4 * 2 * 2 * message)  # pipelines, micro-batches, there and back
    # A ring over two nodes of two ranks leaves each node once; every edge carries 2 (R - 1) / R of the gradients.
    parameters = sum(model.unit_parameter_count(unit)
                     for unit in ("embedding.token", "embedding", "layers.0", "layers.1"))
    first = chosen.pipelines[0].stages[0]
    assert (first.first_layer, first.num_layers, chosen.ranks[first.ranks[0]].fabric) == (0, 2, "ib")
    assert sent["ib"] == pytest.approx(2 * 1.5 * 4 * parameters, rel=1e-6)
    assert Plan.from_json(chosen.to_json()) == chosen


def test_bytes_of_an_emulated_run_are_those_that_leave_its_nodes():
    """The engine sums on gloo inside the nodes and then across: half of a buffer leaves each of two nodes.

    The gather sends as much again.
    """
    for gpus in (1, 2, 4):
        config, chosen = made(*TWO_STAGES, "launch.mode=emulated", f"cluster.partitions.ib.gpus_per_node={gpus}",
                              f"cluster.partitions.roce.gpus_per_node={gpus}")
        model = Architecture.from_config(config.model)
        owned = sum(model.unit_parameter_count(unit)
                    for unit in ("embedding.token", "embedding", "layers.0", "layers.1"))
        first = chosen.pipelines[0].stages[0]
        assert first.num_layers == 2
        sent = {each.network: each.bytes for each in chosen.predicted.bytes_by_network}
        assert sent[chosen.ranks[first.ranks[0]].fabric] == pytest.approx(2 * 2 * 0.5 * 4 * owned, rel=1e-6)


def test_a_link_is_as_busy_as_its_bytes_and_rate_say():
    config, chosen = made(*TWO_STAGES, *SLOW)
    task, layout = restore(config, chosen)
    busy = busy_seconds(loads(task, layout))
    # Two pipelines a node, two messages each way of 256 KiB, at a little less than 1 Gb/s.
    assert busy["ib/0", "out ethernet"] == pytest.approx(2 * 2 * 4 * 128 * 128 * 4 * 8 / 1e9, rel=0.15)
    assert busy["ib/0", "out ethernet"] == busy["roce/0", "in ethernet"]
    links = dict(explain(config, chosen).limits.links)
    assert links["Ethernet of ib/0, sending"] == pytest.approx(
        busy["ib/0", "out ethernet"] / chosen.predicted.step_seconds)


def test_shares_add_up_and_agree_with_the_prediction():
    config, chosen = made(*TWO_STAGES, *SLOW)
    mean = explain(config, chosen).limits.mean
    assert mean.compute + mean.neighbours + mean.sums == pytest.approx(1)
    assert 1 - mean.compute == pytest.approx(chosen.predicted.idle_fraction)
    assert min(mean.compute, mean.neighbours, mean.sums) > 0


ALONE = ["optimizer.sharded=false", "parallel.overlap_grad_reduce=false", "parallel.overlap_param_gather=false"]


def test_sums_are_what_ranks_wait_for_after_their_last_backward():
    config, chosen = made(*TWO_STAGES, *ALONE)
    task, layout = restore(config, chosen)
    trace = retrace(task, layout, chosen.schedule)
    assert trace.step_seconds == pytest.approx(chosen.predicted.step_seconds, rel=0.05)
    last = {rank: end for rank, action, _, end in trace.records if action.kind is ActionKind.BACKWARD}
    optimizer = {rank: start for rank, action, start, _ in trace.records if action.kind is ActionKind.OPTIMIZER}
    waits = [optimizer[rank] - last[rank] for rank in last]
    mean = explain(config, chosen).limits.mean
    assert mean.sums * chosen.predicted.step_seconds == pytest.approx(sum(waits) / len(waits))


@pytest.mark.parametrize(("overrides", "verdict"), [
    (["+cluster=uniform", "cluster.nodes=1", "model=gpt2_small", "parallel.pipeline=1"], "computing"),
    ([*TWO_STAGES, "model.hidden_size=1024", "train.global_batch_size=256", "parallel.schedule=zero_bubble",
      "parallel.warmup_extra=8", "cluster.partitions.ib.ethernet_gbps=1", "cluster.partitions.roce.ethernet_gbps=1"],
     "Ethernet of "),
    ([*TWO_STAGES, "model.vocab_size=65536", "model.hidden_size=1024", "train.global_batch_size=16"],
     "sums of gradients over ib, roce"),
    ([*TWO_STAGES, "model.num_layers=8", "model.hidden_size=2048", "parallel.layer_split=[7,1]",
      "train.global_batch_size=128", "model.sequence_length=1024"], "the computing of stage 0"),
    ([*TWO_STAGES, *SLOW, "train.global_batch_size=16"], "the bubble"),
    ([MIXED, "launch.mode=emulated", "model.hidden_size=512", "parallel.pipeline=2"], "the CPU cores"),
])
def test_the_verdict(overrides, verdict):
    config, chosen = made(*overrides)
    limits = explain(config, chosen).limits
    assert limits.limited_by.startswith(verdict), limit_lines(limits, chosen)


def slow_link_note(chosen):
    return next((note for note in chosen.notes if note.startswith("the link between fabrics is too slow")), "")


@pytest.mark.parametrize(("gbps", "batch"), [(0.1, 64), (0.5, 64), (0.5, 512), (1, 512), (25, 64)])
@pytest.mark.parametrize("strategy", ["holmes", "megatron"])
def test_a_slow_link_is_told_where_it_limits_the_simulated_step(strategy, gbps, batch):
    config, chosen = made(MIXED, f"parallel={strategy}", "parallel.pipeline=2", "parallel.micro_batch_size=2",
                          "model.hidden_size=256", f"cluster.partitions.ib.ethernet_gbps={gbps}",
                          f"cluster.partitions.roce.ethernet_gbps={gbps}", f"train.global_batch_size={batch}")
    limits, note = explain(config, chosen).limits, slow_link_note(chosen)
    assert bool(note) == (limits.limited_by == limits.links[0][0]), (limits.limited_by, note)
    if strategy == "holmes":
        assert bool(note) == (gbps < 1)
    if note:
        assert "only compression or local steps" in note and "neither is built" in note
        assert f"{limits.links[0][0]}, is busy for {100 * limits.links[0][1]:.0f} %" in note


def test_the_step_without_the_link_is_that_of_a_cluster_with_a_fast_one():
    config, chosen = made(*TWO_STAGES, "cluster.partitions.ib.ethernet_gbps=0.2",
                          "cluster.partitions.roce.ethernet_gbps=0.2")
    task, layout = restore(compose([*TWO_STAGES, "cluster.partitions.ib.ethernet_gbps=1e5",
                                    "cluster.partitions.roce.ethernet_gbps=1e5"]), chosen)
    without = predict(task, layout, chosen.schedule).step_seconds
    assert f"which would take {seconds_words(without)} instead of" in slow_link_note(chosen)


@pytest.mark.parametrize("mode", ["emulated", "local"])
def test_a_plan_on_fewer_nodes_is_that_of_fewer_ranks_on_this_machine(mode, monkeypatch):
    """Four ranks share the cores of an emulation otherwise than the eight of the whole cluster."""
    monkeypatch.setattr("holmes_hpc.cluster.machine.host_cores", lambda: 2)
    few = ["cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1", f"launch.mode={mode}"]
    whole, config = compose([MIXED, f"launch.mode={mode}"]), compose([MIXED, *few])
    chosen = plan(config)
    assert chosen.world_size == 4
    task, layout = restore(whole, chosen)
    assert task.machine.oversubscription == 2
    again = predict(task, layout, chosen.schedule)
    assert again.step_seconds == pytest.approx(chosen.predicted.step_seconds, rel=1e-9)


def test_a_plan_keeps_its_order_of_nodes():
    config, chosen = made(*TWO_STAGES, "cluster.order=alternate")
    task, _ = restore(compose(TWO_STAGES), chosen)
    assert [node.slot for node in task.cluster.nodes] == ["ib/0", "roce/0", "ib/1", "roce/1"]
    assert task.machine.cluster == task.cluster


def test_a_gain_is_that_of_a_new_prediction():
    """The same layout on a cluster file with twice the Ethernet, predicted on its own."""
    config, chosen = made(*TWO_STAGES, *SLOW)
    task, layout = restore(compose([*TWO_STAGES, "cluster.partitions.ib.ethernet_gbps=2",
                                    "cluster.partitions.roce.ethernet_gbps=2"]), chosen)
    faster = predict(task, layout, chosen.schedule)
    found = changes(*TWO_STAGES, *SLOW)
    assert found["a second Ethernet NIC per node"] == pytest.approx(
        faster.tokens_per_second / chosen.predicted.tokens_per_second - 1)
    assert found["twice the global batch"] > 0.01


def test_changes_name_what_is_open():
    tied = changes(MIXED, "parallel=megatron", *SLOW, "model.vocab_size=4096")
    assert "untied embeddings" in tied
    assert len(tied) <= MOST_CHANGES
    assert list(tied.values()) == sorted(tied.values(), reverse=True) and min(tied.values()) >= 0.01
    untied = changes(MIXED, "parallel=megatron", "model=gpt2_small", "parallel.pipeline=4", "train.precision=bfloat16",
                     "model.tied_embeddings=false", "train.global_batch_size=256",
                     "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true")
    assert not {"untied embeddings", "bfloat16"} & set(untied)
    assert any(words.startswith("the schedule zero_bubble") for words in untied)  # the baseline asks for 1F1B
    assert "micro-batches of 8 instead of 16" in changes(
        "+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=4", "model=gpt2_small",
        "train.precision=bfloat16", "parallel.pipeline=4", "parallel.micro_batch_size=16")


WORTH_CHANGING = [
    [*TWO_STAGES, *SLOW], [MIXED, "parallel=megatron", *SLOW, "model.vocab_size=4096"],
    [MIXED, *SLOW, "cluster.links=[{between:[ib,roce],shared_gbps:0.5}]"],
    [MIXED, *SLOW, "cluster.links=[{between:[ib,roce],bandwidth_gbps:0.5,latency_us:3}]"],
    [MIXED, *SLOW, "launch.mode=emulated"], [MIXED, *SLOW, "launch.mode=local"],
    ["+cluster=uniform", "cluster.nic=eth10"], ["+cluster=uniform", "cluster.nic=eth1", "cluster.nics_per_node=256"],
    [MIXED, "cluster.partitions.ib.nic=eth1", "cluster.partitions.roce.nic=eth10"],
    ["+cluster=ib", "model=gpt_3_6b", "parallel.schedule=1f1b", "parallel.recompute=full"],
    [MIXED, *SLOW, "parallel.overlap_grad_reduce=false", "parallel.micro_batch_size=4", "parallel.turns=false"],
]


def typed(change):
    """Return the overrides that a change prints, as a shell would read them."""
    words = change.words.rpartition(" (")[2].removesuffix(")")
    return [] if words == "no setting alone says so" else shlex.split(words)


def typed_instead(overrides, change):
    keys = {key.split("=")[0] for key in typed(change)}
    return [*(each for each in overrides if each.split("=")[0] not in keys), *typed(change)]


@pytest.mark.parametrize("overrides", [
    pytest.param(each, id=" ".join(each), marks=pytest.mark.long if number % 2 else ())
    for number, each in enumerate(WORTH_CHANGING)])
def test_each_change_can_be_typed_as_it_is_printed(overrides):
    """By a shell, whose quotes a message needs."""
    config, chosen = made(*overrides)
    found = explain(config, chosen).changes
    assert found
    for change in found:
        if typed(change):
            changed = compose(typed_instead(overrides, change))
            assert changed != config, change
            read_cluster(changed.cluster)


def test_a_change_of_the_network_gives_what_it_says():
    for overrides in ([*TWO_STAGES, *SLOW], [*TWO_STAGES, "cluster.partitions.ib.nic=eth1"]):
        config, chosen = made(*overrides)
        of_the_network = [change for change in explain(config, chosen).changes
                          if any(key.startswith("cluster.") for key in typed(change))]
        assert of_the_network
        for change in of_the_network:
            task, layout = restore(compose(typed_instead(overrides, change)), chosen)
            faster = predict(task, layout, chosen.schedule)
            assert faster.tokens_per_second / chosen.predicted.tokens_per_second - 1 == pytest.approx(change.gain)


def test_what_no_setting_says_has_no_override():
    before = read_cluster(compose([MIXED, *SLOW]).cluster)
    after = dataclasses.replace(before, nodes=tuple(
        dataclasses.replace(node, ethernet_gbps=1 / 3) for node in before.nodes))
    assert overrides_for(before, after) is None, "no digits of ours say it"
    assert overrides_for(before, before) is None
    short = read_cluster(compose(["+cluster=uniform"]).cluster)
    after = dataclasses.replace(short, nodes=tuple(
        dataclasses.replace(node, ethernet_gbps=50.0) for node in short.nodes))
    assert overrides_for(short, after) is None, "the short form knows no ethernet_gbps"


def test_what_does_not_fit_into_memory_is_no_change():
    """Without recomputation, or with larger micro-batches, the steps are shorter; on a small GPU neither fits."""
    overrides = ["+cluster=uniform", "model=gpt_3_6b", "train.precision=bfloat16", "parallel.pipeline=4",
                 "parallel.micro_batch_size=1", "parallel.recompute=full", "train.global_batch_size=16",
                 "parallel.tensor=1", "optimizer.sharded=false"]

    def words(gpu):
        config, chosen = made(*overrides, f"cluster.gpu={gpu}")
        return {change.words for change in explain(config, chosen).changes}

    assert any("recompute=none" in each for each in words("a100-80g"))
    assert not any("recompute=" in each for each in words("3090"))


def test_memory_rows_are_the_ranks_of_the_prediction_by_parts():
    config, chosen = made(*TWO_STAGES)
    limits = explain(config, chosen).limits
    assert limits.peak in limits.memory[0].ranks
    for row in limits.memory:
        assert sum(row.parts.values()) == pytest.approx(row.total_gib)
        for rank in row.ranks:
            assert chosen.predicted.memory_gib_per_rank[rank] == pytest.approx(row.total_gib, abs=0.05)
    assert limits.memory[0].total_gib == pytest.approx(max(chosen.predicted.memory_gib_per_rank))
    assert limits.memory[0].parts[limits.peak_part] == max(limits.memory[0].parts.values())


def test_plan_prints_it(capsys):
    assert cli.run(["plan", *TWO_STAGES, *SLOW]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("limited by ", "busiest link: Ethernet of ib/0", "fullest memory: rank 0 on ib/0 (a100-80g)",
                  "memory, GiB a rank", "what you could change", "a second Ethernet NIC per node "
                  "(cluster.partitions.ib.ethernet_gbps=2 cluster.partitions.roce.ethernet_gbps=2): +"):
        assert words in text, words


def test_a_plan_of_another_cluster_is_refused():
    _, chosen = made(MIXED)
    for other in ([MIXED, "model.num_layers=6"], ["+cluster=ib"]):
        with pytest.raises(ConfigurationError, match="do not belong together"):
            restore(compose(other), chosen)
