"""The parts of the cost model: products, layers, collectives, other trainers, memory by parts."""

import dataclasses
import time

import pytest

from benchmarks.published import gpt
from benchmarks.runs import Run, machine_of, predicted_seconds
from benchmarks.trainers import MEGATRON_2021, MEGATRON_2022
from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import Machine, read_cluster
from holmes_hpc.cluster.gpus import GPUS, gpu
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.planner.cost.collectives import Ring, all_reduce_seconds, gather_seconds, unit_directions
from holmes_hpc.planner.cost.ends import embedding_seconds, head_seconds
from holmes_hpc.planner.cost.gpu_constants import CONSTANTS
from holmes_hpc.planner.cost.layer import layer_products, layer_seconds
from holmes_hpc.planner.cost.matrix import product_seconds
from holmes_hpc.planner.cost.micro_batch import MicroBatch
from holmes_hpc.planner.cost.network import NetworkCost
from holmes_hpc.planner.cost.rank_memory import memory_per_rank, peaking_rank
from holmes_hpc.planner.cost.stages import ComputeCost
from holmes_hpc.planner.simulation.prices import compute_cost
from holmes_hpc.planner.software import ENGINE
from holmes_hpc.values import Pipeline, Stage

A100 = gpu("a100-80g")
GPT_3 = gpt(12288, 96, 96, 2048)
SMALL = gpt(1024, 24, 16, 1024)


def work(model=GPT_3, **changes):
    return dataclasses.replace(MicroBatch(model, A100, 1), **changes)


def test_every_gpu_has_constants():
    assert set(CONSTANTS) == set(GPUS)


def test_a_large_product_reaches_most_of_the_peak_and_a_small_one_little():
    device = work().device
    large = 2 * 8192**3 / product_seconds(device, 8192, 8192, 8192) / 312e12
    small = 2 * 256**3 / product_seconds(device, 256, 256, 256) / 312e12
    assert 0.7 < large < 0.9
    assert small < 0.1


def test_a_thin_product_takes_its_bytes():
    device = work().device
    assert product_seconds(device, 1, 65536, 65536) >= 2 * 65536**2 / (2039e9 * 0.87)


def test_one_more_wave_costs_as_much_as_the_wave_before():
    device = work().device
    full = product_seconds(device, 256 * 108, 128, 4096)
    assert product_seconds(device, 256 * 109, 128, 4096) > 1.2 * full


def test_products_hold_the_layers_weights():
    model = dataclasses.replace(gpt(4096, 32, 32, 2048), activation="swiglu", num_kv_heads=8, ffn_hidden_size=11008,
                                bias=False)
    for software in (ENGINE, MEGATRON_2022):
        for tensor in (1, 4):
            products = layer_products(work(model, tensor=tensor, software=software))
            held = sum(product.results * product.inputs for product in products)
            assert held * tensor == 4096 * (2 * 4096 + 2 * 1024 + 3 * 11008)


def test_recomputation_repeats_the_forward_or_the_core():
    ring = Ring(228e9)
    for software in (ENGINE, MEGATRON_2021):
        none, selective, full = (
            unit_directions(each, layer_seconds(each), ring)
            for each in (work(tensor=8, recompute=how, software=software) for how in ("none", "selective", "full")))
        assert full.backward == pytest.approx(none.backward + none.forward)
        assert none.backward < selective.backward < full.backward
        assert none.forward == selective.forward == full.forward


def test_small_layers_wait_for_launches_and_large_ones_do_not():
    small = work(SMALL, software=MEGATRON_2021)
    assert unit_directions(small, layer_seconds(small)).forward == layer_seconds(small).forward_launch
    large = work(software=MEGATRON_2021)
    assert unit_directions(large, layer_seconds(large)).forward > 3 * layer_seconds(large).forward_launch


def test_tensor_parallelism_divides_work_and_adds_sums():
    ring = Ring(228e9)
    one, eight = work(), work(tensor=8)
    alone, shared = layer_seconds(one), layer_seconds(eight)
    assert alone.forward / 8 < shared.forward < alone.forward / 6
    summed = unit_directions(eight, shared, ring).forward - shared.forward
    assert summed == pytest.approx(2 * all_reduce_seconds(ring, 8, 2048 * 12288 * 2))


def test_overlap_hides_a_part_of_the_backwards_sums():
    ring = Ring(228e9)
    plain, overlapped = (unit_directions(each, layer_seconds(each), ring).backward
                         for each in (work(tensor=8, software=MEGATRON_2021), work(tensor=8, software=MEGATRON_2022)))
    assert plain - overlapped == pytest.approx(all_reduce_seconds(ring, 8, 2048 * 12288 * 2))


