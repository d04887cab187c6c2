"""The model against the architecture, against itself under every cut, and against what torch keeps."""

import itertools
import math

import pytest
import torch
from omegaconf import OmegaConf

from holmes_hpc import resources
from holmes_hpc.architecture import Architecture
from holmes_hpc.config.schema import Model
from holmes_hpc.model import build_stage, token_loss
from holmes_hpc.model.initialization import parameter_seed

MODEL_FILES = sorted((resources.folder("conf") / "model").glob("*.yaml"))
SMALL = {"num_layers": 3, "hidden_size": 32, "vocab_size": 61, "sequence_length": 16}
LLAMA = {"num_kv_heads": 2, "ffn_hidden_size": 48, "normalization": "rmsnorm", "activation": "swiglu",
         "position_embedding": "rotary", "bias": False}


def architecture(**changes) -> Architecture:
    return Architecture.from_config(OmegaConf.merge(OmegaConf.structured(Model), {**SMALL, **changes}))


def whole(model: Architecture, **options):
    return build_stage(model, 0, model.num_layers, first=True, last=True, **{"seed": 7, **options})


def cut(model: Architecture, counts, **options):
    starts = [sum(counts[:index]) for index in range(len(counts))]
    return [build_stage(model, start, count, first=index == 0, last=index == len(counts) - 1,
                        seed=7, **options)
            for index, (start, count) in enumerate(zip(starts, counts, strict=True))]


def shapes(infos):
    return [(info.name, info.shape) for info in infos]


def module_shapes(stage):
    return [(name, tuple(parameter.shape)) for name, parameter in stage.named_parameters()]


