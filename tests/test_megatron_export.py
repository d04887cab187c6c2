"""`output=megatron` against texts and groups worked out by hand from Megatron-core's documented formulas."""

import dataclasses
import functools
import re
import subprocess
import sys

import pytest

from holmes_hpc import cli
from holmes_hpc.cluster import ClusterDescription, Node, read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.megatron_export import export
from holmes_hpc.planner.megatron_export.communicators import communicator_files, kind_networks
from holmes_hpc.planner.megatron_export.mapping import layout_string, map_plan
from holmes_hpc.values import Pipeline, RankPlace, ScheduleChoice, Stage
from tests.run_folders import make_plan

MIXED = "+cluster=mixed"
NAMED = ["cluster.partitions.ib.hca='mlx5_0,mlx5_1'", "cluster.partitions.ib.interface=bond0",
         "cluster.partitions.roce.hca=mlx5_2", "cluster.partitions.roce.gid_index=3",
         "cluster.partitions.roce.interface=eth0"]


@functools.cache
def files(*overrides):
    return exported(*overrides).files


def exported(*overrides):
    config = compose(list(overrides))
    return export(config, read_cluster(config.cluster))


def with_pipelines(*pipelines, chunks=1, name="1f1b"):
    """A plan of pipelines, each (micro-batches, [(ranks, layers), ...])."""
    made = []
    for microbatches, stages in pipelines:
        first = [sum(layers for _, layers in stages[:s]) for s in range(len(stages))]
        made.append(Pipeline(microbatches, tuple(Stage(tuple(ranks), at, layers)
                                                 for (ranks, layers), at in zip(stages, first, strict=True))))
    world = 1 + max(rank for pipeline in made for stage in pipeline.stages for rank in stage.ranks)
    places = tuple(RankPlace(rank, f"ib/{rank}", 0, "a100-80g", "ib") for rank in range(world))
    return dataclasses.replace(make_plan(), world_size=world, ranks=places, pipelines=tuple(made),
                               schedule=ScheduleChoice(name, chunks=chunks))


# The example in the documentation of megatron.core.parallel_state: 16 GPUs, tensor 2, pipeline 4.
SIXTEEN = with_pipelines(*((4, [((2 * d + 4 * s, 2 * d + 4 * s + 1), 2) for s in range(4)]) for d in range(2)))