def test_sequence_parallelism_takes_norms_apart():
    ring = Ring(228e9)
    whole, split = (unit_directions(each, layer_seconds(each), ring).forward
                    for each in (work(tensor=8, software=MEGATRON_2022),
                                 work(tensor=8, software=MEGATRON_2022, sequence_parallel=True)))
    assert split < whole


def test_rings():
    ring = Ring(100e9, step_seconds=1e-6, start_seconds=10e-6)
    assert all_reduce_seconds(ring, 1, 1e9) == 0
    assert all_reduce_seconds(ring, 4, 1e9) == pytest.approx(1.5e9 / 100e9 + 10e-6 + 6e-6)
    assert gather_seconds(ring, 4, 1e9) == pytest.approx(0.75e9 / 100e9 + 10e-6 + 3e-6)


def test_the_head_costs_more_than_a_small_models_layer_and_the_embedding_less():
    small = work(SMALL)
    layer, head, embedding = layer_seconds(small), head_seconds(small), embedding_seconds(small)
    assert head.forward > layer.forward > embedding.forward


def published(**changes):
    run = Run(GPT_3, "a100-80g", 64, 1, tensor=8, pipeline=8, recompute="full", software=MEGATRON_2022)
    return dataclasses.replace(run, **changes)


def test_chunks_divide_the_bubble():
    free = dataclasses.replace(MEGATRON_2022, blocking_transfers=False)
    once, thrice = (published(chunks=chunks, software=free).seconds for chunks in (1, 3))
    stage = (published(global_batch=72, software=free).seconds - once) / 8
    assert once - thrice == pytest.approx(7 * stage * 2 / 3, rel=0.05)


def test_transfers_that_block_cost_their_time_and_whole_ones_more():
    split, whole, free = (published(software=dataclasses.replace(MEGATRON_2022, **counts)).seconds for counts in (
        {}, {"split_transfers": False}, {"blocking_transfers": False}))
    sent = 2048 * 12288 * 2 / (25e9 * 0.8)
    # The last stage is the slowest, and sends once for each micro-batch.
    assert split - free == pytest.approx(64 * sent / 8, rel=0.05)
    assert whole - split > 64 * sent * 7 / 8


def test_gradients_are_summed_in_the_bytes_of_the_trainer():
    """The sums of 8 pipelines stand alone at the end of the step, over NICs that are then all busy."""
    half, full, none = (
        published(data=data, global_batch=64 * data, software=dataclasses.replace(MEGATRON_2022, gradient_bytes=size)
                  ).seconds for data, size in ((8, 2), (8, 4), (1, 2)))
    summed = 2 * 7 / 8 * GPT_3.parameter_count() / 64 / (25e9 * 0.8)
    assert full - half == pytest.approx(2 * summed, rel=0.25)
    assert half - none > 2 * summed


def test_the_trainer_of_a_task_prices_its_compute_optimizer_and_memory():
    machine = machine_of("a100-80g", 8, "hdr200", 8)
    ours, theirs = (compute_cost(Run(GPT_3, "a100-80g", 8, 1, tensor=8, software=software).task(machine))
                    for software in (ENGINE, MEGATRON_2022))
    node, units = machine.cluster.nodes[0], ("layers.0",)
    assert ours.directions(node, units, 1, 8) != theirs.directions(node, units, 1, 8)
    assert theirs.optimizer_seconds(node, 1e9) / ours.optimizer_seconds(node, 1e9) == pytest.approx(48 / 50)
    assert ours.state_bytes == (6, 4, 8)
    assert theirs.state_bytes == (6, 2, 8)
    assert theirs.activation_bytes(units, 1, 8) > 2 * ours.activation_bytes(units, 1, 8)


def test_a_ring_inside_a_node_takes_what_is_measured_there():
    """All-reduce over A100 that vTrain's authors publish: 44, 51, 93 us at 1 MB; 229 GB/s of bus at 1 GB on 8."""
    network = NetworkCost(machine_of("a100-80g", 8, "hdr200", 8))
    for ranks, microseconds in ((2, 44), (4, 51), (8, 93)):
        ring = network.tensor_ring(tuple(range(ranks)))
        assert all_reduce_seconds(ring, ranks, 1e6) == pytest.approx(microseconds * 1e-6, rel=0.3)
    assert 2 * 7 / 8 * 1e9 / all_reduce_seconds(ring, 8, 1e9) == pytest.approx(229e9, rel=0.02)


