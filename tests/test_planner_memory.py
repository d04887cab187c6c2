"""Memory of plans: the optimizer's state is shared over gradient groups, and the search knows by how many ranks."""

import re
from collections import Counter

import pytest

from holmes_hpc.cluster.gpus import gpu
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.cost.gpu_constants import COMMUNICATORS_INCLUDED
from holmes_hpc.planner.cost.memory_parts import GIB, fixed_bytes
from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION, communicators_of
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.planner.layout.sharing import sharers, updated_parameters
from holmes_hpc.planner.making import find_best, plan
from holmes_hpc.planner.search.candidate import Candidate, exceeds_memory, make_layout
from holmes_hpc.planner.simulation.prices import compute_cost
from holmes_hpc.planner.strategies import holmes, unlike
from holmes_hpc.planner.strategies.estimates import estimate
from holmes_hpc.planner.strategies.proposals import SharedStages
from holmes_hpc.values import Pipeline, Plan, Stage
from tests.planner_problems import SMALL, Problem

BY_NAME = {problem.name: problem for problem in SMALL}
SEVEN_B = Problem("two nodes of 3090s", (("3090", "eth25", (8, 8)),), layers=32, hidden=4096, batch=16)
UNEQUAL = Problem("1 + 3", (("a100-80g", "hdr200", (1,)), ("v100", "roce100", (3,))))


@pytest.mark.parametrize(("two_level", "fabric", "count"), [(True, "a", 2), (True, "b", 3), (False, "a", 5)])
def test_shards_lie_within_a_fabric(two_level: bool, fabric: str, count: int) -> None:
    assert sharers({"a": 2, "b": 3, "c": 0}, fabric, two_level=two_level) == count


def test_owners_with_a_fabric_each_share_across() -> None:
    assert sharers({"a": 1, "b": 1, "c": 0}, "a", two_level=True) == 2


def test_what_a_rank_updates_is_worked_out_by_hand() -> None:
    """Four pipelines of one stage: rank 0 alone in its fabric keeps all, the three others a third each."""
    task = UNEQUAL.task()
    layout = make_layout(task, "unlike", build_pipelines([[(rank,) for rank in range(4)]], [4], 8), 1, GroupRules())
    whole = task.architecture.parameter_count()
    assert updated_parameters(task, layout) == pytest.approx({0: whole, 1: whole / 3, 2: whole / 3, 3: whole / 3})
    alone = UNEQUAL.task("optimizer.sharded=false")
    layout = make_layout(alone, "unlike", layout.pipelines, 1, GroupRules())
    assert updated_parameters(alone, layout) == pytest.approx(dict.fromkeys(range(4), whole))


def test_megatron_shares_no_table_that_it_sums_in_pairs() -> None:
    task = Problem("tied", (("a100-80g", "hdr200", (4,)),), tied=True).task("parallel=megatron")
    stages = [[(0,), (1,)], [(2,), (3,)]]
    layout = make_layout(task, "megatron", build_pipelines(stages, [2, 2], 8), 1, GroupRules(one_network=True))
    count = task.architecture.unit_parameter_count
    table, layers = count("embedding.token"), 2 * count("layers.0")
    others = sum(count(unit) for unit in ("embedding", "head") if unit in task.architecture.units)
    updated = updated_parameters(task, layout)
    assert sum(updated.values()) == pytest.approx(4 * table + 2 * layers + others)


@pytest.mark.parametrize("tied", ["false", "true"])
def test_a_narrower_plan_fits_because_the_optimizer_is_shared(tied: str) -> None:
    asked = ["parallel=holmes", "parallel.pipeline=4", "parallel.tensor=1", "parallel.recompute=none",
             "parallel.micro_batch_size=1", f"model.tied_embeddings={tied}"]
    found, _ = find_best(SEVEN_B.task(*asked))
    assert {len(pipeline.stages) for pipeline in found.layout.pipelines} == {4}
    assert_within_memory(found)
    with pytest.raises(PlanRefusedError, match="memory"):
        find_best(SEVEN_B.task(*asked, "optimizer.sharded=false"))