def test_groups_are_those_of_megatrons_documentation():
    grid = map_plan(SIXTEEN)
    assert (grid.tensor, grid.data, grid.pipeline, grid.is_identity) == (2, 2, 4, True)
    assert grid.groups("dp") == [(0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)]
    assert grid.groups("tp") == [(i, i + 1) for i in range(0, 16, 2)]
    assert grid.groups("pp") == [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    assert grid.groups("tp-pp") == [(0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15)]
    assert grid.groups("tp-dp-pp") == [tuple(range(16))]


def test_pipelines_on_neighbouring_ranks_use_the_other_order():
    """rank = tensor + t (stage + p data): pipeline 0 on ranks 0-3, pipeline 1 on 4-7."""
    grid = map_plan(with_pipelines(*((4, [((4 * d + s,), 2) for s in range(4)]) for d in range(2))))
    assert grid.pipelines_first and grid.is_identity


def test_any_placement_is_a_permutation():
    """Two stages, the first on the last ranks: Megatron's rank is d + 2 s."""
    grid = map_plan(with_pipelines((4, [((3,), 1), ((0,), 3)]), (4, [((2,), 1), ((1,), 3)])))
    assert not grid.pipelines_first
    # Pipelines are numbered by their first stage: that of rank 2 is number 0, so 2 -> 0, 3 -> 1, 1 -> 2, 0 -> 3.
    assert grid.ranks == (3, 2, 0, 1)
    assert grid.groups("pp") == [(2, 1), (3, 0)]


def test_chunks_go_round_the_ranks():
    grid = map_plan(with_pipelines((4, [((s % 2,), layers) for s, layers in enumerate((3, 2, 2, 1))]), chunks=2,
                                   name="interleaved"))
    assert (grid.pipeline, grid.chunks, grid.layout) == (2, 2, "Et*3|t*2|t*2|tL")


def expand(layout):
    """Return what each stage holds, by the grammar of Megatron's page on custom pipeline layouts: x*n is n times x."""
    return re.sub(r"(.)\*(\d+)", lambda match: match[1] * int(match[2]), layout).split("|")


@pytest.mark.parametrize("layers", [(26, 22), (1, 2, 1), (12, 10, 1), (4,), (1,)])
def test_layout_strings_say_the_layers(layers):
    stages = expand(layout_string(layers))
    assert [stage.count("t") for stage in stages] == list(layers)
    text = "".join(stages)
    assert text[0] == "E" and text[-1] == "L" and set(text[1:-1]) == {"t"}


def test_even_layers_need_no_layout():
    assert map_plan(SIXTEEN).layout is None
    arguments = files(MIXED, "parallel=holmes", "parallel.pipeline=2")["arguments.sh"]
    assert "--pipeline-model-parallel-layout" not in arguments


FOUR_STAGES = [MIXED, "parallel=holmes", "parallel.pipeline=4", "parallel.micro_batch_size=2", "model.num_layers=7",
               "parallel.layer_split=[2,2,2,1]", *NAMED]


def test_the_texts_of_four_stages_spread_over_nodes():
    """Stages 0 and 1 share the ib nodes, 2 and 3 the roce nodes: Megatron's rank is d + 2 s."""
    made = files(*FOUR_STAGES)
    assert made["ranks.txt"] == """\
slurm  megatron  tensor  data  pipeline  slot    local  fabric
0      0         0       0     0         ib/0    0      ib
1      2         0       0     1         ib/0    1      ib
2      1         0       1     0         ib/1    0      ib
3      3         0       1     1         ib/1    1      ib
4      4         0       0     2         roce/0  0      roce
5      6         0       0     3         roce/0  1      roce
6      5         0       1     2         roce/1  0      roce
7      7         0       1     3         roce/1  1      roce
"""
    assert made["arguments.sh"] == """\
megatron_arguments=(
  # what the plan decides
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 4
  --pipeline-model-parallel-layout 'Et*2|t*2|t*2|tL'
  --micro-batch-size 2
  --global-batch-size 32
  --use-distributed-optimizer
  --overlap-grad-reduce
  --ddp-bucket-size 16777216
  --overlap-param-gather
  # the model
  --num-layers 7
  --hidden-size 128
  --ffn-hidden-size 512
  --num-attention-heads 4
  --seq-length 128
  --max-position-embeddings 128
  --normalization LayerNorm
  --norm-epsilon 1e-05
  --position-embedding-type learned_absolute
  --init-method-std 0.02
  --attention-dropout 0
  --hidden-dropout 0
  --make-vocab-size-divisible-by 1
)
"""
    # Data groups stay in a fabric (NCCL calls InfiniBand and RoCE alike), whole pipelines and the world do not.
    assert made["communicators.yaml"] == """\
dp: {net_name: IB}
dp_cp: {net_name: IB}
ep_dp: {net_name: IB}
pp: {net_name: Socket}
mp: {net_name: Socket}
tp_ep_pp: {net_name: Socket}
tp_dp: {net_name: IB}
tp_dp_cp: {net_name: IB}
intra_dist_opt_instance: {net_name: Socket}
embd: {net_name: Socket}
"""
    assert made["environment.sh"] == """\
# Sourced by every task before Megatron-LM starts.
# Megatron's rank of each of Slurm's
megatron_ranks=(
  0 2 1 3 4 6 5 7
)
export RANK="${megatron_ranks[$SLURM_PROCID]}"
export WORLD_SIZE=8
export LOCAL_RANK="$SLURM_LOCALID"
export MASTER_ADDR="${MASTER_ADDR:?the node of Slurm rank 0}"
export MASTER_PORT="${MASTER_PORT:-29500}"
# These would override the network of every group.
unset NCCL_NET NCCL_IB_DISABLE
if (( SLURM_PROCID >= 0 && SLURM_PROCID <= 3 )); then  # ib/0, ib/1
  export NCCL_IB_HCA="=mlx5_0,mlx5_1"
  export NCCL_SOCKET_IFNAME="=bond0"
  export GLOO_SOCKET_IFNAME="bond0"
  COMMUNICATORS=communicators.yaml
elif (( SLURM_PROCID >= 4 && SLURM_PROCID <= 7 )); then  # roce/0, roce/1
  export NCCL_IB_HCA="=mlx5_2"
  export NCCL_IB_GID_INDEX="3"
  export NCCL_SOCKET_IFNAME="=eth0"
  export GLOO_SOCKET_IFNAME="eth0"
  COMMUNICATORS=communicators.yaml
fi
"""
    assert set(made) == {"README.txt", "ranks.txt", "arguments.sh", "communicators.yaml", "environment.sh", "run.sh",
                         "world_group.py"}


def test_the_scripts_run(tmp_path):
    """Every task starts Megatron with its rank and arguments; here `python` is a script that says how it was called."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text('#!/bin/bash\necho "$RANK of $WORLD_SIZE, $LOCAL_RANK, $MASTER_ADDR, '
                                             'net ${NCCL_NET-unset}, $NCCL_IB_GID_INDEX"\nprintf "%s\\n" "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    exported(*FOUR_STAGES).write(tmp_path / "out")
    variables = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
                 "NCCL_NET": "IB", "MEGATRON": "/opt/megatron", "MASTER_ADDR": "node0"}
    run = ["bash", str(tmp_path / "out" / "run.sh"), "--train-iters", "10"]
    lines = subprocess.run(run, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "6 of 8, 1, node0, net unset, 3"
    assert lines[1:3] == [str(tmp_path / "out" / "world_group.py"), "/opt/megatron/pretrain_gpt.py"]
    assert lines[lines.index("--pipeline-model-parallel-layout") + 1] == "Et*2|t*2|t*2|tL"
    assert lines[-4:] == ["--nccl-communicator-config-path", str(tmp_path / "out" / "communicators.yaml"),
                          "--train-iters", "10"]
    del variables["MASTER_ADDR"]
    missing = subprocess.run(run, env=variables, capture_output=True, text=True, check=False)
    assert missing.returncode and "the node of Slurm rank 0" in missing.stderr


def test_the_default_group_is_put_on_sockets(tmp_path):
    """world_group.py hands options to torch's default group; here torch is a stand-in that prints them."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "distributed.py").write_text(
        "import types\n"
        "class ProcessGroupNCCL:\n"
        "    Options = staticmethod(lambda: types.SimpleNamespace(config=types.SimpleNamespace(net_name=None)))\n"
        "def init_process_group(backend, pg_options=None):\n"
        "    print(backend, pg_options.config.net_name)\n")
    script = tmp_path / "repository" / "pretrain.py"
    script.parent.mkdir()
    (script.parent / "beside.py").write_text("NAME = 'beside'")
    script.write_text("import sys, beside, torch.distributed as d\nd.init_process_group('nccl')\n"
                      "print(beside.NAME, sys.argv[1:], __name__)\n")
    (tmp_path / "world_group.py").write_text(files(*FOUR_STAGES)["world_group.py"])
    done = subprocess.run([sys.executable, str(tmp_path / "world_group.py"), str(script), "--x"], capture_output=True,
                          text=True, env={"PYTHONPATH": str(tmp_path)}, check=True)
    assert done.stdout.splitlines() == ["nccl Socket", "beside ['--x'] __main__"]


