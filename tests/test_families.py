"""Published families against the library `transformers`: what configurations mean, and what weights give."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.families.reading import settings_of
from holmes_hpc.launch.pretrained import check_pretrained
from holmes_hpc.model import PretrainedWeights, StageOptions, TensorShare, build_stage
from tests.published_models import LENGTH, MODELS, REFUSED, change, save_model, tokens

SHORT = f"model.sequence_length={LENGTH}"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Every model of MODELS: its folder, and its logits."""
    found = {}
    for name in MODELS:
        folder = tmp_path_factory.mktemp("published") / name
        model = save_model(name, folder)
        with torch.no_grad():
            found[name] = folder, model(tokens()).logits
    return found


def architecture_of(folder: Path, *overrides: str) -> Architecture:
    config = compose(["+cluster=mixed", f"model.from_pretrained={folder}", *(overrides or (SHORT,))])
    return Architecture.from_config(config.model)


def whole(folder: Path, model: Architecture) -> Any:
    with PretrainedWeights(folder, model) as weights:
        return build_stage(model, 0, model.num_layers, first=True, last=True, seed=0, weights=weights)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, published: dict[str, tuple[Path, Any]]) -> None:
    folder, expected = published[name]
    model = architecture_of(folder)
    with torch.no_grad():
        found = whole(folder, model)(tokens())
    assert float((found - expected).abs().max()) <= 1e-4
    stored = 0
    for path in folder.glob("*.safetensors"):
        stored += path.stat().st_size
    assert model.parameter_count() * 4 == pytest.approx(stored, rel=0.1), "as many as were stored"