@pytest.mark.parametrize("name", ["tight memory", "tight memory, unequal", "wide"])
@pytest.mark.parametrize("sharded", ["true", "false"])
def test_no_plan_exceeds_its_gpus(name: str, sharded: str) -> None:
    found, _ = find_best(BY_NAME[name].task(f"optimizer.sharded={sharded}", "model.num_layers=7"))
    assert_within_memory(found)


def assert_within_memory(found: Candidate) -> None:
    task = found.task
    for rank, need in enumerate(found.predicted.memory_gib_per_rank):
        assert need <= USABLE_FRACTION * task.machine.memory_gib(task.cluster.node_of(rank))


@pytest.mark.parametrize("sharded", ["true", "false"])
def test_fleets_say_truly_whether_they_fit(sharded: str) -> None:
    """The closed form that knows all pipelines of a fleet against the memory of every rank of its layout."""
    task = BY_NAME["tight memory"].task("parallel.recompute=none", f"optimizer.sharded={sharded}",
                                        "parallel.micro_batch_size=1", "model.num_layers=8")
    seen = set()
    for proposal in unlike.proposals(task):
        if isinstance(proposal.facts.form, SharedStages):
            continue
        layout = make_layout(proposal.task, "unlike", proposal.build(), 1, proposal.rules)
        fits = not exceeds_memory(proposal.task, layout)
        # Pipelines of fewer micro-batches than stages keep less than the closed form takes.
        few = any(pipeline.microbatches < len(pipeline.stages) for pipeline in layout.pipelines)
        assert fits == proposal.fits or (fits and few), proposal.facts
        seen.add(fits)
    assert True in seen


@pytest.mark.parametrize("tied", ["false", "true"])
def test_shapes_hold_what_their_ranks_can(tied: str) -> None:
    """As many layers as a shape says fit into the exact memory of its first stage, and one more does not."""
    task = SEVEN_B.task("parallel=holmes", "parallel.recompute=none", f"model.tied_embeddings={tied}",
                        "model.num_layers=200")
    cost = compute_cost(task)
    shape = next(shape for shape in holmes.shapes(task, 1) if len(shape.stages) == 8)
    with pytest.raises(PlanRefusedError, match="memory: the stages of .* can hold") as refusal:
        estimate(task, shape, 1)
    held = int(str(refusal.value).split("hold ")[1].split(",")[0])
    for count, fits in ((held, True), (held + 1, False)):
        pipelines = build_pipelines(shape.stages, [count, *[1] * 6, 194 - count], 16)
        layout = make_layout(task, "holmes", pipelines, 1, shape.rules)
        updated = updated_parameters(task, layout)[pipelines[0].stages[0].ranks[0]]
        units = task.architecture.stage_units(0, count, first=True, last=False)
        held_bytes = cost.parameter_count(units) * (2 + 4) + updated * (4 + 8)
        need = held_bytes + 8 * cost.activation_bytes(units, 1) + cost.static_gib(task.cluster.nodes[0], 0) * 2**30
        assert (need <= USABLE_FRACTION * 24 * 2**30) == fits


PAIRS = ", ".join(f"{{stages: [{{ranks: [{rank}], layers: 18}}, {{ranks: [{rank + 4}], layers: 18}}]}}"
                  for rank in range(4))