def test_a_fabric_of_its_own_network_has_its_own_file():
    """Data groups of the ib nodes use InfiniBand, those of nodes with Ethernet alone use sockets."""
    made = files(MIXED, "parallel=holmes", "parallel.pipeline=2", "cluster.partitions.roce.nic=eth25")
    assert "dp: {net_name: IB}" in made["communicators-ib.yaml"]
    assert "dp: {net_name: Socket}" in made["communicators-roce.yaml"]
    for fabric in ("ib", "roce"):
        assert "pp: {net_name: Socket}" in made[f"communicators-{fabric}.yaml"]
        assert f"COMMUNICATORS=communicators-{fabric}.yaml" in made["environment.sh"]


def test_members_of_a_group_agree_on_its_network():
    """Of three fabrics two share data groups: both put them on Ethernet, and the third keeps its fast NICs."""
    grid = map_plan(with_pipelines((4, [((0,), 2), ((2,), 2)]), (4, [((1,), 2), ((3,), 2)])))
    nodes = tuple(Node(f"{fabric}/{i}", fabric, i, fabric, "a100-80g", 1, "hdr200", 1, 25.0)
                  for fabric, i in (("a", 0), ("b", 0), ("c", 0), ("c", 1)))
    cluster = ClusterDescription("three", nodes)
    found = kind_networks(grid, cluster, None)
    assert {fabric: kinds["dp"] for fabric, kinds in found.items()} == {"a": "ethernet", "b": "ethernet", "c": "ib"}
    assert kind_networks(grid, cluster, "ethernet")["c"]["dp"] == "ethernet"