@pytest.mark.parametrize("name", MODELS)
def test_every_rank_reads_what_it_holds_and_no_more(name: str, published: dict[str, tuple[Path, Any]]) -> None:
    folder, _ = published[name]
    model = architecture_of(folder)
    expected = dict(whole(folder, model).named_parameters())
    for index in range(2):
        share = TensorShare(2, index)
        for first, last in ((True, False), (False, True)):
            begin, count = (0, 2) if first else (2, 1)
            with PretrainedWeights(folder, model) as weights:
                stage = build_stage(model, begin, count, first=first, last=last, seed=0, weights=weights,
                                    options=StageOptions(share))
            infos = {info.name: info for info in model.parameters()}
            own = dict(stage.named_parameters())
            for key, parameter in own.items():
                assert torch.equal(parameter, share.part(expected[key], infos[key].split_dim)), key
            assert weights.read_bytes == sum(each.numel() * 4 for each in own.values())


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    import transformers

    kind, arguments, message = REFUSED[name]
    getattr(transformers, f"{kind}Config")(**arguments).save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigurationError, match=f"model.from_pretrained=.*{message}"):
        architecture_of(tmp_path / "model")


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a family as files of older versions spell it."""
    import transformers

    kind, arguments = MODELS[name]
    found = getattr(transformers, f"{kind}Config")(**arguments).to_dict()
    for key in [key for key, value in changes.items() if value is ...]:
        found.pop(key, None)
    return {**found, **{key: value for key, value in changes.items() if value is not ...}}


@pytest.mark.parametrize("name", ["mistral", "phi3"])
def test_a_window_of_all_layers_counts_whatever_their_kinds_are(name: str) -> None:
    with pytest.raises(ConfigurationError, match="sliding_window=16"):
        settings_of(config_of(name, layer_types=["full_attention"] * 3, sliding_window=16))


def test_both_spellings_of_rotary_settings_say_the_same() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
    old = config_of("llama3", rope_parameters=..., rope_theta=500000.0, rope_scaling=scaling, torch_dtype="bfloat16")
    assert settings_of(old) == settings_of(config_of("llama3"))
    linear = {"type": "linear", "factor": 4.0}
    assert settings_of(config_of("llama-linear-bias", rope_parameters=..., rope_scaling=linear)) == settings_of(
        config_of("llama-linear-bias"))
    assert settings_of(config_of("llama2", rope_theta=777.0, rope_parameters={"rope_type": "default"})) == settings_of(
        config_of("llama2", rope_parameters={"rope_type": "default", "rope_theta": 777.0}))
    assert settings_of(config_of("llama-linear-bias", rope_scaling={**linear, "rope_theta": 1e4}, rope_parameters={
        **linear, "rope_theta": 1e4}, rope_theta=10000)) == settings_of(config_of("llama-linear-bias"))
    assert settings_of(config_of("neox", rope_parameters=..., rotary_pct=0.25, rotary_emb_base=10000)) == settings_of(
        config_of("neox"))
    with pytest.raises(ConfigurationError, match="partial_rotary_factor=0.5: elsewhere it is 0.25"):
        settings_of(config_of("neox", rope_parameters=..., partial_rotary_factor=0.5))  # which is not how it spells it
    assert settings_of(config_of("phi3-partial", rope_parameters=..., partial_rotary_factor=0.5)) == settings_of(
        config_of("phi3-partial"))


@pytest.mark.parametrize("name", ["llama2", "gpt2", "gemma", "qwen2", "neox"])
def test_an_absent_tie_is_the_familys(name: str) -> None:
    import transformers

    expected = getattr(transformers, f"{MODELS[name][0]}Config")().tie_word_embeddings
    assert settings_of(config_of(name, tie_word_embeddings=...))["tied_embeddings"] is expected


@pytest.mark.parametrize(("changes", "message"), [
    ({"residual_multiplier": 0.5}, "residual_multiplier=0.5: nothing is known of this key"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"num_experts": 8}, "num_experts=8"),
    ({"rope_interleaved": True}, "rope_interleaved=true"),
    ({"hidden_act": "relu"}, "hidden_act=relu: known are silu"),
    ({"hidden_size": "32"}, "hidden_size=32: expected a whole number"),
    ({"hidden_size": True}, "hidden_size=true: expected a whole number"),
    ({"num_hidden_layers": -1}, "num_hidden_layers=-1"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
    ({"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide the 4 heads"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings=yes: expected true or false"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "only LlamaForCausalLM is known"),
    ({"model_type": "llama4"}, "model_type=llama4: this family is not known; known are llama, gpt2"),
    ({"rope_parameters": ..., "rope_scaling": {"type": "su", "long_factor": [1.0]}}, "rope_type=su"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mscale": 2.0}}, "mscale=2.0"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    ({"rope_theta": 777.0}, "rope_theta=777.0: elsewhere it is 10000.0"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling and rope_parameters say different things"),
    ({"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 1.0}, "rope_theta": 2.0},
     "rope_theta=2.0: elsewhere it is 1.0"),
    ({"layer_types": ["chunked_attention"] * 3}, "layer_types"),
])
def test_keys_that_are_not_neutral_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        settings_of(config_of("llama2", **changes))


@pytest.mark.parametrize("changes", [
    {"residual_multiplier": None}, {"num_experts": 0}, {"use_mrope": False}, {"attention_dropout": 0.1},
    {"pretraining_tp": 2}, {"transformers.js_config": {"a": 1}}, {"auto_map": {"AutoConfig": "x.Y"}},
])
def test_keys_that_are_neutral_are_left_alone(changes: dict[str, Any]) -> None:
    assert settings_of(config_of("llama2", **changes)) == settings_of(config_of("llama2"))


def test_overrides_of_what_the_weights_are_are_refused(published: dict[str, tuple[Path, Any]]) -> None:
    folder, _ = published["qwen3"]
    for override in ("model.hidden_size=128", "model.num_layers=4", "model.vocab_size=256", "model.activation=gelu",
                     "model.tied_embeddings=true", "model.head_size=null", "model=llama_tiny"):
        with pytest.raises(ConfigurationError, match=f"model.from_pretrained={folder} exclude each other"):
            architecture_of(folder, override)
    model = architecture_of(folder, "model.rotary_base=500000", "model.sequence_length=128", "model.name=mine",
                            "model.num_layers=3")
    assert (model.rotary_base, model.sequence_length, model.name, model.family) == (500000.0, 128, "mine", "qwen3")
    assert architecture_of(folder, "model.name=mine").sequence_length == 128


def test_names_without_their_prefix_and_old_buffers_are_known(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = save_model("gpt2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    bare |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64) for layer in range(3)}
    save_file(bare, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        found = whole(tmp_path, architecture_of(tmp_path))(tokens())
        assert float((found - model(tokens()).logits).abs().max()) <= 1e-4


def test_plan_reads_the_configuration_alone(tmp_path: Path, published: dict[str, tuple[Path, Any]]) -> None:
    (tmp_path / "config.json").write_text((published["gemma2"][0] / "config.json").read_text())
    assert architecture_of(tmp_path).norm_order == "both"
    change(tmp_path, num_hidden_layers=7)
    assert architecture_of(tmp_path).num_layers == 7
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "gemma2"


def test_plan_loads_no_torch_and_opens_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}))
    program = ("import sys; from holmes_hpc import cli; status = cli.run(sys.argv[1:]); "
               "print(status, [name for name in ('torch', 'safetensors') if name in sys.modules], file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", program, "plan", "+cluster=mixed", f"model.from_pretrained={tmp_path}",
                           "model.sequence_length=256", "output=json"], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0 []"
    assert json.loads(done.stdout)["world_size"] == 8


def test_weights_in_64_bits_are_read_as_32_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save_model("smollm2", tmp_path / "model")
    with torch.no_grad():
        expected = model(tokens()).logits
    model.double().save_pretrained(tmp_path / "model")
    config = compose(["+cluster=mixed", f"model.from_pretrained={tmp_path / 'model'}", SHORT])
    caplog.set_level("INFO")
    check_pretrained(config)
    assert "float64 is read as float32" in caplog.text
    read = whole(tmp_path / "model", Architecture.from_config(config.model))
    assert {parameter.dtype for parameter in read.parameters()} == {torch.float32}
    with torch.no_grad():
        assert float((read(tokens()) - expected).abs().max()) <= 1e-4
