"""Every loop gives what stepping by hand gives, for every strategy, transform and stop rule."""

from __future__ import annotations

import pytest
import torch

import purgen
from purgen import Buckets, generate, resume
from purgen.cache import Cache
from purgen.testing.laws import clone_tree, difference
from tests.registry import GROUPED, STOP_RULES, STRATEGIES, TRANSFORMS, cases

MODEL = purgen.testing.toy_model(vocab_size=32, eos_token_id=(3,))
PROMPT = purgen.Prompt.from_lists([[1, 2, 3, 4, 5], [6], [7, 8], [2, 9, 4]], pad_token_id=0)
KEY = purgen.random.key(5)
NEW = 14
RECORD = ("logprob", "top_tokens")
SMALL = Buckets(smallest=8)  # the prompt has 5 slots, the budget 19: two or three buckets

# The backend that runs the traced graph as it is: what is tested is the loops, not inductor.
TRACED = {"backend": "eager", "buckets": SMALL}
LOOPS = {
    "eager": {"loop": "eager", "buckets": SMALL},
    "compiled": {"loop": "compiled", "chunk": 2, **TRACED},
    "while": {"loop": "while", **TRACED},
}


def by_hand(decoder, *, record=(), model=MODEL, prompt=PROMPT):
    """The reference: the pure step, again and again."""
    state = decoder.init(model.params, prompt, rng_key=KEY, max_new_tokens=NEW)
    state = purgen.replace(state, record=purgen.record.resolve_record(record))
    states, recorded = [state], {}
    with torch.no_grad():
        while not bool(state.stopped.all()):
            state, info = decoder.step(model.params, state)
            states.append(state)
            for name, value in info.recorded.items():
                recorded.setdefault(name, []).append(value)
    record = {name: torch.stack(values, dim=1) for name, values in recorded.items()}
    return purgen.replace(decoder.finish(state), record=record), states


def visible(state):
    """What of a state is defined: caches up to their position, which their tokens show."""
    fields = {
        name: getattr(state, name)
        for name in ("tokens", "start", "length", "stopped", "stop_reason", "transform", "stop")
    }
    fields |= {"limit": state.limit, "extra": state.extra, "position": state.cache_position}
    return torch.utils._pytree.tree_map(
        lambda value: value.cache_position if isinstance(value, Cache) else value,
        fields,
        is_leaf=lambda value: isinstance(value, Cache),
    )


def require_same(expected, output):
    assert torch.equal(output.sequences[:, -output.new_tokens.shape[1] :], output.new_tokens)
    for name in ("new_tokens", "num_new_tokens", "stop_reason"):
        found = difference(getattr(expected, name), getattr(output, name))
        assert found is None, f"{name}: {found}"
    assert difference(expected.record, output.record, tolerance=1e-4) is None
    found = difference(visible(expected.state), visible(output.state), tolerance=1e-4)
    assert found is None, found
    assert not output.state.lockstep


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("make", cases(STRATEGIES))
def test_every_strategy(make, loop):
    decoder = make(MODEL)
    expected, _ = by_hand(decoder, record=RECORD)
    output = generate(
        decoder,
        MODEL.params,
        PROMPT,
        rng_key=KEY,
        max_new_tokens=NEW,
        record=RECORD,
        **LOOPS[loop],
    )
    require_same(expected, output)
    assert len(expected.num_new_tokens.unique()) > 1 or "token_strategy" in str(decoder.step)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "while"])
@pytest.mark.parametrize("make", [*cases(TRANSFORMS), *cases(GROUPED)])
def test_every_transform(make, loop):
    decoder = purgen.sample(MODEL, transform=make())
    expected, _ = by_hand(decoder)
    output = generate(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=NEW, **LOOPS[loop])
    require_same(expected, output)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "while"])
@pytest.mark.parametrize("make", cases({**STOP_RULES, "max_time": []}))
def test_every_stop_rule(make, loop):
    decoder = purgen.sample(MODEL, stop=make())
    expected, _ = by_hand(decoder)
    output = generate(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=NEW, **LOOPS[loop])
    require_same(expected, output)