def test_networks_that_megatron_cannot_name_are_left_to_nccl():
    texts = communicator_files({"a": {"dp": "efa", "pp": "ethernet"}, "b": {"dp": "slingshot"}})
    assert texts["a"] == "# dp: efa, left to NCCL's plugin\npp: {net_name: Socket}\n"
    assert texts["b"].splitlines()[-1] == "{}"


def test_one_fabric_needs_no_wrapper_and_llamas_have_their_arguments():
    made = files("+cluster=ib", "model=llama_tiny", "parallel=megatron", "parallel.tensor=2",
                 "train.precision=bfloat16", "parallel.sequence_parallel=true", "parallel.recompute=full")
    assert "world_group" not in made["run.sh"] and "world_group.py" not in made
    arguments = made["arguments.sh"]
    for words in ("--tensor-model-parallel-size 2", "--sequence-parallel", "--recompute-granularity full",
                  "--recompute-method uniform", "--recompute-num-layers 1", "--bf16", "--swiglu",
                  "--normalization RMSNorm", "--position-embedding-type rope", "--rotary-base 10000",
                  "--disable-bias-linear", "--untie-embeddings-and-output-weights"):
        assert f"  {words}\n" in arguments, words
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in made["environment.sh"]


@pytest.mark.parametrize(("precision", "expected"), [
    ("float32", []),
    ("bfloat16", ["--bf16", "--accumulate-allreduce-grads-in-fp32"]),
    ("float16", ["--fp16", "--accumulate-allreduce-grads-in-fp32", "--initial-loss-scale 4096",
                 "--loss-scale-window 50", "--hysteresis 1"]),
])
def test_gradients_are_float32_and_the_loss_scale_is_ours(precision, expected):
    made = files("+cluster=ib", "parallel=megatron", f"train.precision={precision}", "train.loss_scale=4096",
                 "train.loss_scale_window=50")
    arguments = made["arguments.sh"].splitlines()
    at = [line.strip() for line in arguments
          if re.match(r"\s*--(bf16|fp16|accumulate|initial-loss|loss-scale|hysteresis)", line)]
    assert at == expected


def test_the_fastest_expressible_plan_is_taken_and_priced_as_megatron_runs_it():
    made = exported(MIXED)
    assert (made.plan.schedule.name, made.plan.schedule.warmup_extra, made.plan.schedule.turns) == ("1f1b", 0, False)
    for strategy in ("holmes", "megatron"):
        other = exported(MIXED, f"parallel.strategy={strategy}")
        assert made.predicted.step_seconds <= other.predicted.step_seconds
    # Every group of the baseline is on Ethernet; a pipeline's communicator too where Holmes would use the fast NICs.
    assert other.predicted.step_seconds == pytest.approx(other.plan.predicted.step_seconds, rel=0.02)
    assert "Predicted as Megatron-LM runs it" in made.files["README.txt"]


@pytest.mark.parametrize(("plan", "reason"), [
    (with_pipelines((4, [((0,), 2), ((1,), 2)]), (4, [((2,), 4)])), "2 stages beside 1 stage"),
    (with_pipelines((4, [((0,), 2), ((1,), 2)]), (4, [((2,), 1), ((3,), 3)])), "layers 2+2 beside layers 1+3"),
    (with_pipelines((4, [((0,), 2), ((1,), 2)]), (6, [((2,), 2), ((3,), 2)])), "4 micro-batches beside 6"),
    (with_pipelines((4, [((0, 1), 2), ((2, 3), 2)]), (4, [((4,), 2), ((5,), 2)])),
     "degrees 2+2 beside tensor-parallel degrees 1+1"),
    (with_pipelines((4, [((0, 1), 2), ((2,), 2)])), "tensor-parallel degrees 2+1"),
    (with_pipelines((4, [((0,), 2), ((2,), 2)]), (4, [((1,), 2), ((2,), 2)])), "data-parallel degrees 2, 1"),
    (with_pipelines((4, [((0,), 2), ((1,), 2)]), (4, [((1,), 2), ((0,), 2)])), "rank 1 is in pipelines 0 and 1"),
    (with_pipelines((4, [((0,), 2), ((0,), 2)])), "two stages of pipeline 0"),
    (with_pipelines((4, [((0,), 2), ((2,), 2)])), "rank 1 computes nothing"),
    (with_pipelines((3, [((s % 2,), 1) for s in range(4)]), chunks=2, name="interleaved"),
     "no multiple of its 2 ranks"),
    (with_pipelines((4, [((s,), 1) for s in (0, 1, 1, 0)]), chunks=2, name="interleaved"), "do not go round"),
])
def test_what_megatron_cannot_express_is_refused(plan, reason):
    with pytest.raises(PlanRefusedError, match=re.escape(reason)) as refusal:
        map_plan(plan)
    assert re.search(r"\. (Set|Change|Use|Leave) ", str(refusal.value))


