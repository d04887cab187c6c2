"""Rules between settings that hold whatever the cluster is."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, ListConfig

from holmes_hpc import registry
from holmes_hpc.config.adapter_rules import check_adapters
from holmes_hpc.config.data_rules import check_data
from holmes_hpc.config.describe import near
from holmes_hpc.config.disturbance_rules import check_disturbed_steps
from holmes_hpc.config.fields import MOST_RANKS
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values.schedule_kinds import AUTO, SCHEDULE_KINDS
from holmes_hpc.values.strategy_kinds import STRATEGY_KINDS, strategy_kind
from holmes_hpc.values.tracker_kinds import TRACKER_KINDS
from holmes_hpc.words import counted

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NAME = re.compile(r"\w[\w .,=+@-]*")
_NAMES = "it begins with a letter, a digit or _, and holds besides only blanks and . , = + @ -, no slash; rename it."
LAYER_SPLITS = ("adaptive", "holmes", "uniform")
_TIME_LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}|infinite|unlimited", re.IGNORECASE)
_MOST_WARMUP_EXTRA = 65_536
SIGNALS = ("USR2", "USR1", "TERM", "INT", "HUP")
_SHORT_FORM = ("nodes", "gpus_per_node", "gpu", "nic", "nics_per_node")


def check_rules(config: DictConfig, *, cluster_named: bool) -> None:
    """Check every rule between settings. Raises ConfigurationError for the first that is broken."""
    every: list[Callable[[DictConfig], None]] = [_model, _batch, _layer_split, _schedule, _pipelines, _optimizer,
                                                 _cooldown, _profile, check_data, _run, _signal]
    if cluster_named:
        every += [_cluster_name, _partitions, check_adapters, _links, _profiled_ranks, check_disturbed_steps]
    for rule in every:
        rule(config)


def _model(config: DictConfig) -> None:
    model = config.model
    if model.head_size is None and model.hidden_size % model.num_heads:
        raise ConfigurationError(
            f"model.hidden_size={model.hidden_size} is not divisible by model.num_heads={model.num_heads}, so a head "
            "has no whole width; change one of them, or set model.head_size."
        )
    if model.num_kv_heads is not None and model.num_heads % model.num_kv_heads:
        raise ConfigurationError(
            f"model.num_heads={model.num_heads} is not divisible by model.num_kv_heads={model.num_kv_heads}, so heads "
            "cannot share key-value heads evenly; change one of them."
        )
    head_size = model.hidden_size // model.num_heads
    if model.position_embedding == "rotary" and model.head_size is None and head_size % 2:
        raise ConfigurationError(
            f"model.position_embedding=rotary turns pairs, and a head has the odd width {head_size} (model.hidden_size="
            f"{model.hidden_size} over model.num_heads={model.num_heads}); change one of them, or use learned."
        )


def _batch(config: DictConfig) -> None:
    batch, micro = config.train.global_batch_size, config.parallel.micro_batch_size
    if micro is not None and batch % micro:
        raise ConfigurationError(
            f"train.global_batch_size={batch} is not divisible by parallel.micro_batch_size={micro}; change one of "
            "them."
        )


def _layer_split(config: DictConfig) -> None:
    split, layers, stages = config.parallel.layer_split, config.model.num_layers, config.parallel.pipeline
    if isinstance(split, ListConfig | list):
        if not all(_whole(count) and count >= 1 for count in split):
            raise ConfigurationError(f"parallel.layer_split={_text(split)}: every count is a whole number from 1.")
        if sum(split) != layers:
            raise ConfigurationError(
                f"parallel.layer_split={_text(split)} sums to {sum(split)}, and model.num_layers={layers}; make them "
                "equal."
            )
        _split_length(split, config)
    elif split not in LAYER_SPLITS:
        raise ConfigurationError(
            f"parallel.layer_split={split}: expected one of {', '.join(LAYER_SPLITS)}, or a list of layer counts such "
            f"as [2,2].{near(str(split), LAYER_SPLITS)}"
        )
    count = config.parallel.chunks or 1
    if count > layers:
        raise ConfigurationError(
            f"parallel.chunks={count} gives each rank more stages than model.num_layers={layers} has layers; lower "
            "parallel.chunks, or raise model.num_layers."
        )
    if stages is not None and stages * count > layers:
        chunks = f" times parallel.chunks={count}" if count > 1 else ""
        raise ConfigurationError(
            f"parallel.pipeline={stages}{chunks} makes more stages than model.num_layers={layers}; raise "
            f"model.num_layers or use at most {counted(layers, 'stage')}."
        )


def _split_length(split: Any, config: DictConfig) -> None:
    stages, chunks = config.parallel.pipeline, config.parallel.chunks or 1
    if stages is not None and len(split) != stages * chunks:
        raise ConfigurationError(
            f"parallel.layer_split={_text(split)} has {len(split)} counts, and parallel.pipeline={stages} with "
            f"parallel.chunks={chunks} needs {stages * chunks}: one for each stage."
        )


def _schedule(config: DictConfig) -> None:
    parallel = config.parallel
    extra = parallel.warmup_extra
    if extra != "auto" and not (_whole(extra) and 0 <= extra <= _MOST_WARMUP_EXTRA):
        raise ConfigurationError(f"parallel.warmup_extra={extra}: expected auto, or a whole number from 0 to "
                                 f"{_MOST_WARMUP_EXTRA:,}.")
    chunks = parallel.chunks or 1
    in_chunks = [name for name, kind in SCHEDULE_KINDS.items() if kind.in_chunks]
    if chunks > 1 and parallel.schedule not in (AUTO, *in_chunks):
        raise ConfigurationError(
            f"parallel.chunks={chunks} needs parallel.schedule={' or '.join(in_chunks)} (or auto), and it is "
            f"{parallel.schedule}; set parallel.chunks=1 or change the schedule."
        )
    if parallel.schedule in in_chunks and chunks < 2:
        raise ConfigurationError(f"parallel.schedule={parallel.schedule} needs parallel.chunks of at least 2, and it "
                                 "is 1.")
    if parallel.sequence_parallel and parallel.tensor == 1:
        raise ConfigurationError(
            "parallel.sequence_parallel=true splits between tensor-parallel ranks, and parallel.tensor=1; raise "
            "parallel.tensor, or set parallel.sequence_parallel=false."
        )


def _pipelines(config: DictConfig) -> None:
    parallel = config.parallel
    manual = strategy_kind(parallel.strategy).is_written
    if manual and not parallel.pipelines:
        raise ConfigurationError(
            f"parallel.strategy={parallel.strategy} needs parallel.pipelines: a list, each with `microbatches` and "
            "`stages`, as in "
            "'parallel.pipelines=[{microbatches: 8, stages: [{ranks: [0], layers: 2}, {ranks: [1], layers: 2}]}]'."
        )
    if parallel.pipelines is not None and not manual:
        raise ConfigurationError(
            f"parallel.pipelines and parallel.strategy={parallel.strategy} exclude each other; set "
            f"parallel.strategy={_written()}, or leave parallel.pipelines out."
        )
    said = {"degrees": ("tensor", "pipeline", "data"), "layers": ("layer_split",)}
    for what, names in said.items():
        for name in names:
            if manual and parallel[name] not in (None, "adaptive"):
                raise ConfigurationError(
                    f"parallel.{name} and parallel.strategy={parallel.strategy} exclude each other: "
                    f"parallel.pipelines says the {what}. Leave parallel.{name} out."
                )


def _written() -> str:
    """Return the strategies whose layout the user writes."""
    return " or ".join(name for name, kind in STRATEGY_KINDS.items() if kind.is_written)


def _optimizer(config: DictConfig) -> None:
    optimizer = config.optimizer
    if config.parallel.overlap_param_gather and not optimizer.sharded:
        raise ConfigurationError(
            "parallel.overlap_param_gather=true gathers the shards that optimizer.sharded=false does without; set "
            "optimizer.sharded=true, or leave parallel.overlap_param_gather out."
        )
    if optimizer.min_lr > optimizer.lr:
        raise ConfigurationError(
            f"optimizer.min_lr={optimizer.min_lr:g} is above optimizer.lr={optimizer.lr:g}, where the schedule starts; "
            "lower optimizer.min_lr or raise optimizer.lr."
        )
    share = optimizer.lr * optimizer.weight_decay
    if share >= 1:
        raise ConfigurationError(
            f"optimizer.weight_decay={optimizer.weight_decay:g} is multiplied by the learning rate, and with "
            f"optimizer.lr={optimizer.lr:g} a step would take {share:.4g} times the weights away from them, so that "
            "nothing is left; lower one of them."
        )
    if optimizer.decay_steps is not None and optimizer.decay_steps <= optimizer.warmup_steps:
        raise ConfigurationError(
            f"optimizer.decay_steps={optimizer.decay_steps} is not after optimizer.warmup_steps="
            f"{optimizer.warmup_steps}; raise the first or lower the second."
        )


def _cooldown(config: DictConfig) -> None:
    optimizer = config.optimizer
    if optimizer.cooldown_steps is not None and optimizer.schedule != "wsd":
        raise ConfigurationError(
            f"optimizer.cooldown_steps={optimizer.cooldown_steps} belongs to optimizer.schedule=wsd, and it is "
            f"{optimizer.schedule}; leave it out, or set optimizer.schedule=wsd."
        )


def _profile(config: DictConfig) -> None:
    train = config.train
    late = [step for step in train.profile_steps if step > train.steps]
    if late:
        raise ConfigurationError(
            f"train.profile_steps={_text(train.profile_steps)}: step {late[0]} is not trained, as train.steps="
            f"{train.steps}; name one up to that."
        )


def _profiled_ranks(config: DictConfig) -> None:
    wanted, ranks = config.train.profile_ranks, _world_size(config.cluster)
    missing = [rank for rank in wanted if rank >= ranks]
    if missing and config.train.profile_steps:
        raise ConfigurationError(
            f"train.profile_ranks={_text(wanted)}: there is no rank {missing[0]}; the cluster has the ranks 0 to "
            f"{ranks - 1}."
        )


def _world_size(cluster: DictConfig) -> int:
    parts = cluster.partitions.values() if cluster.partitions else [cluster]
    return sum((part.nodes or 1) * (part.gpus_per_node or 1) for part in parts)


def _run(config: DictConfig) -> None:
    name = config.run.name
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"run.name={name}: it names a folder below run.folder, so {_NAMES}"
        )
    if not config.run.folder:
        raise ConfigurationError("run.folder is empty; name a folder, such as runs.")
    for tracker in config.run.trackers or ():
        _tracker(config, tracker)


def _tracker(config: DictConfig, tracker: str) -> None:
    if tracker in registry.TRACKERS:
        return
    if tracker not in TRACKER_KINDS:
        raise registry.unknown(registry.TRACKERS, tracker, tuple(TRACKER_KINDS))
    own_python = config.launch.python or config.launch.container  # which may have what this one has not
    if not own_python and importlib.util.find_spec(tracker) is None:
        raise ConfigurationError(
            f"run.trackers names {tracker}, and the package `{tracker}` is not installed. Run pip install {tracker}, "
            "or leave it out."
        )


def _signal(config: DictConfig) -> None:
    if config.launch.signal not in SIGNALS:
        raise ConfigurationError(
            f"launch.signal={config.launch.signal}: expected a signal by which ranks can save and stop, one of "
            f"{', '.join(SIGNALS)}.{near(str(config.launch.signal), SIGNALS)}"
        )


def _cluster_name(config: DictConfig) -> None:
    if not _NAME.fullmatch(config.cluster.name):
        raise ConfigurationError(
            f"cluster.name={config.cluster.name}: it becomes a folder's name, so {_NAMES}"
        )


def _partitions(config: DictConfig) -> None:
    cluster = config.cluster
    short = [name for name in _SHORT_FORM if cluster[name] is not None]
    if cluster.partitions and short:
        raise ConfigurationError(
            f"cluster.{short[0]} and cluster.partitions exclude each other: the short form describes one label of "
            f"equal nodes. Set cluster.partitions.LABEL.{short[0]} (labels: {', '.join(cluster.partitions)}), or use "
            "+cluster=uniform."
        )
    ranks = _world_size(cluster)
    if ranks > MOST_RANKS:
        raise ConfigurationError(f"cluster.name={cluster.name}: it has {ranks:,} GPUs, and at most {MOST_RANKS:,} are "
                                 "planned. Lower nodes or gpus_per_node of its labels.")
    if not cluster.partitions and cluster.nodes is None:
        raise ConfigurationError("cluster.partitions has no label, so the cluster has no nodes. Describe them under "
                                 "cluster.partitions.LABEL (nodes, gpus_per_node, gpu, nic).")
    for label, partition in cluster.partitions.items():
        path = f"cluster.partitions.{label}"
        if not _LABEL.fullmatch(str(label)):
            raise ConfigurationError(f"{path}: a label is made of letters, digits, `_`, `-` and `.`; rename it.")
        limit = partition.time_limit
        if limit is not None and not _TIME_LIMIT.fullmatch(limit):
            raise ConfigurationError(
                f"{path}.time_limit={limit}: expected a time as Slurm writes it, such as 12:00:00, 2-00:00:00 or 90 "
                "(minutes)."
            )


def _links(config: DictConfig) -> None:
    for index, link in enumerate(config.cluster.links):
        path = f"cluster.links.{index}"
        if len(link.between) != 2 or link.between[0] == link.between[1]:
            raise ConfigurationError(f"{path}.between={_text(link.between)}: expected two different fabrics.")
        if link.bandwidth_gbps is not None and link.shared_gbps is not None:
            raise ConfigurationError(
                f"{path}: bandwidth_gbps (for each node) and shared_gbps (a trunk that all share) exclude each other; "
                "keep one."
            )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(values: Any) -> str:
    return "[" + ",".join(str(value) for value in values) + "]"
