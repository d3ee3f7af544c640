"""Strategies on bridged models: the tokens of transformers, vmapped, held to the contract."""

from __future__ import annotations

import pytest
import torch

import purgen
from tests.bridge.families import BATCHING, FAMILIES, NEW_TOKENS, ragged_prompt
from tests.bridge.test_families import generated
from tests.bridge.test_tracing import lane, two_of

pytestmark = pytest.mark.filterwarnings(BATCHING)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_is_that_of_transformers(name, modules, models):
    model, (tokens, mask) = models(name), ragged_prompt()
    decoder = purgen.greedy(model, stop=purgen.any_of())

    def ours(tokens, mask):
        prompt = purgen.Prompt(tokens=tokens, mask=mask)
        return purgen.generate(decoder, model.params, prompt, max_new_tokens=NEW_TOKENS).new_tokens

    together = ours(tokens, mask)
    assert together.tolist() == generated(modules(name), tokens, mask).tolist()
    for row, real in enumerate(mask):
        alone = ours(tokens[row : row + 1, real], mask[row : row + 1, real])
        assert alone.tolist() == together[row : row + 1].tolist()


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2"])
def test_strategies_keep_the_laws(name, models):
    model = models(name)
    prompt = purgen.Prompt.from_lists([[5, 6, 7, 8, 9], [11], [12, 13]], pad_token_id=0)
    decoder = purgen.sample(model, transform=purgen.top_p(0.9), stop=purgen.eos(range(60, 64)))
    key = purgen.random.key(1)
    purgen.testing.check_decoder(decoder, model.params, prompt, rng_key=key, max_new_tokens=8)


def test_step_under_vmap_over_parameters_and_states(models):
    """Two perturbed copies of a tiny Llama, and two states at different positions."""
    model = models("llama")
    prompt = purgen.Prompt.from_lists([[5, 6, 7], [11, 12]], pad_token_id=0)
    decoder, key = purgen.sample(model), purgen.random.key(4)
    states = [decoder.init(model.params, prompt, rng_key=key, max_new_tokens=6)]
    for _ in range(3):
        states.append(decoder.step(model.params, states[-1])[0])

    params = two_of(model.params)
    over_params, _ = torch.func.vmap(decoder.step, in_dims=(0, None))(params, states[0])
    tokens = []
    for index in (0, 1):
        expected, _ = decoder.step(lane(params, index), states[0])
        assert torch.equal(over_params.tokens[index], expected.tokens)
        tokens.append(expected.tokens)
        layer, other = over_params.cache.layers["layers"][1]["k"][index], expected.cache.layers
        torch.testing.assert_close(layer, other["layers"][1]["k"], rtol=1e-4, atol=1e-5)

    pair = purgen.testing.laws.stack_trees(states[0], states[3])
    over_states, info = torch.func.vmap(decoder.step, in_dims=(None, 0))(model.params, pair)
    for index, state in enumerate((states[0], states[3])):
        expected, own = decoder.step(model.params, state)
        assert torch.equal(over_states.tokens[index], expected.tokens)
        torch.testing.assert_close(info.logprob[index], own.logprob, rtol=1e-4, atol=1e-5)
