"""The one contract suite over every public piece, and the proof that each of its checks can fail."""

from __future__ import annotations

import inspect
import random as python_random
from typing import get_type_hints

import numpy as np
import pytest
import torch

import purgen
from purgen import Decoder, LogitsTransform, StopRule
from purgen.testing import check_decoder, check_stop_rule, check_transform, toy_model
from tests.registry import ROWS, STOP_RULES, STRATEGIES, TRANSFORMS, cases

PROMPT = purgen.Prompt.from_lists([[1, 2, 3, 4, 5], [6], [7, 8], [2, 9, 4]], pad_token_id=0)


@pytest.mark.parametrize("make", cases(TRANSFORMS))
def test_transform_keeps_the_laws(make):
    check_transform(make(), batch_size=ROWS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", cases(TRANSFORMS))
def test_transform_keeps_the_laws_in_half_precision(make, dtype):
    check_transform(make(), batch_size=ROWS, dtype=dtype, steps=3, backend=None)


@pytest.mark.parametrize("make", cases(STOP_RULES))
def test_stop_rule_keeps_the_laws(make):
    check_stop_rule(make(), batch_size=ROWS)


@pytest.mark.parametrize("make", cases(STRATEGIES))
def test_strategy_keeps_the_laws(make):
    model = toy_model(vocab_size=24, eos_token_id=(3,))
    check_decoder(make(model), model.params, PROMPT, rng_key=purgen.random.key(5))


def test_registry_holds_every_public_piece():
    kinds = {LogitsTransform: TRANSFORMS, StopRule: STOP_RULES, Decoder: STRATEGIES}
    for name in purgen.__all__:
        piece = getattr(purgen, name)
        if inspect.isfunction(piece):
            table = kinds.get(get_type_hints(piece).get("return"))
            assert table is None or name in table, f"{name} is not in tests/registry.py"


# The suite itself: each law has a piece that breaks it and nothing that comes before.


def transform_of(apply, init=lambda context: ()):
    return LogitsTransform(init, apply)


def in_place(state, logits, view):
    return logits.mul_(0.5), state


def draws_torch(state, logits, view):
    return logits + torch.rand(()), state


def draws_numpy(state, logits, view):
    return logits + float(np.random.rand()), state  # noqa: NPY002


def draws_python(state, logits, view):
    return logits + python_random.random(), state


def counting():
    calls = []

    def apply(state, logits, view):
        calls.append(1)
        return logits + len(calls), state

    return transform_of(apply)


def widens(state, logits, view):
    return logits.double(), state


def grows(state, logits, view):
    return logits, torch.cat([state, state], dim=1)


def mixes_rows(state, logits, view):
    return logits - logits.mean(dim=0), state


def counts_pads(state, logits, view):
    return logits * (view.tokens == 0).sum(dim=1, keepdim=True), state


def counts_columns(state, logits, view):
    return logits * (1 + view.length[:, None]), state


def reads_a_number(state, logits, view):
    return logits * (1 + int((view.length > 0).all().long())), state


def breaks_the_graph(state, logits, view):
    torch._dynamo.graph_break()
    return logits, state


def makes_nan(state, logits, view):
    return logits - logits.amax(dim=-1, keepdim=True), state


def spreads_nan(state, logits, view):
    return logits + 0 * logits.sum(dim=0).clamp(-1, 1), state


@pytest.mark.parametrize(
    ("transform", "law"),
    [
        (transform_of(in_place), "pure"),
        (transform_of(draws_torch), "global randomness"),
        (transform_of(draws_numpy), "global randomness"),
        (transform_of(draws_python), "global randomness"),
        (counting(), "deterministic"),
        (transform_of(widens), "structure"),
        (transform_of(grows, lambda context: torch.ones(len(context.start), 1)), "structure"),
        (transform_of(lambda s, x, v: (x, s), lambda context: torch.ones(1)), "structure"),
        (transform_of(mixes_rows), "rows"),
        (transform_of(counts_pads), "pads"),
        (transform_of(counts_columns), "pads"),
        (transform_of(reads_a_number), "vmap"),
        (transform_of(breaks_the_graph), "one graph"),
        (transform_of(makes_nan), "total"),
    ],
)
def test_broken_transform_is_found(transform, law):
    with pytest.raises(AssertionError, match=f"^{law}"):
        check_transform(transform)


def test_nan_that_spreads_to_neighbours_is_found():
    with pytest.raises(AssertionError, match="^(rows|total)"):
        check_transform(transform_of(spreads_nan))


def test_coupling_through_the_number_of_new_tokens_is_found():
    with pytest.raises(AssertionError, match="^rows"):
        check_transform(purgen.stateless(lambda logits, view: logits * view.num_new_tokens[0]))

    def one_for_all(sstate, view):
        return (view.num_new_tokens > 2).any().expand(len(view.start)), sstate

    with pytest.raises(AssertionError, match="^rows"):
        check_stop_rule(StopRule(lambda context: (), one_for_all))


def test_broken_stop_rule_is_found():
    def in_batch(sstate, view):
        return (purgen.last_token(view) == 3).any().expand(len(view.start)), sstate

    with pytest.raises(AssertionError, match="^rows"):
        check_stop_rule(StopRule(lambda context: (), in_batch))
    with pytest.raises(AssertionError, match="^structure"):
        check_stop_rule(
            StopRule(lambda context: (), lambda s, view: (view.length, s)), backend=None
        )


def broken_decoder(change):
    model = toy_model(vocab_size=24, eos_token_id=(3,))
    decoder = purgen.greedy(model, stop=purgen.eos(range(8)))  # rows stop at different steps
    return purgen.replace(
        decoder, step=lambda params, state: change(decoder.step, params, state)
    ), model


def writes_tokens(step, params, state):
    state.tokens[:, 0] += 1
    return step(params, state)


def writes_params(step, params, state):
    params["head"].mul_(1.001)
    return step(params, state)


def draws(step, params, state):
    torch.rand(1)
    return step(params, state)


def wakes_rows(step, params, state):
    return step(params, purgen.replace(state, stopped=torch.zeros_like(state.stopped)))


def looks_left(step, params, state):
    state, info = step(params, state)
    return purgen.replace(state, tokens=state.tokens.clone()), purgen.replace(
        info, logprob=info.logprob[:1]
    )


def follows_neighbours(step, params, state):
    after, info = step(params, state)
    same = after.tokens.gather(1, after.length[:, None] - 1)[:1]
    row = torch.arange(len(same)).expand(len(after.length))
    last = torch.nn.functional.one_hot(after.length - 1, after.tokens.shape[1]).bool()
    tokens = torch.where(last & ~state.stopped[:, None], same[row], after.tokens)
    return purgen.replace(after, tokens=tokens), info


def counts_steps(step, params, state):
    after, info = step(params, state)
    if int(info.num_tokens[0]) > 1:
        raise RuntimeError("more than one token")
    return after, info


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (writes_tokens, "pure"),
        (writes_params, "pure"),
        (draws, "global randomness"),
        (wakes_rows, "frozen"),
        (looks_left, "structure"),
        (follows_neighbours, "rows"),
        (counts_steps, "one graph"),
    ],
)
def test_broken_decoder_is_found(change, law):
    decoder, model = broken_decoder(change)
    with pytest.raises(AssertionError, match=f"^{law}"):
        check_decoder(decoder, model.params, PROMPT)


