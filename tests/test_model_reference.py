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
    if model.normalization == "rmsnorm":
        root = math.sqrt(sum(float(value) ** 2 for value in x) / len(x) + model.normalization_epsilon)
        return x / root * weights[f"{name}.weight"]
    mean = x.mean()
    variance = ((x - mean) ** 2).mean()
    scaled = (x - mean) / torch.sqrt(variance + model.normalization_epsilon)
    return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)


def linear(x, weights, name):
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0)


def turn(head, position, model):
    """Rotary: the pair (j, j + d/2) as a complex number, times e^(i p base^(-2j/d))."""
    half = len(head) // 2
    turned = head.clone()
    for j in range(half):
        angle = position * model.rotary_base ** (-2 * j / len(head))
        number = complex(float(head[j]), float(head[j + half])) * complex(math.cos(angle), math.sin(angle))
        turned[j], turned[j + half] = number.real, number.imag
    return turned


def attend(normed, weights, name, model):
    size = model.hidden_size // model.num_heads
    group = model.num_heads // model.num_kv_heads
    projected = {kind: [linear(x, weights, f"{name}.{kind}") for x in normed]
                 for kind in ("query", "key", "value")}

    def head(kind, position, index):
        vector = projected[kind][position][index * size:(index + 1) * size]
        rotary = model.position_embedding == "rotary" and kind != "value"
        return turn(vector, position, model) if rotary else vector

    outputs = []
    for position in range(len(normed)):
        heads = []
        for index in range(model.num_heads):
            query = head("query", position, index)
            scores = [float(query @ head("key", past, index // group)) / math.sqrt(size)
                      for past in range(position + 1)]
            total = sum(math.exp(score) for score in scores)
            heads.append(sum(math.exp(score) / total * head("value", past, index // group)
                             for past, score in enumerate(scores)))
        outputs.append(linear(torch.cat(heads), weights, f"{name}.output"))
    return outputs


def feed(x, weights, name, model):
    up = linear(x, weights, f"{name}.up")
    if model.activation == "swiglu":
        gate = linear(x, weights, f"{name}.gate")
        inner = torch.stack([g / (1 + torch.exp(-g)) * u for g, u in zip(gate, up, strict=True)])
    else:
        inner = torch.stack([u * 0.5 * (1 + math.erf(float(u) / math.sqrt(2))) for u in up])
    return linear(inner, weights, f"{name}.down")


def reference_logits(tokens, weights, model):
    xs = [weights["embedding.token.weight"][token] for token in tokens]
    if model.position_embedding == "learned":
        xs = [x + weights["embedding.position.weight"][position] for position, x in enumerate(xs)]
    for layer in range(model.num_layers):
        name = f"layers.{layer}"
        normed = [norm(x, weights, f"{name}.attention_norm", model) for x in xs]
        xs = [x + y for x, y in zip(xs, attend(normed, weights, f"{name}.attention", model), strict=True)]
        normed = [norm(x, weights, f"{name}.feed_forward_norm", model) for x in xs]
        xs = [x + feed(y, weights, f"{name}.feed_forward", model) for x, y in zip(xs, normed, strict=True)]
    table = weights["embedding.token.weight" if model.tied_embeddings else "head.output.weight"]
    return torch.stack([table @ norm(x, weights, "head.norm", model) for x in xs])


@pytest.mark.parametrize("settings", [
    GPT, {**GPT, "bias": False}, LLAMA,
    {**GPT, "position_embedding": "rotary", "num_kv_heads": 1},
    {**LLAMA, "bias": True, "position_embedding": "learned", "tied_embeddings": True},
], ids=["gpt", "gpt-no-bias", "llama", "rotary-multi-query", "mixed"])
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
