"""The typed schema of every Hydra group; `config.fields` says what stands in the metadata of a setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holmes_hpc.config.cluster_schema import Cluster
from holmes_hpc.config.fields import (
    FACTOR,
    MOST_RANKS,
    MOST_RATE,
    MOST_STEPS,
    MOST_WIDTH,
    SCALE,
    SECONDS,
    group,
    setting,
)
from holmes_hpc.values.backend_kinds import BACKEND_KINDS
from holmes_hpc.values.packings import FORMATS, PACKINGS
from holmes_hpc.values.schedule_kinds import AUTO, SCHEDULE_KINDS
from holmes_hpc.values.strategy_kinds import COMPARE_ALL_HELP, STRATEGY_KINDS

SCHEDULES = {
    "cosine": "half a cosine down to min_lr",
    "linear": "a line down to min_lr",
    "wsd": "lr until cooldown_steps before the end, then a line down to min_lr",
    "constant": "lr to the end",
}
"""Courses of the learning rate after the warm-up, with a line of help."""
TOKEN_TYPES = ("uint8", "uint16", "uint32", "int32", "int64")
"""Types of the tokens in a file without a header."""
SPECIAL_TOKENS = ("text", "control")
"""What a text that spells a special token may become."""


@dataclass
class Model:
    """A decoder-only transformer."""

    name: str = setting("gpt_tiny", "the model's name in tables")
    num_layers: int = setting(4, "transformer layers", minimum=1, maximum=1024)
    hidden_size: int = setting(128, "width of the residual stream", minimum=1, maximum=1 << 20)
    num_heads: int = setting(4, "attention heads", minimum=1, maximum=1 << 16)
    num_kv_heads: int | None = setting(None, "key-value heads (grouped-query attention); default: num_heads",
                                       minimum=1, maximum=1 << 16)
    ffn_hidden_size: int | None = setting(None, "width of the feed-forward layer; default: 4 times hidden_size",
                                          minimum=1, maximum=MOST_WIDTH)
    vocab_size: int = setting(256, "tokens of the vocabulary", minimum=2, maximum=1 << 31)
    sequence_length: int = setting(128, "tokens of a sample", minimum=1, maximum=1 << 24)
    tied_embeddings: bool = setting(True, "the head shares the embedding's table")
    normalization: str = setting("layernorm", "normalisation; rmsnorm_1p multiplies by 1 + weight",
                                 valid=("layernorm", "rmsnorm", "rmsnorm_1p"),
                                 added="normalizations")
    activation: str = setting("gelu", "activation of the feed-forward layer",
                              valid=("gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh"),
                              added="activations")
    position_embedding: str = setting("learned", "positions", valid=("learned", "rotary"))
    rotary_base: float = setting(10000.0, "base of the rotary angles", minimum=1, maximum=1e12)
    bias: bool = setting(True, "linear layers and layernorm have biases")
    normalization_epsilon: float = setting(1e-5, "added to the variance", minimum=1e-30, maximum=0.1)
    initialization_std: float = setting(0.02, "standard deviation of the initial weights", minimum=1e-9,
                                        maximum=10)
    head_size: int | None = setting(None, "width of an attention head; default: hidden_size / num_heads", minimum=1,
                                    maximum=1 << 16)
    attention_bias: str | None = setting(None, "which projections of the attention have biases; default: all where "
                                               "bias is true, else none", valid=("all", "qkv", "none"))
    query_key_norm: str = setting("none", "RMSNorm of queries and keys: of each head, or over all heads",
                                  valid=("none", "head", "all"))
    norm_order: str = setting("before", "norms lie before attention and feed-forward layer, after, or both",
                              valid=("before", "after", "both"))
    parallel_residual: bool = setting(False, "attention and feed-forward layer read the same input, side by side")
    rotary_fraction: float = setting(1.0, "share of each head that rotary positions turn", minimum=1e-4, maximum=1)
    rotary_scaling: str = setting("none", "how rotary frequencies are changed for long samples",
                                  valid=("none", "linear", "llama3"))
    rotary_factor: float = setting(1.0, "linear, llama3: frequencies are divided by this", **FACTOR)
    rotary_low_frequency_factor: float = setting(1.0, "llama3: longer waves than rotary_original_length over this are "
                                                      "divided wholly", **FACTOR)
    rotary_high_frequency_factor: float = setting(4.0, "llama3: shorter waves than rotary_original_length over this "
                                                       "stay", **FACTOR)
    rotary_original_length: int = setting(8192, "llama3: sample length that the model was first trained with",
                                          minimum=1, maximum=1 << 30)
    max_positions: int | None = setting(None, "rows of the table of learned positions; default: sequence_length",
                                        minimum=1, maximum=1 << 24)
    embedding_scale: float = setting(1.0, "what token embeddings are multiplied by", **SCALE)
    attention_scale: float | None = setting(None, "what scores are multiplied by; default: 1 / sqrt(head_size)",
                                            **SCALE)
    from_pretrained: str | None = setting(None, "folder of a published model: its config.json sets this group, "
                                                "and training starts from its weights")
    family: str | None = setting(None, "family of Hugging Face models that `holmes export` writes (model_type); "
                                       "default: the first that has all that this model has")


@dataclass
class Parallel:
    """How the work is divided. Fields left null are chosen by the planner."""

    strategy: str = setting(AUTO, "who lays ranks out", valid=(AUTO, *STRATEGY_KINDS), added="strategies",
                            told={AUTO: COMPARE_ALL_HELP, **{name: kind.help for name, kind in STRATEGY_KINDS.items()}})
    tensor: int | None = setting(None, "tensor-parallel degree", minimum=1, maximum=MOST_RANKS)
    pipeline: int | None = setting(None, "pipeline stages", minimum=1, maximum=MOST_RANKS)
    data: int | None = setting(None, "data-parallel degree", minimum=1, maximum=MOST_RANKS)
    sequence_parallel: bool = setting(False, "split activations along the sequence between tensor ranks")
    micro_batch_size: int | None = setting(None, "samples of a micro-batch", minimum=1, maximum=10**6)
    chunks: int | None = setting(None, "virtual stages of a rank (interleaved schedule); null: 1, and strategy auto "
                                       "tries 2 and 4", minimum=1, maximum=1024)
    schedule: str = setting(AUTO, "pipeline schedule", valid=(AUTO, *SCHEDULE_KINDS),
                            told={name: kind.help for name, kind in SCHEDULE_KINDS.items()})
    warmup_extra: Any = setting("auto", "extra warm-up forwards upstream of a slow hop: auto, or a number from 0")
    layer_split: Any = setting("adaptive", "adaptive, holmes, uniform, or a list of layer counts by stage")
    alpha: float = setting(1.05, "the hyper-parameter of layer_split=holmes", minimum=1e-3, maximum=1e3)
    overlap_grad_reduce: bool | None = setting(None, "reduce gradients under the backward")
    overlap_param_gather: bool | None = setting(None, "gather parameters under the next forward")
    bucket_mib: float | None = setting(None, "2^20 bytes of float32 gradients that are summed at a time; default: 2 on "
                                             "CPUs, 64 on GPUs", minimum=1e-6, maximum=1e6)
    turns: bool | None = setting(None, "pipelines of a node take turns on its slow NIC")
    two_level: bool | None = setting(None, "gradients of owners in several fabrics are summed inside each first, "
                                             "then across; null: true, and parallel=megatron always in one level")
    cross_fabric_dtype: str | None = setting(None, "type of gradients on the wire between fabrics",
                                             valid=("float32", "bfloat16"), not_run=("bfloat16",))
    recompute: str = setting("auto", "activation recomputation; auto: none, unless it makes a faster plan fit",
                             valid=("auto", "none", "selective", "full"))
    plain: bool = setting(True, "strategy auto: of plans that predictions do not tell apart take the plainest")
    leave_nodes_out: bool = setting(False, "strategy auto: leave out nodes that slow the others down")
    search_seconds: float | None = setting(None, "strategy auto: about how long the search may take; it counts work, "
                                                 "so that a slower machine finds the same plan", minimum=1e-3,
                                                 maximum=1e6)
    pipelines: list[Any] | None = setting(None, "strategy manual: the pipelines, each with `microbatches` and "
                                                "`stages`, a list of {ranks: [0, 1], layers: 4}")


@dataclass
class Train:
    """The training loop."""

    steps: int = setting(150, "optimizer steps", minimum=1, maximum=MOST_STEPS)
    global_batch_size: int = setting(32, "samples of a step over all pipelines", minimum=1, maximum=10**6)
    seed: int = setting(1234, "seed of the weights and of the data order", minimum=0, maximum=10**18)
    precision: str = setting("float32", "arithmetic", valid=("float32", "bfloat16", "float16"))
    compile: bool = setting(False, "layers are compiled by torch's compiler at the start, which takes up to minutes")
    on_nonfinite: str = setting("stop", "when the loss or the gradients are not finite: end the run, or leave the "
                                        "step out and count it", valid=("stop", "skip"))
    loss_scale: float = setting(65536.0, "float16: what losses are multiplied by at first", minimum=1, maximum=1e12)
    loss_scale_window: int = setting(1000, "float16: good steps after which the loss scale is doubled", minimum=1,
                                     maximum=MOST_STEPS)
    checkpoint_every: int = setting(0, "steps between checkpoints, the last step has one too; 0: none", minimum=0,
                                    maximum=MOST_STEPS)
    keep_checkpoints: int = setting(3, "checkpoints that stay; older ones are removed", minimum=1, maximum=MOST_STEPS)
    checkpoint_sha256: bool = setting(False, "checkpoints have SHA-256 of all they hold, checked when they are loaded; "
                                             "that of the manifest is said at each save and resume")
    on_save_error: str = setting("stop", "when a checkpoint cannot be written: end the run, or train on without it",
                                 valid=("stop", "continue"))
    validate_every: int = setting(50, "steps between validations; 0: only after the last step", minimum=0,
                                  maximum=MOST_STEPS)
    validation_samples: int = setting(64, "samples of a validation", minimum=1, maximum=10**6)
    timeline_every: int = setting(50, "steps between recorded timelines; 0: none", minimum=0, maximum=MOST_STEPS)
    profile_steps: list[int] = setting([], "steps over which torch's profiler runs", minimum=1, maximum=MOST_STEPS)
    profile_ranks: list[int] = setting([0], "ranks on which it runs then", minimum=0, maximum=MOST_RANKS - 1)
    resume: str = setting("auto", "auto (this run's newest checkpoint, where it was requeued), never, or the "
                                  "path of a checkpoint or run folder, or a run's id or name below run.folder")
    resume_schedule: str = setting("keep", "where optimizer.decay_steps is null, a resume keeps the length of the "
                                           "checkpoint's learning-rate schedule, or takes train.steps (new)",
                                   valid=("keep", "new"))
    start_timeout_seconds: float = setting(300.0, "longest wait at the start without progress", **SECONDS)
    timeout_seconds: float | None = setting(None, "longest wait for another rank while training, longest silence of a "
                                                  "rank, and longest time for one action or the data of a step; "
                                                  "default: 120, and four steps as they are predicted", **SECONDS)
    checkpoint_timeout_seconds: float = setting(600.0, "longest time for writing or reading a checkpoint", **SECONDS)


@dataclass
class Optimizer:
    """The optimizer and its learning-rate schedule: linear warm-up, then down to `min_lr`."""

    name: str = setting("adamw", "optimizer", valid=("adamw", "sgd"))
    sharded: bool = setting(True, "ranks that hold the same parameters share the optimizer's state (ZeRO-1)")
    lr: float = setting(1e-3, "highest learning rate", minimum=1e-12, maximum=MOST_RATE)
    schedule: str = setting("cosine", "learning rate after the warm-up", valid=tuple(SCHEDULES), told=SCHEDULES)
    min_lr: float = setting(1e-4, "learning rate at the end of the schedule", minimum=0, maximum=MOST_RATE)
    warmup_steps: int = setting(10, "steps of the linear warm-up", minimum=0, maximum=MOST_STEPS)
    decay_steps: int | None = setting(None, "step at which the schedule ends; default: train.steps, or what "
                                      "the checkpoint had (train.resume_schedule)", minimum=1, maximum=MOST_STEPS)
    cooldown_steps: int | None = setting(None, "wsd: steps in which it comes down; default: a tenth of the schedule",
                                         minimum=1, maximum=MOST_STEPS)
    decayed: str = setting("matrices", "what weight decay concerns: matrices, not biases and norms; or all",
                           valid=("matrices", "all"))
    beta1: float = setting(0.9, "adamw: decay of the first moment", minimum=0, below=1)
    beta2: float = setting(0.95, "adamw: decay of the second moment", minimum=0, below=1)
    epsilon: float = setting(1e-8, "adamw: added to the root of the second moment", minimum=1e-30, maximum=1)
    momentum: float = setting(0.9, "sgd: momentum", minimum=0, below=1)
    weight_decay: float = setting(0.1, "decoupled weight decay (optimizer.decayed)", minimum=0, maximum=1e3)
    clip_grad_norm: float | None = setting(1.0, "largest global norm of the gradients; null: no clipping",
                                          minimum=1e-12, maximum=1e12)


@dataclass
class Source:
    """One source of a mixture. Settings left null are those of the group `data`."""

    name: str = setting("???", "kind of data", valid=("python_docs", "tokens", "megatron", "text", "chat"),
                        added="sources")
    weight: float = setting(1.0, "share of the samples, relative to the other weights", minimum=1e-9, maximum=1e9)
    path: str | None = setting(None, "as data.path")
    dtype: str | None = setting(None, "default: data.dtype", valid=TOKEN_TYPES)
    pattern: str | None = setting(None, "default: data.pattern")
    tokenizer: str | None = setting(None, "default: data.tokenizer")
    end_of_document: str | None = setting(None, "default: data.end_of_document")
    special_tokens: str | None = setting(None, "default: data.special_tokens", valid=SPECIAL_TOKENS)
    add_special_tokens: bool | None = setting(None, "default: data.add_special_tokens")
    format: str | None = setting(None, "default: data.format", valid=FORMATS)
    text_field: str | None = setting(None, "default: data.text_field")
    messages_field: str | None = setting(None, "default: data.messages_field")
    chat_template: str | None = setting(None, "default: data.chat_template")
    packing: str | None = setting(None, "default: data.packing", valid=tuple(PACKINGS))
    validation_fraction: float | None = setting(None, "default: data.validation_fraction", minimum=1e-9, maximum=0.5)


@dataclass
class Data:
    """Where the tokens come from, and in which order."""

    name: str = setting("python_docs", "kind of data",
                        valid=("python_docs", "tokens", "megatron", "text", "chat", "mixture"), added="sources")
    path: str | None = setting(None, "tokens: the file; megatron: the .bin and .idx without their endings; text, chat: "
                                     "the folder, or one file")
    dtype: str = setting("uint16", "tokens: type of a token in a file without a header",
                         valid=TOKEN_TYPES)
    pattern: str = setting("*.txt", "text, chat: names of the files to read, in all folders below data.path")
    format: str = setting("auto", "text, chat: what the files are; auto: by their endings", valid=FORMATS)
    text_field: str = setting("text", "text: field of each row of jsonl or Parquet that holds the text")
    messages_field: str = setting("messages", "chat: field of each row that holds the list of messages")
    tokenizer: str | None = setting("${oc.select:model.from_pretrained,null}",
                                    "text, chat: a file of the package `tokenizers`, or a model's folder with one; "
                                    "default: that of model.from_pretrained, else one byte is one token")
    chat_template: str | None = setting(None, "chat: file with the chat template; default: that of data.tokenizer")
    end_of_document: str | None = setting(None, "text: token of data.tokenizer after every file, such as "
                                                "<|endoftext|>; default: none")
    special_tokens: str = setting("text", "text: what becomes of text that spells a special token: text as any other, "
                                          "or that token (control)", valid=SPECIAL_TOKENS)
    add_special_tokens: bool | None = setting(None, "text: the tokens that the tokenizer puts around a text stand "
                                                    "around every document; default: where data.tokenizer is a folder")
    validation_fraction: float = setting(0.05, "share of the tokens kept for validation", minimum=1e-9, maximum=0.5)
    packing: str = setting("auto", "how documents become samples", valid=tuple(PACKINGS), told=PACKINGS)
    order: str = setting("random", "training samples: drawn at random, or each window once in an epoch",
                         valid=("random", "epoch"))
    cache: str = setting("${run.folder}/token_cache", "text: folder that keeps the tokens for later runs")
    sources: list[Source] = setting([], "mixture: what is mixed, each with a weight")
    check_before_start: bool = setting(True, "look at the files here, before anything is started; false where the "
                                             "nodes see other files than this machine")


@dataclass
class Launch:
    """Where and how the run starts."""

    mode: str = setting("auto", "where the run goes", valid=("auto", "slurm", "emulated", "local"))
    wait: bool = setting(True, "follow the submitted job")
    dry_run: bool = setting(False, "show what would be started, start nothing")
    setup: list[str] = setting([], "lines of the batch script before srun")
    sbatch: dict[str, Any] = setting({}, "further options of sbatch for every component, such as {mem: 0}; null leaves "
                                         "out one that we write")
    signal: str = setting("USR2", "signal before the job's end, on which ranks save and stop")
    signal_seconds: int = setting(90, "seconds between that signal and the end", minimum=1, maximum=65535)
    requeue: bool = setting(True, "a preempted job goes back into the queue")
    snapshot: bool = setting(False, "a submitted job runs from a copy of the code, made at its submission")
    templates: str | None = setting(None, "folder of own batch script templates, searched before ours")
    srun_args: list[str] = setting([], "further arguments of srun")
    container: str | None = setting(None, "container image that the ranks run in")
    container_kind: str = setting("apptainer", "what starts the container", valid=("apptainer", "pyxis"))
    container_args: list[str] = setting([], "further arguments of apptainer exec, or with pyxis of srun")
    python: str | None = setting(None, "Python of the ranks; default: the submitting one, in a container python3")
    bind_cpus: bool = setting(True, "on GPUs, keep each rank on those of its CPUs that are near its GPU")
    on_mismatch: str = setting("fail", "when a node is not as described",
                               valid=("fail", "ethernet", "exclude_node"))
    new_sweep: bool = setting(False, "begin a sweep anew where the same command began one that is not complete")
    max_jobs: int | None = setting(None, "most jobs of a sweep that run at a time", minimum=1, maximum=10**6)
    probe: bool = setting(False, "measure the links before training")
    probe_only: bool = setting(False, "end after that, as `holmes probe` does")
    backend: str = setting(AUTO, "communication library; auto: NCCL on GPUs, gloo on CPUs",
                           valid=(AUTO, *BACKEND_KINDS), told={name: kind.help for name, kind in BACKEND_KINDS.items()})
    gloo_threads: int = setting(2, "threads of gloo in each process group", minimum=1, maximum=1024)


@dataclass
class Run:
    """The run folder."""

    name: str | None = setting(None, "name of the run; default: the cluster's name")
    folder: str = setting("runs", "folder that holds all runs")
    group_readable: bool = setting(False, "your group may read the results of a run (not its settings); false: you "
                                          "alone")
    pictures: bool = setting(True, "draw a run's timeline, throughput and loss at its end; false: later, by "
                                   "`holmes throughput`")
    trackers: list[str] | None = setting(None, "who gets the rows of metrics.jsonl too: tensorboard, wandb, mlflow, or "
                                               "names that plug-ins add (docs/tracking.md); default: tensorboard, "
                                               "where its package is installed; []: none")
    tracker_options: dict[str, Any] = setting({}, "by tracker, what its library is told, such as "
                                                  "+run.tracker_options.wandb.mode=offline")


@dataclass
class Root:
    """Everything that Hydra composes."""

    cluster: Cluster = group(Cluster, "the cluster, named by +cluster=NAME")
    model: Model = group(Model, "the model")
    parallel: Parallel = group(Parallel, "how the work is divided")
    data: Data = group(Data, "the training data")
    train: Train = group(Train, "the training loop")
    optimizer: Optimizer = group(Optimizer, "the optimizer")
    launch: Launch = group(Launch, "where and how the run starts")
    run: Run = group(Run, "the run folder")
    plugins: list[str] = setting([], "modules, or paths of .py files, that add kinds of your own (docs/extending.md)")
    output: str = setting("table", "what `plan` prints", valid=("table", "json", "megatron"))
    output_folder: str | None = setting(None, "folder into which `plan output=megatron` writes its files")
    picture: str | None = setting(None, "file into which `plan` draws the simulated timeline, such as plan.png")
