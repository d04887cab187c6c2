"""The model's numbers against plain formulas written out here, position by position."""

import math

import pytest
import torch
from omegaconf import OmegaConf

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.schema import Model
from holmes_hpc.model import build_stage

TOKENS = torch.tensor([[3, 14, 15, 9, 2, 6], [5, 35, 8, 9, 7, 9]])
GPT = {"num_layers": 2, "hidden_size": 24, "num_heads": 4, "vocab_size": 40, "sequence_length": 8,
       "normalization_epsilon": 1e-3}
LLAMA = {**GPT, "num_kv_heads": 2, "ffn_hidden_size": 20, "normalization": "rmsnorm", "activation": "swiglu",
         "position_embedding": "rotary", "rotary_base": 50.0, "bias": False, "tied_embeddings": False}


def norm(x, weights, name, model):
    if f"{name}.weight" not in weights:
        return x
    if model.normalization != "layernorm" or "_norm." in f"{name}." and ".attention." in name:
        root = math.sqrt(sum(float(value) ** 2 for value in x) / len(x) + model.normalization_epsilon)
        offset = 1.0 if model.normalization == "rmsnorm_1p" and ".attention." not in name else 0.0
        return x / root * (weights[f"{name}.weight"] + offset)
    mean = x.mean()
    variance = ((x - mean) ** 2).mean()
    scaled = (x - mean) / torch.sqrt(variance + model.normalization_epsilon)
    return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)


def linear(x, weights, name):
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0)


def turn(head, position, model):
    """Rotary: the pair (j, j + d/2) as a complex number, times e^(i p base^(-2j/d))."""
    count = int(len(head) * model.rotary_fraction)
    half = count // 2
    turned = head.clone()
    for j in range(half):
        angle = position * scaled(model.rotary_base ** (-2 * j / count), model)
        number = complex(float(head[j]), float(head[j + half])) * complex(math.cos(angle), math.sin(angle))
        turned[j], turned[j + half] = number.real, number.imag
    return turned


def scaled(frequency, model):
    """The frequency for long samples, by cases on its wave length."""
    length, slowest, fastest = (model.rotary_original_length, model.rotary_low_frequency_factor,
                                model.rotary_high_frequency_factor)
    wave = 2 * math.pi / frequency
    if model.rotary_scaling == "none" or (model.rotary_scaling == "llama3" and wave < length / fastest):
        return frequency
    if model.rotary_scaling == "linear" or wave > length / slowest:
        return frequency / model.rotary_factor
    share = (length / wave - slowest) / (fastest - slowest)
    return (1 - share) * frequency / model.rotary_factor + share * frequency