@pytest.mark.parametrize(("override", "reason"), [
    ("parallel.schedule=gpipe", "parallel.schedule=gpipe"), ("parallel.warmup_extra=1", "parallel.warmup_extra=1"),
    ("parallel.turns=true", "parallel.turns=true"), ("parallel.two_level=true", "parallel.two_level=true"),
])
def test_settings_that_megatron_lacks_are_refused(override, reason, capsys):
    assert cli.run(["plan", MIXED, "output=megatron", override]) == 2
    assert reason in capsys.readouterr().err


def test_cpus_are_refused(capsys):
    assert cli.run(["plan", "+cluster=laptop", "output=megatron"]) == 2
    assert "has no GPU" in capsys.readouterr().err


def test_the_command_prints_all_files_or_writes_them(tmp_path, capsys):
    assert cli.run(["plan", MIXED, "output=megatron"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("====")][0] == "==== README.txt ===="
    assert cli.run(["plan", MIXED, "output=megatron", f"output_folder={tmp_path / 'out'}"]) == 0
    assert capsys.readouterr().out == (tmp_path / "out" / "README.txt").read_text()
    for path in (tmp_path / "out").iterdir():
        assert f"==== {path.name} ====\n{path.read_text()}" in text


def test_holmes_takes_a_data_degree_that_is_a_grid():
    """Four nodes beside two: as many pipelines as both fabrics can be divided into."""
    unequal = [MIXED, "parallel=holmes", "cluster.partitions.ib.nodes=4", "model.num_layers=8"]
    made = exported(*unequal)
    grid = map_plan(made.plan)
    assert made.plan.strategy == "holmes" and grid.data in (1, 2, 4) and grid.data * grid.pipeline == 12
    if "left out" in made.files["README.txt"]:
        assert "data-parallel degrees" in made.files["README.txt"]


LLAMA = [MIXED, "model=llama_tiny", "parallel=megatron", "parallel.pipeline=2"]


def test_features_of_families_become_arguments():
    text = files(*LLAMA, "model.head_size=48", "model.attention_bias=qkv", "model.query_key_norm=head",
                 "model.rotary_scaling=llama3", "model.rotary_factor=8", "model.rotary_fraction=0.5")["arguments.sh"]
    for argument in ("--kv-channels 48", "--add-qkv-bias", "--qk-layernorm", "--use-rope-scaling",
                     "--rope-scaling-factor 8", "--rotary-percent 0.5"):
        assert argument in text
    assert "--max-position-embeddings 512" in files(MIXED, "model.max_positions=512", "parallel=megatron",
                                                    "parallel.pipeline=2")["arguments.sh"]


@pytest.mark.parametrize("setting", ["norm_order=after", "parallel_residual=true", "embedding_scale=2",
                                     "activation=geglu",
                                     "attention_scale=0.5", "query_key_norm=all", "attention_bias=all",
                                     "normalization=rmsnorm_1p", "rotary_original_length=4096", "rotary_factor=1.5"])
def test_what_megatron_has_not_is_refused_by_its_name(setting):
    scaling = "linear" if setting.startswith("rotary_factor") else "llama3"
    with pytest.raises(PlanRefusedError, match="output=megatron: model." + setting.partition("=")[0]):
        exported(*LLAMA, f"model.rotary_scaling={scaling}", f"model.{setting}")
