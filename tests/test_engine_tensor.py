"""What a tensor-parallel rank holds of the model, and that its share computes what the whole does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.tensor import TensorExchange
from holmes_hpc.config.compose import compose
from holmes_hpc.config.schema import Model
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.model import StageOptions, TensorShare, build_stage, token_loss
from holmes_hpc.model.initialization import initial_value
from holmes_hpc.planner import plan
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.values import Group, Pipeline, Plan, Stage
from tests.forked import ForkedRank, run_ranks
from tests.tiny_plans import tiny_plan

SIZES = {"num_layers": 3, "hidden_size": 24, "num_heads": 6, "vocab_size": 36, "sequence_length": 12,
         "ffn_hidden_size": 48, "initialization_std": 0.2}
LLAMA = {**SIZES, "num_kv_heads": 2, "normalization": "rmsnorm", "activation": "swiglu",
         "position_embedding": "rotary", "bias": False, "tied_embeddings": False}
FOUR = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=4"]
SEED = 5


def architecture(settings: dict[str, Any]) -> Architecture:
    return Architecture.from_config(OmegaConf.merge(OmegaConf.structured(Model), settings))


def hand_plan(model: Architecture, pipelines: tuple[Pipeline, ...], **fields: Any) -> Plan:
    """A plan of freely written pipelines, its groups and reductions from the planner."""
    world = 1 + max(rank for pipeline in pipelines for stage in pipeline.stages for rank in stage.ranks)
    config = compose(["+cluster=uniform", "cluster.nodes=1", f"cluster.gpus_per_node={world}"])
    cluster = read_cluster(config.cluster)
    groups, reductions = find_groups(model, cluster, pipelines, GroupRules())
    made = tiny_plan(world, groups[1:], reductions)
    return Plan(**{**vars(made), "pipelines": pipelines, "num_layers": model.num_layers, **fields})


UNLIKE = (
    Pipeline(1, (Stage((0, 1), 0, 1), Stage((2, 3, 4), 1, 2))),
    Pipeline(1, (Stage((5,), 0, 2), Stage((6, 7), 2, 1))),
)


@pytest.mark.parametrize("tied", [True, False])
def test_every_rank_holds_the_slices_that_its_rectangles_say(tied: bool) -> None:
    model = architecture({**SIZES, "tied_embeddings": tied})
    made = hand_plan(model, UNLIKE)
    infos = {info.name: info for info in model.parameters()}
    covered = {name: torch.zeros(info.shape) for name, info in infos.items()}
    for rank in range(made.world_size):
        local = LocalModel(made, rank, model, SEED)
        for name, parameter in local.parameters.items():
            whole = initial_value(model, infos[name], SEED)
            offsets, sizes = local.rectangle(name)
            box = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
            assert torch.equal(parameter.detach(), whole[box]), f"{name} on rank {rank}"
            covered[name][box] += 1
    assert all(float(count.min()) >= 2 for count in covered.values()), "both pipelines hold every element"


def test_owners_of_a_reduction_hold_the_same_pieces() -> None:
    model = architecture({**SIZES, "tied_embeddings": True})
    made = hand_plan(model, UNLIKE)
    locals_ = [LocalModel(made, rank, model, SEED) for rank in range(made.world_size)]
    reduced = [{name: torch.zeros_like(p) for name, p in local.parameters.items()} for local in locals_]
    for reduction in made.reductions:
        values = []
        for rank in reduction.owners:
            pieces = locals_[rank].pieces(reduction)
            values.append(torch.cat([p.of(locals_[rank].parameters[p.name]).detach().flatten() for p in pieces]))
            for piece in pieces:
                piece.of(reduced[rank][piece.name]).add_(1)
        assert all(torch.equal(value, values[0]) for value in values), reduction
    for counts in reduced:
        assert all(bool((count == 1).all()) for count in counts.values()), "every element is reduced once"


def test_scale_of_gradients_that_all_ranks_have() -> None:
    model = architecture(SIZES)
    for sequence_parallel, expected in ((False, 1 / 3), (True, 1.0)):
        local = LocalModel(hand_plan(model, UNLIKE, sequence_parallel=sequence_parallel), 3, model, SEED)
        assert local.gradient_scale("layers.1.attention_norm.weight") == expected
        assert local.gradient_scale("layers.1.attention.output.bias") == expected
        assert local.gradient_scale("layers.1.attention.query.bias") == 1.0
    assert LocalModel(hand_plan(model, UNLIKE), 5, model, SEED).gradient_scale("layers.1.attention_norm.bias") == 1.0


def test_a_rank_with_two_slices_of_a_layer_is_refused() -> None:
    crossed = (Pipeline(1, (Stage((0, 1), 0, 3),)), Pipeline(1, (Stage((1, 0), 0, 3),)))
    with pytest.raises(PlanRefusedError, match=r"rank 1 would hold part 2 of 2 and part 1 of 2.*parallel\.pipelines"):
        hand_plan(architecture(SIZES), crossed)


def test_edges_carry_shards_between_equal_degrees_only() -> None:
    chain = (Pipeline(1, tuple(Stage(ranks, s, 1) for s, ranks in enumerate([(0, 1), (2, 3), (4,)]))),)
    made = hand_plan(architecture(SIZES), chain, sequence_parallel=True)
    assert [made.boundary_shards(0, s) for s in range(2)] == [2, 1]
    assert hand_plan(architecture(SIZES), chain).boundary_shards(0, 0) == 1
    assert Plan.from_json(made.to_json()).sequence_parallel


def share_of(given: ForkedRank, sequence_parallel: bool) -> TensorShare:
    ranks = tuple(range(given.world_size))
    communicator = connect(given.store, given.rank, given.world_size,
                           tiny_plan(given.world_size, [Group("tensor", ranks, "local")]), NodeNetworks.local(),
                           start_timeout=20, train_timeout=10)
    return TensorShare(given.world_size, given.rank, sequence_parallel, TensorExchange(communicator, 1))


def batch(vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocab_size, (2, SIZES["sequence_length"] + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def trained(model: Architecture, options: StageOptions) -> tuple[float, dict[str, torch.Tensor], tuple[int, ...]]:
    """Loss and gradients of two stages, as a pipeline runs them, and the shape of the logits."""
    dtype = torch.float64
    first = build_stage(model, 0, 1, first=True, last=False, seed=SEED, dtype=dtype, options=options)
    last = build_stage(model, 1, 2, first=False, last=True, seed=SEED, dtype=dtype, options=options)
    tokens, targets = batch(model.vocab_size)
    sent = first(tokens)
    received = sent.detach().requires_grad_()
    logits = last(received)
    loss = token_loss(logits, targets, model.vocab_size, options.share)
    loss.backward()
    sent.backward(received.grad)
    gradients: dict[str, torch.Tensor] = {}
    for stage in (first, last):
        for name, parameter in stage.named_parameters():
            assert parameter.grad is not None, name
            gradients[name] = gradients.get(name, 0) + parameter.grad
    return loss.item(), gradients, tuple(logits.shape)


def share_trained(given: ForkedRank, settings: dict[str, Any], sequence_parallel: bool, whole_edges: bool) -> Any:
    model = architecture(settings)
    share = share_of(given, sequence_parallel)
    results = []
    for recompute in ("none", "selective", "full"):
        options = StageOptions(share, recompute, not whole_edges, not whole_edges)
        loss, gradients, shape = trained(model, options)
        results.append((loss, {name: gradient.numpy() for name, gradient in gradients.items()}, shape))
    return results


@pytest.mark.parametrize(("settings", "degree", "sequence_parallel", "whole_edges"), [
    (SIZES, 2, False, False), (SIZES, 3, True, False), (LLAMA, 2, True, True), (LLAMA, 2, False, True),
    ({**SIZES, "tied_embeddings": False}, 2, True, True), ({**SIZES, "vocab_size": 37}, 3, True, False),
    ({**LLAMA, "vocab_size": 37, "tied_embeddings": False}, 2, False, False),
], ids=["plain", "three-sequence", "llama-whole-edges", "llama-plain", "untied-whole-edges", "three-odd-vocabulary",
        "llama-odd-vocabulary"])
def test_shares_compute_what_the_whole_does(settings: dict[str, Any], degree: int, sequence_parallel: bool,
                                            whole_edges: bool) -> None:
    model = architecture(settings)
    loss, gradients, _ = trained(model, StageOptions(recompute="full"))  # imports what it needs once, not in each rank
    found = run_ranks(degree, share_trained, settings, sequence_parallel, whole_edges)
    for info in model.parameters():
        parts = [torch.from_numpy(found[rank][0][1][info.name]) for rank in range(degree)]
        if info.split_dim is not None:
            joined = torch.cat(parts, dim=info.split_dim)
        else:
            joined = sum(parts) if sequence_parallel else parts[-1]
        torch.testing.assert_close(joined, gradients[info.name], rtol=2e-5, atol=2e-7, msg=lambda m, i=info: i.name + m)
    for rank in range(degree):
        plain, *recomputed = found[rank]
        assert plain[0] == pytest.approx(loss, rel=1e-6)
        assert plain[2][:2] == (2, SIZES["sequence_length"])
        assert abs(plain[2][2] - model.vocab_size / degree) < 1, "logits are never gathered"
        for other in recomputed:
            assert other[0] == plain[0]
            assert all((other[1][name] == gradient).all() for name, gradient in plain[1].items()), "bitwise equal"


@pytest.mark.parametrize(("overrides", "words"), [
    (["model=llama_tiny", "parallel.tensor=4"], ("2 key-value heads", "parallel.tensor to one of 1, 2")),
    (["model.vocab_size=3", "data=tokens", "data.path=dna", "parallel.tensor=4"], ("the 3 tokens of the vocabulary",
                                                                                  "parallel.tensor to one of 1, 2")),
    (["model.ffn_hidden_size=130", "parallel.tensor=4"], ("feed-forward width 130", "model.ffn_hidden_size")),
    (["model.num_heads=2", "parallel.tensor=4"], ("2 heads", "model.num_heads")),
    (["model.sequence_length=126", "parallel.tensor=4", "parallel.sequence_parallel=true"],
     ("126 tokens of a sample", "sequence parallelism")),
    (["parallel.tensor=3"], ("inside one node", "3 does not divide")),
])
def test_indivisible_models_are_refused_with_a_remedy(overrides: list[str], words: tuple[str, ...]) -> None:
    with pytest.raises(PlanRefusedError) as refusal:
        plan(compose([*FOUR, "parallel=megatron", *overrides]))
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_written_tensor_group_that_does_not_divide_the_heads_is_refused() -> None:
    with pytest.raises(PlanRefusedError, match=r"stages\[0\]\.ranks=\[0, 1, 2\].*4 heads"):
        plan(compose(["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=3", "parallel=manual",
                      "parallel.pipelines=[{microbatches: 4, stages: [{ranks: [0, 1, 2], layers: 4}]}]"]))