def attend(normed, weights, name, model):
    size = model.head_size
    group = model.num_heads // model.num_kv_heads
    projected = {kind: [linear(x, weights, f"{name}.{kind}") for x in normed]
                 for kind in ("query", "key", "value")}
    if model.query_key_norm == "all":
        for kind in ("query", "key"):
            projected[kind] = [norm(x, weights, f"{name}.{kind}_norm", model) for x in projected[kind]]

    def head(kind, position, index):
        vector = projected[kind][position][index * size:(index + 1) * size]
        if model.query_key_norm == "head" and kind != "value":
            vector = norm(vector, weights, f"{name}.{kind}_norm", model)
        rotary = model.position_embedding == "rotary" and kind != "value"
        return turn(vector, position, model) if rotary else vector

    outputs = []
    for position in range(len(normed)):
        heads = []
        for index in range(model.num_heads):
            query = head("query", position, index)
            scores = [float(query @ head("key", past, index // group)) * model.attention_scale
                      for past in range(position + 1)]
            total = sum(math.exp(score) for score in scores)
            heads.append(sum(math.exp(score) / total * head("value", past, index // group)
                             for past, score in enumerate(scores)))
        outputs.append(linear(torch.cat(heads), weights, f"{name}.output"))
    return outputs


def activated(u, model):
    if model.activation == "swiglu":
        return u / (1 + torch.exp(-u))
    if model.activation in ("gelu", "geglu"):
        return u * 0.5 * (1 + math.erf(float(u) / math.sqrt(2)))
    return u * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (float(u) + 0.044715 * float(u) ** 3)))


def feed(x, weights, name, model):
    up = linear(x, weights, f"{name}.up")
    if f"{name}.gate.weight" in weights:
        gate = linear(x, weights, f"{name}.gate")
        inner = torch.stack([activated(g, model) * u for g, u in zip(gate, up, strict=True)])
    else:
        inner = torch.stack([activated(u, model) for u in up])
    return linear(inner, weights, f"{name}.down")


def reference_logits(tokens, weights, model):
    xs = [weights["embedding.token.weight"][token] * model.embedding_scale for token in tokens]
    if model.position_embedding == "learned":
        xs = [x + weights["embedding.position.weight"][position] for position, x in enumerate(xs)]
    for layer in range(model.num_layers):
        name = f"layers.{layer}"
        came_in = xs
        normed = [norm(x, weights, f"{name}.attention_norm", model) for x in xs]
        xs = [x + norm(y, weights, f"{name}.attention_post_norm", model)
              for x, y in zip(xs, attend(normed, weights, f"{name}.attention", model), strict=True)]
        normed = [norm(x, weights, f"{name}.feed_forward_norm", model)
                  for x in (came_in if model.parallel_residual else xs)]
        fed = [feed(y, weights, f"{name}.feed_forward", model) for y in normed]
        xs = [x + norm(y, weights, f"{name}.feed_forward_post_norm", model) for x, y in zip(xs, fed, strict=True)]
    table = weights["embedding.token.weight" if model.tied_embeddings else "head.output.weight"]
    return torch.stack([table @ norm(x, weights, "head.norm", model) for x in xs])


@pytest.mark.parametrize("settings", [
    GPT, {**GPT, "bias": False}, LLAMA,
    {**GPT, "position_embedding": "rotary", "num_kv_heads": 1},
    {**LLAMA, "bias": True, "position_embedding": "learned", "tied_embeddings": True},
    {**LLAMA, "head_size": 8, "query_key_norm": "head", "rotary_scaling": "linear", "rotary_factor": 4.0},
    {**LLAMA, "query_key_norm": "all", "norm_order": "after", "attention_bias": "all"},
    {**LLAMA, "head_size": 16, "rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_original_length": 32,
     "attention_bias": "qkv"},
    {**GPT, "position_embedding": "rotary", "rotary_fraction": 0.67, "parallel_residual": True},
    {**GPT, "activation": "gelu_tanh", "max_positions": 20},
    {**LLAMA, "normalization": "rmsnorm_1p", "norm_order": "both", "activation": "geglu_tanh", "embedding_scale": 4.9,
     "attention_scale": 0.3, "head_size": 10, "tied_embeddings": True},
    {**LLAMA, "activation": "geglu", "query_key_norm": "head", "normalization": "rmsnorm_1p"},
], ids=["gpt", "gpt-no-bias", "llama", "rotary-multi-query", "mixed", "qwen3", "olmo2", "llama3", "neox", "gpt2",
        "gemma2", "geglu"])
def test_logits_equal_the_plain_formulas(settings):
    model = Architecture.from_config(OmegaConf.merge(OmegaConf.structured(Model), settings))
    stage = build_stage(model, 0, model.num_layers, first=True, last=True, seed=3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # large weights and live biases and norms, so that every term counts
        for parameter in stage.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    weights = {name: parameter.detach() for name, parameter in stage.named_parameters()}
    logits = stage(TOKENS)
    assert logits.dtype == torch.float32
    for tokens, computed in zip(TOKENS, logits, strict=True):
        expected = reference_logits(tokens, weights, model)
        torch.testing.assert_close(computed.double(), expected, rtol=2e-5, atol=2e-5)