def test_decoder_that_feeds_a_cache_twice_and_says_it_does_not_is_found():
    model = toy_model(vocab_size=24)
    plain = purgen.greedy(model)

    def step(params, state):
        """Keeps the cache of a first feed; a second one, of another token, goes to the same slot."""
        ahead, _ = purgen.feed(model, params, state)
        column = torch.arange(state.tokens.shape[1]) == state.length[:, None] - 1
        other = purgen.replace(state, tokens=torch.where(column, 5, state.tokens))
        _, output = purgen.feed(model, params, other)
        return purgen.append(
            ahead, output.logits[:, -1].argmin(dim=-1), output.logits[:, -1], stop=purgen.any_of()
        )

    honest = purgen.replace(plain, step=step, lockstep=False)
    init = purgen.greedy(model, stop=purgen.any_of()).init
    honest = purgen.replace(honest, init=init)
    check_decoder(honest, model.params, PROMPT, backend=None)
    with pytest.raises(AssertionError, match="^loops"):
        check_decoder(purgen.replace(honest, lockstep=True), model.params, PROMPT, backend=None)


def test_decoder_that_sees_pads_is_found():
    model = toy_model(vocab_size=24)
    blind = purgen.replace(
        model,
        prefill=lambda params, tokens, cache, *, mask, inputs=None: model.prefill(
            params, tokens, cache, mask=torch.ones_like(mask)
        ),
        apply=lambda params, tokens, cache, *, cache_position, **_: model.apply(
            params, tokens, cache, cache_position=cache_position
        ),
    )
    with pytest.raises(AssertionError, match="^(rows|pads)"):
        check_decoder(purgen.greedy(blind), model.params, PROMPT)
