"""Transforms as programs: one graph over steps and settings, alone, in pairs, all at once."""

from __future__ import annotations

import pytest
import torch

import purgen
from purgen.testing import CompileCounter, toy_model
from purgen.testing.examples import example_history
from tests.registry import GROUPED, ROWS, TRANSFORMS

NAMES = [name for name in TRANSFORMS if name not in GROUPED and TRANSFORMS[name]]
COMBINATORS = {"chain", "named_chain", "when", "stateless"}
SINGLE = [name for name in NAMES if name not in COMBINATORS]


def first_of(name):
    return TRANSFORMS[name][0]()


def run(apply, state, history):
    outputs = []
    for moment in history:
        logits, state = apply(state, moment.logits, moment.view)
        outputs.append(logits)
    return outputs


def check_one_graph(transform, *, steps, backend="aot_eager"):
    history = example_history(batch_size=ROWS, steps=steps)
    compiled = CompileCounter(transform.apply, backend)
    state = transform.init(history[0].view)
    for expected, got in zip(
        run(transform.apply, state, history), run(compiled, state, history), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert compiled.graphs == 1


def test_everything_chained_is_one_graph():
    check_one_graph(purgen.chain(*map(first_of, SINGLE)), steps=32)


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
def test_pairs_are_one_graph(name):
    """Chains of this transform and each other, in one program over 32 steps."""
    pairs = [purgen.chain(first_of(name), first_of(other)) for other in SINGLE]

    def init(context):
        return tuple([pair.init(context) for pair in pairs])

    def apply(states, logits, view):
        results = [
            pair.apply(state, logits, view) for pair, state in zip(pairs, states, strict=True)
        ]
        return torch.stack([result for result, _ in results]), tuple(
            [after for _, after in results]
        )

    check_one_graph(purgen.LogitsTransform(init, apply), steps=32, backend="eager")


def test_decoders_that_differ_in_settings_share_a_program():
    model = toy_model(eos_token_id=3)
    prompt = purgen.Prompt.from_lists([[1, 2], [4, 5, 6]], pad_token_id=0)
    program = CompileCounter(lambda step, params, state: step(params, state))
    for heat, count, mass in ((0.7, 20, 0.9), (0.8, 25, 0.5), (1.3, 30, torch.tensor([0.3, 0.95]))):
        warp = purgen.chain(
            purgen.repetition_penalty(1 + heat),
            purgen.no_repeat_ngram(count % 2 + 4),
            purgen.temperature(heat),
            purgen.top_k(count),
            purgen.top_p(mass),
            purgen.min_p(heat / 50),
            purgen.min_new_tokens(count % 5, eos_token_id=3),
        )
        stop = purgen.any_of(purgen.eos(3), purgen.max_new_tokens(count))
        decoder = purgen.sample(model, transform=warp, stop=stop)
        key = purgen.random.key(count)
        state = decoder.init(model.params, prompt, rng_key=key, max_new_tokens=8)
        expected = purgen.resume(decoder, model.params, state)
        for _ in range(8):
            state, _ = program(decoder.step, model.params, state)
        assert torch.equal(state.tokens, expected.state.tokens)
    assert program.graphs == 1


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (purgen.temperature, [0.5, 1.0, 2.0]),
        (purgen.top_k, [1, 5, 40]),
        (purgen.top_p, [0.0, 0.5, 1.0]),
        (purgen.min_p, [0.0, 0.2, 1.0]),
        (purgen.typical_p, [0.2, 0.5, 0.9]),
        (purgen.epsilon_cutoff, [1e-3, 1e-2, 0.1]),
        (purgen.top_n_sigma, [0.5, 1.0, 2.0]),
        (purgen.repetition_penalty, [0.5, 1.0, 2.0]),
        (purgen.no_repeat_ngram, [1, 2, 3]),
        (purgen.presence_penalty, [0.0, 0.5, 1.5]),
    ],
)
def test_vmap_over_a_setting(make, settings):
    moment = example_history(batch_size=ROWS, steps=4)[-1]

    def once(value):
        transform = make(value)
        return transform.apply(transform.init(moment.view), moment.logits, moment.view)[0]

    together = torch.func.vmap(once)(torch.tensor(settings))
    for lane, value in enumerate(settings):
        torch.testing.assert_close(together[lane], once(value), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_everything_chained_gives_the_same_tokens_in_every_loop():
    model = toy_model(eos_token_id=3)
    prompt = purgen.Prompt.from_lists([[1, 2], [4, 5, 6], [7], [8, 9]], pad_token_id=0)
    decoder = purgen.sample(model, transform=purgen.chain(*map(first_of, SINGLE)))
    key = purgen.random.key(0)
    tokens = [
        purgen.generate(
            decoder, model.params, prompt, rng_key=key, max_new_tokens=8, loop=loop
        ).sequences
        for loop in ("eager", "compiled")
    ]
    assert torch.equal(*tokens)
