"""No loop copies a cache in a step, none changes what its caller holds, and caches grow by doubling."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import purgen
from purgen import Buckets, generate, resume
from purgen.advance import Run
from purgen.buffers import owned
from purgen.program import Compiler
from purgen.programs import Programs
from purgen.testing.laws import clone_tree, difference

HIDDEN = 32
MODEL = purgen.testing.toy_model(vocab_size=12, hidden_size=HIDDEN)
PROMPT = purgen.Prompt.from_lists([[1, 2, 3, 4, 5], [6]], pad_token_id=0)
KEY = purgen.random.key(5)
SLOTS = 4099  # a number found nowhere else in generated code
BUFFER = (
    2 * SLOTS * HIDDEN * 4
)  # bytes of the keys, or of the values; nothing else is half as large
WHOLE = Buckets(sizes=(SLOTS,))


def largest_allocation(function):
    with torch.profiler.profile(profile_memory=True) as profile:
        result = function()
    events = profile.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]"), result


def begun(decoder, tokens=12):
    return decoder.init(MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=tokens, buckets=WHOLE)


def test_profiler_sees_a_copy():
    state = begun(purgen.sample(MODEL))
    largest, _ = largest_allocation(lambda: purgen.sample(MODEL).step(MODEL.params, state))
    assert largest >= BUFFER


@pytest.mark.parametrize("lockstep", [True, False])
def test_eager_steps_copy_no_cache(lockstep):
    decoder = purgen.sample(MODEL)
    state = purgen.replace(begun(decoder), lockstep=lockstep)
    run = Run(state=state, record={}, made=torch.zeros((), dtype=torch.int64))
    kept = run.state.cache.layers["key"]

    def steps(run):
        for _ in range(4):
            run, _ = purgen.driver.step_in_python(decoder, MODEL.params, run, owns=True)
        return run

    largest, after = largest_allocation(lambda: steps(run))
    assert largest < BUFFER / 2
    assert after.state.cache.layers["key"] is kept


@pytest.mark.slow
@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("kind", ["chunk", "while"])
def test_programs_copy_no_cache(kind, lockstep):
    """Seen in the generated code and in the allocations of a run."""
    decoder = purgen.sample(MODEL, transform=purgen.repetition_penalty(1.2))
    state = purgen.replace(begun(decoder), lockstep=lockstep)
    run = owned(Run(state=state, record={}, made=torch.zeros((), dtype=torch.int64)), set())
    rest = (3,) if kind == "chunk" else (torch.tensor(6),)
    program = Programs().find(
        kind, decoder.step, MODEL.params, run, *rest, compiler=Compiler("inductor")
    )
    with torch.no_grad():
        _, codes = run_and_get_code(program, decoder.step, MODEL.params, run, *rest)
        rest = (3,) if kind == "chunk" else (torch.tensor(12),)
        largest, _ = largest_allocation(lambda: program(decoder.step, MODEL.params, run, *rest))
    whole = f"(2, {SLOTS}, {HIDDEN})"
    assert any(whole in code for code in codes)  # it is among the arguments
    for code in codes:
        assert not [line for line in code.splitlines() if "empty_strided" in line and whole in line]
    assert largest < BUFFER / 2
    assert program.graphs == 1
    assert int(run.made) == (6 if kind == "chunk" else 12)
    expected = generate(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=12).state
    got = run.state.tokens[:, : int(run.state.length.max())]
    assert torch.equal(got, expected.tokens[:, : got.shape[1]])


@pytest.mark.parametrize("loop", ["eager", "compiled", "while"])
def test_inputs_are_untouched(loop):
    decoder = purgen.sample(MODEL)
    options = {"loop": loop, "backend": "eager", "buckets": Buckets(smallest=8)}
    state = begun(decoder)
    held = clone_tree((state, MODEL.params, PROMPT, KEY))
    resume(decoder, MODEL.params, state, **options)
    generate(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=9, **options)
    assert difference(held, (state, MODEL.params, PROMPT, KEY)) is None


def test_cache_doubles_as_it_fills():
    decoder = purgen.greedy(MODEL)
    steps = purgen.stream(
        decoder, MODEL.params, PROMPT, max_new_tokens=60, buckets=Buckets(smallest=8)
    )
    seen = []
    for state, _ in steps:
        slots = state.cache.layout.capacity(state.cache)
        assert slots >= int(state.cache_position.max())
        assert state.tokens.shape[1] == 65
        if slots not in seen:
            seen.append(slots)
    assert seen == [8, 16, 32, 64, 65]


def test_a_state_with_a_short_cache_goes_on_without_buckets():
    decoder = purgen.greedy(MODEL)
    options = {"max_new_tokens": 20, "buckets": Buckets(smallest=8)}
    whole = generate(decoder, MODEL.params, PROMPT, **options)
    states = [state for state, _ in purgen.stream(decoder, MODEL.params, PROMPT, **options)]
    assert states[2].cache.layout.capacity(states[2].cache) == 8
    for loop in ("eager", "while"):
        rest = resume(decoder, MODEL.params, states[2], buckets=None, loop=loop, backend="eager")
        assert torch.equal(rest.sequences, whole.sequences)


def test_whole_budget_at_once():
    for buckets, slots in ((None, 25), (Buckets(grow=False), 25), (Buckets(smallest=8), 25)):
        out = generate(
            purgen.greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=20, buckets=buckets
        )
        assert out.state.cache.layout.capacity(out.state.cache) == slots


def test_bad_buckets_are_refused():
    with pytest.raises(ValueError, match="smallest must be an int of at least 1, not 0"):
        Buckets(smallest=0)
    with pytest.raises(ValueError, match="factor must be above 1"):
        Buckets(factor=1)
    with pytest.raises(ValueError, match="sizes must be positive and ascending"):
        Buckets(sizes=(8, 4))
    with pytest.raises(TypeError, match="buckets must be a purgen.Buckets or None, not int 64"):
        generate(purgen.greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=2, buckets=64)
    with pytest.raises(ValueError, match="take 25 slots; the largest of sizes is 16"):
        generate(
            purgen.greedy(MODEL),
            MODEL.params,
            PROMPT,
            max_new_tokens=20,
            buckets=Buckets(sizes=(8, 16)),
        )
