"""The architecture against published parameter counts and formulas."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmarks.published import unfused_gpt_layer_bytes
from holmes_hpc import resources
from holmes_hpc.architecture import Architecture
from holmes_hpc.config.schema import Model
from holmes_hpc.errors import ConfigurationError

MODEL_FILES = sorted((resources.folder("conf") / "model").glob("*.yaml"))


def load(file: Path | str, **changes) -> Architecture:
    path = resources.folder("conf") / "model" / f"{file}.yaml" if isinstance(file, str) else file
    config = OmegaConf.merge(OmegaConf.structured(Model), OmegaConf.load(path), changes)
    return Architecture.from_config(config)


@pytest.mark.parametrize(("name", "parameters", "tolerance"), [
    ("gpt2_small", 124_439_808, 0),          # the released checkpoint
    ("llama_7b", 6_738_415_616, 0),          # the released checkpoint
    ("llama_13b", 13_015_864_320, 0),
    ("llama_70b", 68_976_648_192, 0),
    ("llama_30b", 32_528_943_616, 0),
    ("llama_3_8b", 8_030_261_248, 0),
    ("llama_3_70b", 70_553_706_496, 0),
    ("llama_3_1b", 1_235_814_400, 0),
    ("llama_3_3b", 3_212_749_824, 0),
    ("smollm2_135m", 134_515_008, 0),
    ("smollm2_360m", 361_821_120, 0),
    ("smollm2_1_7b", 1_711_376_384, 0),
    ("mistral_7b", 7_241_732_096, 0),
    ("mistral_nemo_12b", 12_247_782_400, 0),
    ("phi3_mini", 3_821_079_552, 0),
    ("qwen2_5_0_5b", 494_032_768, 0),
    ("qwen2_5_1_5b", 1_543_714_304, 0),
    ("qwen2_5_7b", 7_615_616_512, 0),
    ("qwen2_5_72b", 72_706_203_648, 0),
    ("qwen3_0_6b", 596_049_920, 0),
    ("qwen3_8b", 8_190_735_360, 0),
    ("qwen3_32b", 32_762_123_264, 0),
    ("olmo2_7b", 7_298_617_344, 0),
    ("olmo2_13b", 13_716_198_400, 0),
    ("gemma_2b", 2_506_172_416, 0),
    ("gemma_7b", 8_537_680_896, 0),
    ("gpt2_medium", 354_823_168, 0),
    ("gpt2_large", 774_030_080, 0),
    ("gpt2_xl", 1_557_611_200, 0),
    ("pythia_160m", 162_322_944, 0),
    ("pythia_1_4b", 1_414_647_808, 0),
    ("pythia_6_9b", 6_857_302_016, 0),
    ("pythia_12b", 11_846_072_320, 0),
    ("gpt_neox_20b", 20_554_567_680, 0),
    ("qwen2_5_3b", 3_085_938_688, 0),
    ("qwen2_5_14b", 14_770_033_664, 0),
    ("qwen2_5_32b", 32_763_876_352, 0),
    ("qwen3_1_7b", 1_720_574_976, 0),
    ("qwen3_4b", 4_022_468_096, 0),
    ("qwen3_14b", 14_768_307_200, 0),
    ("pythia_70m", 70_426_624, 0),
    ("pythia_410m", 405_334_016, 0),
    ("pythia_1b", 1_011_781_632, 0),
    ("pythia_2_8b", 2_775_208_960, 0),
    ("olmo2_1b", 1_484_916_736, 0),
    ("olmo2_32b", 32_234_279_936, 0),
    ("phi3_medium", 13_960_238_080, 0),
    ("phi4", 14_659_507_200, 0),
    ("llama_3_405b", 405_853_388_800, 0),
    ("mistral_small_24b", 23_572_403_200, 0),
    ("mistral_large_123b", 122_610_069_504, 0),
    ("gpt_3_6b", 3.56e9, 0.002),
    ("gpt_1_7b", 1.7e9, 0.03),               # Narayanan et al. 2021, table 1, in billions
    ("gpt_7_5b", 7.5e9, 0.01),
    ("gpt_18_4b", 18.4e9, 0.005),
    ("gpt_39_1b", 39.1e9, 0.005),
    ("gpt_76_1b", 76.1e9, 0.005),
    ("gpt_145_6b", 145.6e9, 0.005),
])
def test_parameter_counts_are_the_published_ones(name, parameters, tolerance):
    assert load(name).parameter_count() == pytest.approx(parameters, rel=tolerance, abs=0)


@pytest.mark.parametrize("file", MODEL_FILES, ids=lambda file: file.stem)
def test_parameters_are_unique_complete_and_named_by_unit(file):
    architecture = load(file)
    parameters = architecture.parameters()
    assert len({info.name for info in parameters}) == len(parameters)
    assert sum(info.count for info in parameters) == architecture.parameter_count()
    assert all(info.name.startswith(info.unit + ".") for info in parameters)
    assert architecture.name == file.stem


def test_split_dims_follow_column_and_row_parallelism():
    dims = {info.name: info.split_dim for info in load("gpt_tiny", tied_embeddings=False).parameters()}
    prefix = "layers.2."
    layer = {name.removeprefix(prefix): dim for name, dim in dims.items() if name.startswith(prefix)}
    assert layer == {
        "attention_norm.weight": None, "attention_norm.bias": None,
        "attention.query.weight": 0, "attention.query.bias": 0, "attention.key.weight": 0,
        "attention.key.bias": 0, "attention.value.weight": 0, "attention.value.bias": 0,
        "attention.output.weight": 1, "attention.output.bias": None,
        "feed_forward_norm.weight": None, "feed_forward_norm.bias": None,
        "feed_forward.up.weight": 0, "feed_forward.up.bias": 0,
        "feed_forward.down.weight": 1, "feed_forward.down.bias": None}
    assert {name: dim for name, dim in dims.items() if not name.startswith("layers.")} == {
        "embedding.token.weight": 0, "embedding.position.weight": None,
        "head.norm.weight": None, "head.norm.bias": None, "head.output.weight": 0}


def test_grouped_queries_and_swiglu_shape_the_layer():
    parameters = load("llama_70b").unit_parameters("layers.79")
    assert {info.name.removeprefix("layers.79."): info.shape for info in parameters} == {
        "attention_norm.weight": (8192,), "attention.query.weight": (8192, 8192),
        "attention.key.weight": (1024, 8192), "attention.value.weight": (1024, 8192),
        "attention.output.weight": (8192, 8192), "feed_forward_norm.weight": (8192,),
        "feed_forward.gate.weight": (28672, 8192), "feed_forward.up.weight": (28672, 8192),
        "feed_forward.down.weight": (8192, 28672)}


def test_stage_holds_its_layers_and_the_tied_copy():
    tied, untied = load("gpt_tiny"), load("llama_tiny")
    layers = ("layers.0", "layers.1", "layers.2", "layers.3")
    assert tied.units == ("embedding.token", "embedding", *layers, "head")
    assert tied.stage_units(0, 1, first=True, last=False) == ("embedding.token", "embedding", "layers.0")
    assert tied.stage_units(3, 1, first=False, last=True) == ("layers.3", "embedding.token", "head")
    assert untied.stage_units(3, 1, first=False, last=True) == ("layers.3", "head")
    assert untied.units[:2] == ("embedding.token", "layers.0")
    names = [info.name for info in tied.stage_parameters(3, 1, first=False, last=True)]
    assert names.count("embedding.token.weight") == 1
    assert "embedding.position.weight" not in names
    with pytest.raises(ValueError, match="layers 3 to 4"):
        tied.stage_units(3, 2, first=False, last=True)
    with pytest.raises(KeyError, match="layers.4"):
        tied.unit_parameters("layers.4")


@pytest.mark.parametrize(("name", "megatron_flops"), [("gpt_3_6b", 6.375e13), ("gpt_39_1b", 6.648e14)])
def test_model_flops_agree_with_megatrons(name, megatron_flops):
    # Megatron's 96 s l h^2 (1 + s/6h + V/16lh) counts four passes over the layers (full recomputation) and
    # three over the head; model FLOPs count three over both.
    architecture = load(name)
    head = 6 * architecture.sequence_length * architecture.hidden_size * architecture.vocab_size
    layers = architecture.model_flops_per_sample() - head
    assert layers * 4 / 3 + head == pytest.approx(megatron_flops, rel=1e-3)


def test_forward_flops_by_part():
    architecture = load("llama_70b")
    parts = architecture.forward_flops_by_part("layers.5", 4096)
    weights = sum(info.count for info in architecture.unit_parameters("layers.5") if len(info.shape) == 2)
    assert parts["attention_projection"] + parts["feed_forward"] == 2 * 4096 * weights
    assert parts["attention_core"] == 2 * (2 * 64 * 4096 * 4096 * 128)
    assert architecture.forward_flops("head", 4096) == 2 * 4096 * 8192 * 32000
    assert architecture.forward_flops("embedding.token", 4096) == 0


def test_activation_bytes_against_korthikanti():
    gpt3 = dataclasses.replace(load("gpt_145_6b"), num_layers=96)
    # 34 + 5as/h = 114 for GPT-3: the paper's "80 of it are the scores"
    assert unfused_gpt_layer_bytes(gpt3, 1) == 2048 * 12288 * (34 + 80)
    assert unfused_gpt_layer_bytes(gpt3, 1, tensor=8, sequence_parallel=True) == 2048 * 12288 * 114 / 8
    assert unfused_gpt_layer_bytes(gpt3, 1, tensor=8) == 2048 * 12288 * (10 + 104 / 8)
    # ours: no scores, no masks: 32 bytes and per-head statistics at 16 bit
    ours = gpt3.activation_bytes("layers.0", 1, element_bytes=2)
    assert ours == 2048 * 12288 * 32 + 2048 * 4 * (96 + 4)


@pytest.mark.parametrize(("changes", "expected"), [
    ({"num_heads": 5}, ["model.num_heads=5", "model.hidden_size=128", "1, 2, 4, 8, 16, 32, 64, 128"]),
    ({"num_kv_heads": 3}, ["model.num_kv_heads=3", "model.num_heads=4", "1, 2, 4"]),
    ({"num_heads": 128, "position_embedding": "rotary"},
     ["rotary", "model.num_heads=128", "one of 1, 2, 4, 8, 16, 32, 64", "learned"]),
])
def test_impossible_heads_are_refused_with_the_remedy(changes, expected):
    with pytest.raises(ConfigurationError) as caught:
        load("gpt_tiny", **changes)
    for text in expected:
        assert text in str(caught.value)


FEATURES = {
    "head size": {"head_size": 48},
    "biases": {"bias": False, "attention_bias": "qkv"},
    "norms of heads": {"query_key_norm": "head", "num_kv_heads": 2},
    "norms over heads": {"query_key_norm": "all", "num_kv_heads": 2, "head_size": 16},
    "norms after": {"norm_order": "after"},
    "norms on both sides": {"norm_order": "both", "normalization": "rmsnorm_1p", "activation": "geglu_tanh"},
    "parallel": {"parallel_residual": True, "position_embedding": "rotary", "rotary_fraction": 0.25},
    "rows of positions": {"max_positions": 512},
}


@pytest.mark.parametrize("changes", FEATURES.values(), ids=FEATURES)
def test_what_is_counted_is_what_the_parameters_are(changes):
    architecture = load("gpt_tiny", **changes)
    parameters = architecture.parameters()
    assert sum(info.count for info in parameters) == architecture.parameter_count()
    parts = architecture.forward_flops_by_part("layers.1", 128)
    weights = sum(info.count for info in architecture.unit_parameters("layers.1") if len(info.shape) == 2)
    assert parts["attention_projection"] + parts["feed_forward"] == 2 * 128 * weights
    assert parts["attention_core"] == 2 * (2 * architecture.num_heads * 128 * 128 * architecture.head_size)


def test_features_shape_the_layer():
    def layer(**changes):
        infos = load("llama_tiny", **changes).unit_parameters("layers.0")
        return {info.name.removeprefix("layers.0."): (info.shape, info.split_dim, info.by_head) for info in infos}

    plain = layer()
    qwen3 = layer(head_size=48, query_key_norm="head")
    assert qwen3["attention.query.weight"] == ((192, 128), 0, False)
    assert qwen3["attention.output.weight"] == ((128, 192), 1, False)
    assert qwen3["attention.key_norm.weight"] == ((48,), None, True)
    assert layer(query_key_norm="all")["attention.key_norm.weight"] == ((64,), 0, False)
    assert layer(attention_bias="qkv").keys() - plain.keys() == {f"attention.{which}.bias"
                                                                for which in ("query", "key", "value")}
    assert layer(attention_bias="all").keys() - plain.keys() == {
        f"attention.{which}.bias" for which in ("query", "key", "value", "output")}
    assert layer(norm_order="after").keys() - plain.keys() == {"attention_post_norm.weight",
                                                              "feed_forward_post_norm.weight"}
    assert plain.keys() - layer(norm_order="after").keys() == {"attention_norm.weight", "feed_forward_norm.weight"}
    assert load("gpt_tiny", max_positions=512).unit_parameters("embedding")[0].shape == (512, 128)


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("gpt_tiny", {"max_positions": 64}, ["model.sequence_length=128", "model.max_positions=64", "64 or less"]),
    ("llama_tiny", {"head_size": 33}, ["model.head_size", "33", "pairs"]),
    ("llama_tiny", {"rotary_fraction": 0.1}, ["model.rotary_fraction=0.1", "turns 3"]),
    ("llama_tiny", {"rotary_scaling": "llama3", "rotary_low_frequency_factor": 4.0},
     ["model.rotary_low_frequency_factor=4", "model.rotary_high_frequency_factor=4"]),
    ("llama_tiny", {"norm_order": "after", "parallel_residual": True}, ["model.parallel_residual=true", "norm_order"]),
])
def test_impossible_features_are_refused_with_the_remedy(name, changes, expected):
    with pytest.raises(ConfigurationError) as caught:
        load(name, **changes)
    for text in expected:
        assert text in str(caught.value)
