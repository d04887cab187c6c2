"""A backward in two parts gives the gradients of one, and hooks see each parameter's once."""

from collections import Counter

import pytest
import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.model import build_stage
from holmes_hpc.model.stage import StageOptions
from holmes_hpc.model.weight_gradients import WeightWork, putting_off


def architecture(*overrides: str) -> Architecture:
    return Architecture.from_config(compose([
        "+cluster=mixed", "model.num_layers=2", "model.hidden_size=16", "model.num_heads=2",
        "model.sequence_length=8", "model.vocab_size=256", *overrides]).model)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("first", "last"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("kind", [(), ("model.tied_embeddings=false", "model.activation=swiglu", "model.bias=false")])
def test_two_parts_give_the_gradients_of_one(recompute: str, first: bool, last: bool, kind: tuple[str, ...]) -> None:
    model = architecture(*kind)
    stage = build_stage(model, 0, 2, first=first, last=last, seed=1, options=StageOptions(recompute=recompute))
    torch.manual_seed(0)
    tokens = torch.randint(256, (2, 8))
    hidden = torch.randn(2, 8, 16)

    def source() -> torch.Tensor:
        return tokens if first else hidden.clone().requires_grad_()

    whole = source()
    stage(whole).square().mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in stage.named_parameters()}
    stage.zero_grad()

    seen: Counter[str] = Counter()
    for name, parameter in stage.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.update([name]))
    work = WeightWork()
    split = source()
    table = stage.embedding.token.weight if first else None
    with putting_off(work, table):
        output = stage(split).square().mean()
    torch.autograd.backward([output])
    late = {name for name in expected if not seen[name]}
    assert "layers.0.feed_forward.down.weight" in late
    if not first:
        torch.testing.assert_close(split.grad, whole.grad)
    work.accumulate()
    assert seen == dict.fromkeys(expected, 1)
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_accumulate_adds_to_what_is_there_and_forgets() -> None:
    linear = torch.nn.Linear(3, 2)
    work = WeightWork()
    x = torch.randn(4, 3).requires_grad_()
    with putting_off(work):
        linear(x).sum().backward()
    assert linear.weight.grad is None
    work.accumulate()
    once = linear.weight.grad.clone()
    torch.testing.assert_close(once, x.detach().sum(0).expand(2, 3))
    work.accumulate()
    torch.testing.assert_close(linear.weight.grad, once)
    torch.testing.assert_close(linear.bias.grad, torch.full((2,), 4.0))


def test_other_precisions_and_products_without_parameters() -> None:
    linear = torch.nn.Linear(3, 2)
    work = WeightWork()
    x = torch.randn(4, 3, requires_grad=True)
    with putting_off(work), torch.autocast("cpu", torch.bfloat16):
        linear(x).float().sum().backward()
    work.accumulate()
    assert linear.weight.grad.dtype is torch.float32
    torch.testing.assert_close(linear.weight.grad, x.detach().sum(0).expand(2, 3), atol=0.05, rtol=0.05)
    weight = torch.randn(2, 3, requires_grad=True) * 2
    with putting_off(work):
        torch.nn.functional.linear(x, weight).sum().backward()
    assert x.grad is not None