@pytest.mark.parametrize(("overrides", "remedies"), [
    (["parallel=megatron", "parallel.pipeline=2", "model=gpt_39_1b", "model.num_layers=36"],
     "parallel.pipeline above 2;"),
    (["parallel=manual", f"parallel.pipelines=[{PAIRS}]", "parallel.micro_batch_size=8", "optimizer.sharded=true"],
     "parallel.micro_batch_size below 8 or parallel.recompute=full or parallel.pipelines with more stages;"),
    (["parallel=megatron", "parallel.pipeline=2", "parallel.tensor=1", "optimizer.sharded=false", "model=gpt_18_4b",
      "model.num_layers=36"],
     "optimizer.sharded=true or parallel.pipeline above 2 or parallel.tensor above 1;"),
])
def test_a_refusal_names_the_usable_memory_the_parts_the_layout_and_the_setting(overrides, remedies):
    model = ["model=gpt_7_5b"] if "parallel=manual" in overrides else []
    with pytest.raises(PlanRefusedError) as refusal:
        plan(compose(["+cluster=mixed", *model, "train.precision=bfloat16", "train.global_batch_size=256", *overrides]),
             "auto")
    text = str(refusal.value)
    found = re.match(r"memory: rank 0 \(ib/0, a100-80g\) needs ([\d.]+) GiB as stage 0 of 2, "
                     r"and has 75\.2 usable of 80\.0: (.*)\. Layout: (.*micro-batch \d+)\. Set (.*) or take", text)
    assert found, text
    parts = [float(part.rpartition(" ")[2]) for part in found[2].split(", ")]
    assert sum(parts) == pytest.approx(float(found[1]), abs=0.3)
    assert parts == sorted(parts, reverse=True)
    assert found[4] == remedies


ONE_T4_NODE = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=3", "cluster.gpu=t4", "model=llama_7b"]
ONE_A100 = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", "cluster.gpu=a100-40g",
            "model=gpt_3_6b", "parallel.micro_batch_size=1"]
HALF = [*ONE_A100, "model.num_layers=13", "parallel.micro_batch_size=4", "parallel.recompute=none"]


@pytest.mark.parametrize(("overrides", "remedies"), [
    (ONE_T4_NODE, ". Take more nodes"),  # the states alone are too large, and 3 GPUs cannot divide 32 heads
    ([*ONE_T4_NODE, "parallel.tensor=1"], ". Take more nodes"),
    (ONE_A100, ". Take more nodes"),  # 16 bit would need more
    (HALF, ". Set parallel.micro_batch_size below 4 or parallel.recompute=full;"),
    ([*HALF, "parallel.recompute=auto", "parallel.micro_batch_size=1", "model.num_layers=14", "cluster.gpu=t4"],
     ". Take more nodes"),
    ([*ONE_T4_NODE, "model.num_layers=4", "parallel.pipeline=1", "parallel.micro_batch_size=1",
      "train.global_batch_size=3", "parallel.recompute=none", "model.sequence_length=3072"],
     ". Set parallel.recompute=full or parallel.pipeline above 1 or train.precision=float16;"),
])
def test_remedies_are_such_as_can_help(overrides: list[str], remedies: str) -> None:
    with pytest.raises(PlanRefusedError) as refusal:
        plan(compose([*overrides, "parallel=megatron"]), "auto")
    assert remedies in str(refusal.value)


@pytest.mark.parametrize(("overrides", "remedies"), [
    (["parallel.pipeline=2"], "at least 1). Set parallel.pipeline higher, or take more nodes"),
    (["parallel.pipeline=2", "parallel.tensor=1", "parallel.micro_batch_size=2"],
     "Set parallel.pipeline higher or parallel.micro_batch_size lower or parallel.tensor higher, or take"),
    (["parallel.pipeline=8", "parallel.tensor=1", "cluster.partitions.ib.gpus_per_node=1",
      "cluster.partitions.roce.gpus_per_node=3"], "at least 1). Take more nodes or a smaller model."),
])
def test_what_stages_hold_is_refused_with_what_can_help(overrides: list[str], remedies: str) -> None:
    with pytest.raises(PlanRefusedError, match="memory: the stages of") as refusal:
        plan(compose(["+cluster=mixed", "model=gpt_145_6b", "parallel=holmes", *overrides]), "auto")
    assert remedies in str(refusal.value)


@pytest.mark.parametrize("layout", [
    ["parallel.tensor=8", "parallel.pipeline=4"], ["parallel.tensor=1", "parallel.pipeline=4"],
    ["parallel.tensor=1", "parallel.pipeline=4", "parallel.chunks=2", "parallel.schedule=interleaved"]])
