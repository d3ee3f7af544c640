"""Compiled, vmapped and exported, the functions give what they give eagerly."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_map

import purgen
from tests.bridge.families import BATCHING, FAMILIES, MAIN, assert_close, prefilled, ragged_prompt

TOKENS = torch.tensor([[5], [44], [61]])

pytestmark = pytest.mark.filterwarnings(BATCHING)

OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in MAIN]


def two_of(params):
    """Returns parameters [2, …], the second set perturbed."""
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.stack([value, value + 0.05 * torch.randn(value.shape, generator=generator)])
        for name, value in params.items()
    }


def lane(tree, index):
    return tree_map(lambda leaf: leaf[index], tree)


@pytest.mark.parametrize("name", [*MAIN, *OTHERS])
def test_compiles_once(name, models):
    """One graph, no break, over ten positions, and over rows at positions of their own."""
    model = models(name)
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.apply, backend=counter, fullgraph=True)
    cache = eager_cache = prefilled(model)
    for step in range(10):
        tokens = (TOKENS * (step + 1)) % 128
        out = compiled(model.params, tokens, cache)
        expected = model.apply(model.params, tokens, eager_cache)
        assert_close(out.logits, expected.logits)
        cache, eager_cache = out.cache, expected.cache
    if model.slot_addressed:
        ragged = purgen.replace(cache, cache_position=torch.tensor([10, 18, 13]))
        assert_close(
            compiled(model.params, TOKENS, ragged).logits,
            model.apply(model.params, TOKENS, ragged).logits,
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_compiles_prefill_and_explicit(name, models):
    model = models(name)
    tokens, mask = ragged_prompt()
    torch.compiler.reset()
    empty = model.init_cache(3, 16)
    prefill = torch.compile(model.prefill, backend="aot_eager", fullgraph=True)
    out = prefill(model.params, tokens, empty, mask=mask)
    assert_close(out, model.prefill(model.params, tokens, empty, mask=mask))
    arguments = {
        "cache_position": torch.tensor([9, 8, 9]),
        "attention_mask": torch.nn.functional.pad(mask, (0, 1), value=True),
        "position_ids": torch.tensor([[5], [8], [2]]),
    }
    apply = torch.compile(model.apply, backend="aot_eager", fullgraph=True)
    assert_close(
        apply(model.params, TOKENS, out.cache, **arguments),
        model.apply(model.params, TOKENS, out.cache, **arguments),
    )


@pytest.mark.parametrize("name", [*MAIN, *OTHERS])
def test_vmap_over_params(name, models):
    """Two sets of weights as one batch, on one cache or on a cache each."""
    model = models(name)
    stacked = two_of(model.params)
    cache = prefilled(model)
    shared = torch.vmap(lambda params: model.apply(params, TOKENS, cache))(stacked)
    tokens, mask = ragged_prompt()
    empty = model.init_cache(3, 12)
    filled = torch.vmap(lambda params: model.prefill(params, tokens, empty, mask=mask))(stacked)
    each = torch.vmap(lambda params, cache: model.apply(params, TOKENS, cache))(
        stacked, filled.cache
    )
    for index in range(2):
        params = lane(stacked, index)
        assert_close(lane(shared, index), model.apply(params, TOKENS, cache))
        own = model.prefill(params, tokens, empty, mask=mask)
        assert_close(lane(filled, index), own)
        assert_close(lane(each, index), model.apply(params, TOKENS, own.cache))


@pytest.mark.parametrize("name", MAIN)
def test_vmap_over_states(name, models):
    """Caches at different positions, each lane with tokens of its own."""
    model = models(name)
    first = prefilled(model)
    second = model.apply(model.params, TOKENS, first).cache
    third = model.apply(model.params, TOKENS + 3, second).cache
    if model.slot_addressed:
        third = purgen.replace(second, cache_position=torch.tensor([8, 10, 9]))
    caches = tree_map(lambda *leaves: torch.stack(leaves), first, second, third)
    tokens = torch.stack([TOKENS, TOKENS + 1, TOKENS + 2])
    out = torch.vmap(lambda tokens, cache: model.apply(model.params, tokens, cache))(tokens, caches)
    for index in range(3):
        expected = model.apply(model.params, tokens[index], lane(caches, index))
        assert_close(lane(out, index), expected)


def test_compiled_vmap(models):
    model = models("llama")
    stacked = two_of(model.params)
    cache = prefilled(model)
    function = torch.vmap(lambda params: model.apply(params, TOKENS, cache).logits)
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert_close(compiled(stacked), function(stacked))


def test_gradient(models):
    """The functions differentiate with respect to the parameters."""
    model = models("llama")
    cache = prefilled(model)

    def loss(params):
        return model.apply(params, TOKENS, cache).logits.square().mean()

    gradient = torch.func.grad(loss)(model.params)
    name = "model.norm.weight"
    step = {**model.params, name: model.params[name] + 1e-3 * gradient[name]}
    expected = 1e-3 * gradient[name].square().sum()
    torch.testing.assert_close(loss(step) - loss(model.params), expected, rtol=0.05, atol=1e-6)


def test_exports(models):
    model = models("llama")
    cache = prefilled(model)

    class Step(torch.nn.Module):
        def forward(self, params, tokens, cache):
            return model.apply(params, tokens, cache).logits

    program = torch.export.export(Step(), (model.params, TOKENS, cache))
    later = model.apply(model.params, TOKENS, cache).cache
    assert_close(
        program.module()(model.params, TOKENS, later),
        model.apply(model.params, TOKENS, later).logits,
    )