def test_a_ring_over_nodes_uses_all_their_nics_and_the_links_inside():
    fast, slow, pcie = (NetworkCost(machine_of(gpu, 16, nic, nics)).tensor_ring(tuple(range(16)))
                        for gpu, nic, nics in (("a100-80g", "hdr200", 4), ("a100-80g", "hdr200", 1),
                                               ("a40", "hdr200", 8)))
    assert fast.bytes_per_second == pytest.approx(0.8 * 4 * 25e9)
    assert slow.bytes_per_second == pytest.approx(0.8 * 25e9)
    assert pcie.bytes_per_second == pytest.approx(0.6 * GPUS["a40"].intra_node_gb_per_second * 1e9)


@pytest.mark.parametrize(("pipeline", "tensor"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_a_published_run_is_priced_as_plans_are(pipeline, tensor):
    """The same layout of our engine has the very figure that `plan` gives it."""
    config = compose(["+cluster=ib", "model=gpt_1_7b", "parallel=megatron", f"parallel.pipeline={pipeline}",
                      f"parallel.tensor={tensor}", "parallel.micro_batch_size=2", "train.global_batch_size=128",
                      "train.precision=bfloat16", "optimizer.sharded=false", "parallel.schedule=1f1b",
                      "parallel.layer_split=uniform", "parallel.warmup_extra=0", "parallel.turns=false"])
    made = plan(config, mode="slurm")
    run = Run(Architecture.from_config(config.model), "a100-80g", 128, 2, tensor, pipeline, 8 // tensor // pipeline,
              precision="bfloat16")
    machine = Machine.described(read_cluster(config.cluster))
    assert made.predicted.step_seconds == predicted_seconds(run, machine, made.synchronization)


def test_a_layer_is_priced_once():
    """A search asks for the same layers many thousand times; benchmarks/planner_parts.py says what that takes."""
    each = work(tensor=2)
    before = layer_seconds.cache_info()
    assert layer_seconds(each) is layer_seconds(dataclasses.replace(each))
    after = layer_seconds.cache_info()
    assert after.misses - before.misses <= 1 <= after.hits - before.hits


@pytest.fixture
def cluster():
    return read_cluster(compose(["+cluster=ib"]).cluster)


def test_memory_by_parts_and_its_peak(cluster):
    model = gpt(2304, 24, 24, 2048)
    cost = ComputeCost(Machine.described(cluster), model, "bfloat16", "adamw")
    pipelines = tuple(Pipeline(8, (Stage((first,), 0, 12), Stage((first + 4,), 12, 12))) for first in range(4))
    peaks = {(rank, rank % 4, rank // 4): 2 - rank // 4 for rank in range(8)}
    memory = memory_per_rank(cost, cluster, pipelines, 4, peaks)
    layer, table = 12 * 2304**2 + 13 * 2304, 51200 * 2304
    first = 12 * layer + table + 2048 * 2304
    assert memory[0].parameters == 6 * first
    assert memory[0].gradients == 4 * first
    assert memory[0].optimizer == 8 * first
    assert memory[4].gradients == 4 * (12 * layer + table + 2 * 2304)
    assert memory[0].activations > 1.9 * 12 * 16 * 4 * 2048 * 2304 * 2
    assert memory[0].workspace == 0
    assert memory[4].workspace == 4 * 4 * 2048 * 51200
    capacity = {node.slot: 80.0 for node in cluster.nodes}
    assert peaking_rank(memory, cluster, capacity) == (0, "activations")
    sharded = memory_per_rank(cost, cluster, pipelines, 4, peaks, dict.fromkeys(range(8), 0.25 * first))
    assert sharded[0].optimizer == 2 * first
    assert sharded[0].parameters == 3 * first


@pytest.mark.parametrize(("hidden", "heads", "length", "samples"), [(128, 4, 128, 8), (256, 8, 128, 2),
                                                                    (512, 8, 128, 4)])
def test_layers_on_a_core_take_about_what_is_predicted(hidden, heads, length, samples):
    import torch

    from holmes_hpc.model.stage import build_stage
    torch.set_num_threads(1)
    model = gpt(hidden, 1, heads, length, 512)
    stage = build_stage(model, 0, 1, first=False, last=False, seed=0)
    x = torch.randn(samples, length, hidden, requires_grad=True)
    forward = backward = float("inf")
    for _ in range(10):
        start = time.thread_time()
        y = stage(x)
        between = time.thread_time()
        y.backward(torch.ones_like(y))
        forward, backward = min(forward, between - start), min(backward, time.thread_time() - between)
    core = MicroBatch(model, gpu("cpu"), samples, precision="float32")
    times = unit_directions(core, layer_seconds(core))
    assert 0.5 < times.forward / forward < 2
    assert 0.5 < times.backward / backward < 2