@pytest.mark.parametrize("nodes", [4, pytest.param(64, marks=pytest.mark.long)])
def test_ranks_have_few_communicators_whatever_their_number(layout: list[str], nodes: int) -> None:
    kinds = {"a": "gpu: h100, nic: ndr400", "b": "gpu: a100-80g, nic: roce200"}
    labels = ", ".join(f"{label}: {{nodes: {nodes}, gpus_per_node: 8, {kind}}}" for label, kind in kinds.items())
    made = plan(compose(["+cluster.name=two", f"+cluster.partitions={{{labels}}}", "model.num_layers=32",
                         "model.hidden_size=4096", "model.num_heads=32", "train.global_batch_size=1024", *layout]),
                mode="slurm")
    groups = [group for group in made.groups[1:] if len(group.ranks) > 1]
    per_rank = Counter(rank for group in groups for rank in group.ranks for _ in range(1 + (group.kind == "pipeline")))
    assert max(per_rank.values()) <= COMMUNICATORS_INCLUDED
    counted = communicators_of(made.pipelines)
    assert all(abs(counted[rank] - count) <= 2 for rank, count in per_rank.items())
    sums = Counter((frozenset(group.ranks), group.network) for group in groups if group.kind in ("data", "embedding"))
    assert max(sums.values()) == 1, "sums of the same ranks over one network share their communicator"


def test_communicators_beyond_those_of_one_pipeline_take_memory() -> None:
    h100 = gpu("h100")
    assert fixed_bytes(h100, COMMUNICATORS_INCLUDED) == fixed_bytes(h100) == 2 * GIB
    assert fixed_bytes(h100, COMMUNICATORS_INCLUDED + 4, 0.5) == (2 + 4 * 0.5) * GIB
    assert fixed_bytes(gpu("cpu"), 40, 0.5) == fixed_bytes(gpu("cpu")), "gloo's buffers are not on a device"
    counted = communicators_of([Pipeline(1, (Stage((0,), 0, 1), Stage((rank,), 1, 1))) for rank in range(1, 9)])
    assert counted[0] == 2 * 8, "an edge with each of eight ranks, and its layer alone"
    assert counted[1] == 2 + 3, "an edge, and sums with seven others, in two levels, and of a table"


def test_the_memory_of_a_communicator_may_be_a_measured_one() -> None:
    """Four pipelines whose first stage is one GPU's: an edge with each of the others has two communicators."""
    stages = "{stages: [{ranks: [0], layers: 2}, {ranks: [%d], layers: 2}]}"
    pipelines = f"parallel.pipelines=[{', '.join(stages % rank for rank in range(1, 8))}]"
    few = ["+cluster=ib", "cluster.partitions.ib.nodes=1", "cluster.partitions.ib.gpus_per_node=8", "parallel=manual",
           pipelines, "train.global_batch_size=28", "parallel.micro_batch_size=1"]
    usual, more = (plan(compose([*few, *own]), mode="slurm").predicted.memory_gib_per_rank
                   for own in ([], ["cluster.communicator_gib=1"]))
    assert more[0] - usual[0] == pytest.approx((7 * 2 - COMMUNICATORS_INCLUDED) * 0.75)
    assert more[1] == usual[1]


def megatron_on_eight(model: str, search_seconds: float) -> Plan:
    return plan(compose(["+cluster=ib", "cluster.partitions.ib.nodes=1", "cluster.partitions.ib.gpus_per_node=8",
                         "parallel=megatron", f"model={model}", "train.precision=bfloat16",
                         "train.global_batch_size=64", "parallel.tensor=2", "parallel.pipeline=4",
                         f"parallel.search_seconds={search_seconds}"]), "slurm")


def test_what_does_not_fit_is_simulated_where_that_is_dear_only_if_nothing_fits() -> None:
    made = megatron_on_eight("llama_30b", 0.1)
    assert made.recompute == "full" and made.rejected == ()
    told = megatron_on_eight("llama_30b", 1.0)
    assert told.predicted == made.predicted and any("memory" in each.reason for each in told.rejected)
    with pytest.raises(PlanRefusedError, match=r"memory: rank 0 .* needs [0-9.]+ GiB as stage 0 of 4.*micro-batch 1"):
        megatron_on_eight("llama_70b", 0.1)