@pytest.mark.parametrize("loop", LOOPS)
def test_resumed_midway_and_the_state_is_untouched(loop):
    decoder = purgen.sample(MODEL, transform=purgen.dry(0.8))
    expected, states = by_hand(decoder)
    middle = states[6]
    held = clone_tree(middle)
    output = resume(decoder, MODEL.params, middle, **LOOPS[loop])
    require_same(expected, output)
    assert difference(held, middle) is None
    again = resume(decoder, MODEL.params, output.state, **LOOPS[loop])  # all rows have stopped
    require_same(expected, again)


@pytest.mark.parametrize("loop", LOOPS)
def test_rows_at_different_lengths(loop):
    """Two halves of a batch, one four tokens ahead: nothing moves together."""
    decoder = purgen.sample(MODEL)
    expected, states = by_hand(decoder)
    ahead = torch.tensor([True, False, True, False])
    mixed = purgen.where_rows(ahead, states[5], states[1])
    output = resume(decoder, MODEL.params, mixed, **LOOPS[loop])
    require_same(expected, output)
    # And one whose longest row has stopped: the others go on behind it.
    longest = purgen.where_rows(ahead, states[-1], states[1])
    require_same(expected, resume(decoder, MODEL.params, longest, **LOOPS[loop]))


@pytest.mark.parametrize("loop", LOOPS)
def test_row_without_a_token(loop):
    forbid = purgen.stateless(
        lambda logits, view: torch.where(
            (view.num_new_tokens == 3)[:, None] & (view.start == 0)[:, None], -torch.inf, logits
        )
    )
    decoder = purgen.greedy(MODEL, transform=forbid, stop=purgen.any_of())
    expected, _ = by_hand(decoder, record="logprob")
    output = generate(
        decoder, MODEL.params, PROMPT, max_new_tokens=NEW, record="logprob", **LOOPS[loop]
    )
    require_same(expected, output)
    assert output.stop_reasons.count("NO_TOKEN") == 1


@pytest.mark.parametrize("loop", LOOPS)
def test_model_without_a_layout(loop):
    """Its caches are not lengthened, its tokens not widened."""
    layouts = purgen.replace(
        MODEL,
        init_cache=lambda rows, slots: purgen.replace(MODEL.init_cache(rows, slots), layout=None),
        apply=bare(MODEL.apply),
        prefill=bare(MODEL.prefill),
    )
    decoder = purgen.sample(layouts)
    expected, _ = by_hand(decoder, model=layouts)
    output = generate(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=NEW, **LOOPS[loop])
    require_same(expected, output)


def bare(call):
    def run(*args, **kwargs):
        output = call(*args, **kwargs)
        return purgen.replace(output, cache=purgen.replace(output.cache, layout=None))

    return run


@pytest.mark.parametrize("loop", LOOPS)
def test_strategy_that_moves_leaves_about(loop):
    """The new state holds old leaves under other names, and views of them."""
    plain = purgen.greedy(MODEL)

    def init(params, prompt, *, rng_key=None, max_new_tokens):
        state = plain.init(params, prompt, rng_key=rng_key, max_new_tokens=max_new_tokens)
        past = state.length.clone()
        return purgen.replace(state, extra={"one": past, "two": past, "view": past[:, None]})

    def step(params, state):
        old = state.extra
        after, info = plain.step(params, state)
        moved = {"one": after.length.clone(), "two": old["one"], "view": old["two"][:, None]}
        moved = purgen.where_rows(~state.stopped, moved, old)
        return purgen.replace(after, extra=moved), info

    decoder = purgen.Decoder(init, step, purgen.finish, lockstep=True)
    expected, _ = by_hand(decoder)
    output = generate(decoder, MODEL.params, PROMPT, max_new_tokens=NEW, **LOOPS[loop])
    require_same(expected, output)
    assert (output.state.extra["one"] - output.state.extra["view"][:, 0] == 2).any()
