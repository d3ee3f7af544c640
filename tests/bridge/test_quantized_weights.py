"""Weights that torchao has quantised run through the same code."""

from __future__ import annotations

import pytest
import torch

import bridge
import purgen
from tests.bridge.families import (
    generated,
    greedy,
    ragged_prompt,
    tiny_module,
)

torchao = pytest.importorskip("torchao")


@pytest.fixture(scope="module")
def module():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    module = tiny_module("llama")
    quantize_(module, Int8WeightOnlyConfig())
    return module


@pytest.fixture(scope="module")
def model(module):
    return bridge.load(module)


def test_the_weights_are_quantised(module, model):
    names = [name for name, weight in model.params.items() if type(weight).__name__ == "Int8Tensor"]
    assert len(names) == 2 * 7 + 1  # what is linear: seven a layer, and the head
    plain = greedy(bridge.load(tiny_module("llama")), *ragged_prompt())
    assert greedy(model, *ragged_prompt()).tolist() != plain.tolist()


def test_greedy_equals_generate(module, model):
    tokens, mask = ragged_prompt()
    got = greedy(model, tokens, mask)
    assert len(set(got.flatten().tolist())) > 12
    assert got.tolist() == generated(module, tokens, mask).tolist()


# torchao 0.18: its weights have no hash that torch's cache of programs could use
@pytest.mark.filterwarnings("ignore:Int8Tensor does not implement _stable_hash_for_caching")
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_step(module, model, backend):
    """One compiled program for all steps gives the module's own tokens."""
    torch._dynamo.reset()
    tokens, mask = ragged_prompt()
    expected = generated(module, tokens, mask)
    decoder = purgen.greedy(model, stop=purgen.max_new_tokens(20))
    state = decoder.init(model.params, purgen.Prompt(tokens=tokens, mask=mask), max_new_tokens=20)
    step = torch.compile(decoder.step, backend=backend, fullgraph=True, dynamic=False)
    for index in range(20):
        state, _ = step(model.params, state)
        if index == 0:
            torch._dynamo.config.error_on_recompile = True
    torch._dynamo.config.error_on_recompile = False
    assert state.tokens[:, 9:].tolist() == expected.tolist()


def test_prompt_alone_and_in_a_batch(model):
    """Rows stay independent: a quantised product is one row at a time."""
    tokens, mask = ragged_prompt()
    together = greedy(model, tokens, mask, new_tokens=6)
    for row in range(3):
        alone = tokens[row : row + 1, mask[row]], mask[row : row + 1, mask[row]]
        assert greedy(model, *alone, new_tokens=6).tolist() == together[row : row + 1].tolist()