@pytest.mark.parametrize("file", MODEL_FILES, ids=lambda file: file.stem)
def test_meta_model_has_the_architectures_names_and_shapes(file):
    config = OmegaConf.merge(OmegaConf.structured(Model), OmegaConf.load(file))
    model = Architecture.from_config(config)
    half = model.num_layers // 2
    for where in ((0, model.num_layers, True, True), (0, half, True, False),
                  (half, model.num_layers - half, False, True), (1, 2, False, False)):
        options = {"first": where[2], "last": where[3]}
        stage = build_stage(model, *where[:2], **options, seed=0, device="meta")
        assert sorted(module_shapes(stage)) == sorted(shapes(model.stage_parameters(*where[:2], **options)))
        assert all(parameter.is_meta for parameter in stage.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", [{}, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (1, 1, 1), (0, 3), (3, 0)])
def test_any_cut_has_bitwise_the_weights_and_the_result_of_the_whole(counts, family, tied):
    model = architecture(tied_embeddings=tied, **family)
    reference = whole(model)
    expected = dict(reference.named_parameters())
    stages = cut(model, counts)
    for name, parameter in itertools.chain(*(stage.named_parameters() for stage in stages)):
        assert torch.equal(parameter, expected[name]), name
    held = {name for stage in stages for name, _ in stage.named_parameters()}
    assert held == set(expected)
    tokens = torch.arange(32).reshape(2, 16) % model.vocab_size
    hidden = tokens
    for stage in stages:
        hidden = stage(hidden)
    assert torch.equal(hidden, reference(tokens))
    assert hidden.shape == (2, 16, model.vocab_size)


def test_tied_table_is_one_tensor_on_one_stage_and_a_copy_on_two():
    model = architecture()
    single = whole(model)
    assert [name for name, _ in single.named_parameters()].count("embedding.token.weight") == 1
    first, last = cut(model, (1, 2))
    assert torch.equal(first.embedding.token.weight, last.embedding.token.weight)
    assert first.embedding.token.weight.data_ptr() != last.embedding.token.weight.data_ptr()
    tokens = torch.arange(32).reshape(2, 16)
    token_loss(single(tokens), tokens, 256).backward()
    token_loss(last(first(tokens)), tokens, 256).backward()
    total = first.embedding.token.weight.grad + last.embedding.token.weight.grad
    torch.testing.assert_close(total, single.embedding.token.weight.grad)
    assert last.embedding.token.weight.grad.abs().sum() > 0


def test_initial_values_follow_name_and_seed():
    model = architecture(hidden_size=128, num_layers=2, initialization_std=0.05)
    weights = {name: tensor.detach() for name, tensor in whole(model).named_parameters()}
    assert weights["layers.0.feed_forward.up.weight"].std() == pytest.approx(0.05, rel=0.02)
    assert weights["layers.1.feed_forward.down.weight"].std() == pytest.approx(0.05 / math.sqrt(4), rel=0.02)
    assert weights["layers.1.attention.output.weight"].std() == pytest.approx(0.05 / math.sqrt(4), rel=0.02)
    assert weights["embedding.token.weight"].mean() == pytest.approx(0, abs=0.003)
    assert torch.equal(weights["head.norm.weight"], torch.ones(128))
    assert torch.equal(weights["layers.0.attention.query.bias"], torch.zeros(128))
    queries = [weights[f"layers.{layer}.attention.query.weight"] for layer in (0, 1)]
    assert not torch.equal(*queries)
    other = dict(whole(model, seed=8).named_parameters())
    assert not torch.equal(other["embedding.token.weight"], weights["embedding.token.weight"])
    half = dict(whole(model, dtype=torch.bfloat16).named_parameters())
    assert torch.equal(half["embedding.token.weight"], weights["embedding.token.weight"].bfloat16())


def test_parameter_seed_is_stable_across_machines():
    # sha256 of "1234/head.norm.weight", first 8 bytes, top bit dropped; computed with sha256sum
    assert parameter_seed(1234, "head.norm.weight") == 0x56b857dd1e7ad865 >> 1
    assert 0 <= parameter_seed(0, "x") < 2**63


def test_build_refuses_layers_outside_the_model():
    with pytest.raises(ValueError, match="layers 2 to 3 do not exist"):
        build_stage(architecture(), 2, 2, first=False, last=True, seed=0)


def test_loss_is_nats_per_token():
    logits = torch.zeros(2, 3, 256)
    targets = torch.zeros(2, 3, dtype=torch.int64)
    assert token_loss(logits, targets, 256).item() == pytest.approx(math.log(256))
    logits[0, 0, 0] = 5.0
    expected = (5 * math.log(256) + math.log(255 + math.exp(5)) - 5) / 6
    assert token_loss(logits, targets, 256).item() == pytest.approx(expected, rel=1e-6)


def kept_bytes(stage, inputs, targets=None):
    """Bytes of distinct storages that the forward saves, the stage's own tensors left out."""
    own = {tensor.untyped_storage().data_ptr()
           for tensor in itertools.chain(stage.parameters(), stage.buffers())}
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = stage(inputs)
        if targets is not None:
            output = token_loss(output, targets, 256)
    return sum(tensor.untyped_storage().nbytes()
               for address, tensor in storages.items() if address not in own)


@pytest.mark.parametrize(("family", "kept_by_cpu_rmsnorm"), [
    ({}, 0), (LLAMA, 2), ({"norm_order": "after"}, 0), ({**LLAMA, "norm_order": "both"}, 4),
    ({**LLAMA, "head_size": 16}, 2), ({"attention_bias": "qkv", "activation": "gelu_tanh"}, 0),
], ids=["gpt", "llama", "norms after", "norms on both sides", "head size", "biases of queries, keys, values"])
def test_layer_keeps_the_activation_bytes_that_the_architecture_says(family, kept_by_cpu_rmsnorm):
    model = architecture(**family)
    two = [build_stage(model, 0, count, first=False, last=False, seed=0) for count in (1, 2)]
    hidden = torch.randn(2, 16, 32, requires_grad=True)
    measured = kept_bytes(two[1], hidden) - kept_bytes(two[0], hidden)
    # torch's RMSNorm is not fused on the CPU and keeps the normalised input as well
    extra = kept_by_cpu_rmsnorm * 2 * 16 * 32 * 4
    assert measured == model.activation_bytes("layers.1", 2) + extra


def test_head_keeps_the_activation_bytes_that_the_architecture_says():
    model = architecture()
    head = build_stage(model, 3, 0, first=False, last=True, seed=0)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    measured = kept_bytes(head, torch.randn(2, 16, 32, requires_grad=True), tokens)
    parts = model.activation_bytes_by_part("head", 2)
    targets_and_weight_sum = tokens.nbytes + 4
    assert measured == pytest.approx(sum(parts.values()) - parts["logits"] + targets_and_weight_sum, abs=16)
