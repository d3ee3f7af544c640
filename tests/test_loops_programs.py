"""Programs: how few are compiled, how they are shared, bounded and explained."""

from __future__ import annotations

import logging
import time

import pytest
import torch

import purgen
from purgen import Buckets, generate, resume
from purgen.program import Compiler
from purgen.programs import PROGRAMS, Programs
from purgen.structure import structure_of

MODEL = purgen.testing.toy_model(vocab_size=24, eos_token_id=(3,))
PROMPT = purgen.Prompt.from_lists([[1, 2, 3], [6]], pad_token_id=0)
KEY = purgen.random.key(3)


@pytest.fixture(autouse=True)
def _own_programs():
    PROGRAMS.clear()
    yield
    PROGRAMS.clear()


def prompt_of(width):
    return purgen.Prompt.from_lists([list(range(1, 1 + width)), [2]], pad_token_id=0)


@pytest.mark.parametrize("loop", ["compiled", "while"])
def test_twenty_lengths_and_ten_settings_are_one_program_a_bucket(loop):
    for index in range(20):
        warp = purgen.chain(
            purgen.temperature(0.5 + 0.1 * (index % 10)),
            purgen.top_k(5 + index % 4),  # as far as one program goes: up to a power of two
            purgen.top_p(0.5 + 0.05 * (index % 10)),
        )
        decoder = purgen.sample(MODEL, transform=warp)
        options = {"loop": loop, "backend": "eager", "chunk": 2 if loop == "compiled" else None}
        options |= {"max_new_tokens": 3 + index, "rng_key": purgen.random.key(index)}
        out = generate(decoder, MODEL.params, prompt_of(1 + index), buckets=Buckets(16), **options)
        assert torch.equal(
            out.new_tokens,
            generate(
                decoder,
                MODEL.params,
                prompt_of(1 + index),
                rng_key=purgen.random.key(index),
                max_new_tokens=3 + index,
            ).new_tokens,
        )
    programs = list(PROGRAMS)
    assert sorted(program.traits["cache slots"] for program in programs) == [(16,), (32,), (64,)]
    assert [program.graphs for program in programs] == [1, 1, 1]


def test_what_programs_are_shared_by():
    def step_of(make=purgen.sample, model=MODEL, **options):
        return structure_of(make(model, **options).step)

    assert step_of() == step_of()
    assert step_of(stop=purgen.eos(3)) == step_of(stop=purgen.eos(5))
    assert step_of(transform=purgen.top_p(0.5)) == step_of(transform=purgen.top_p(0.9))
    assert step_of() != step_of(make=purgen.greedy)
    assert step_of(transform=purgen.top_p(0.5)) != step_of(transform=purgen.top_k(5))
    assert step_of() != step_of(model=purgen.testing.toy_model(vocab_size=24))


def test_a_description_that_says_too_little_costs_a_graph_and_no_token():
    """Two transforms that look alike: torch's own guard on the number tells them apart."""

    class Box:
        scale = 1.0

    def halve(logits, view):
        return logits * Box.scale

    decoder = purgen.greedy(MODEL, transform=purgen.stateless(halve), stop=purgen.any_of())
    options = {"max_new_tokens": 6, "loop": "while", "backend": "eager"}
    first = generate(decoder, MODEL.params, PROMPT, **options)
    Box.scale = -1.0
    second = generate(decoder, MODEL.params, PROMPT, **options)
    expected = generate(decoder, MODEL.params, PROMPT, max_new_tokens=6)
    assert torch.equal(second.new_tokens, expected.new_tokens)
    assert not torch.equal(first.new_tokens, second.new_tokens)
    (program,) = PROGRAMS
    assert program.graphs == 2


def test_the_oldest_programs_are_dropped():
    programs = Programs(bound=2)
    decoder = purgen.greedy(MODEL)

    def find(rows):
        state = decoder.init(MODEL.params, purgen.repeat_rows(PROMPT, rows), max_new_tokens=2)
        run = purgen.advance.Run(state=state, record={}, made=torch.zeros((), dtype=torch.int64))
        return programs.find("step", decoder.step, MODEL.params, run, compiler=Compiler("eager"))

    one, two = find(1), find(2)
    assert find(1) is one
    find(3)
    assert len(programs) == 2
    assert find(1) is one
    assert find(2) is not two


def test_explain_tells_what_was_compiled_and_why():
    decoder = purgen.greedy(MODEL, stop=purgen.any_of())
    options = {"backend": "eager", "buckets": Buckets(8), "loop": "while"}
    first = purgen.explain(decoder, MODEL.params, PROMPT, max_new_tokens=20, **options)
    assert (first.loop, first.reason, first.new, first.graphs) == ("while", "asked for", 3, 3)
    assert [program.why for program in first.programs] == [
        "the first of this decoder and loop",
        "new: cache slots 16",
        "new: cache slots 32",
    ]
    assert first.num_new_tokens == 40
    assert first.seconds > 0
    assert all(program.donated > 10 and program.donated_bytes > 1000 for program in first.programs)
    text = repr(first)
    assert "loop 'while' (asked for): 40 tokens by 3 programs, 3 of them new" in text
    assert "new: cache slots 16" in text
    again = purgen.explain(decoder, MODEL.params, PROMPT, max_new_tokens=20, **options)
    assert (again.new, again.graphs) == (0, 3)
    wider = purgen.repeat_rows(PROMPT, 2)
    more = purgen.explain(decoder, MODEL.params, wider, max_new_tokens=2, **options)
    assert [program.why for program in more.programs] == ["new: rows 4"]


def test_auto_picks_and_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="purgen"):
        generate(purgen.greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=3, loop="auto")
    assert "loop='auto' is 'eager': 3 steps are not worth compiling" in caplog.text
    assert purgen.auto.pick_loop("auto", MODEL.params, steps=500)[0] == "while"
    assert purgen.auto.pick_loop("auto", MODEL.params, steps=500, streams=True)[0] == "compiled"
    large = torch.empty(5_000_000)
    assert purgen.auto.pick_loop("auto", large, steps=500)[0] == "while"
    assert purgen.auto.pick_loop("auto", large, steps=500, freeze=True)[0] == "compiled"
    assert purgen.auto.pick_loop("auto", MODEL.params, steps=500, freeze=True)[0] == "while"
    assert len(PROGRAMS) == 0


def test_progress_says_that_it_compiles(capsys):
    options = {"max_new_tokens": 5, "loop": "while", "backend": "eager"}
    out = generate(purgen.greedy(MODEL), MODEL.params, PROMPT, progress=True, **options)
    text = capsys.readouterr().err
    assert "purgen: compiling while (the first of this decoder and loop)" in text
    assert "purgen: compiled in" in text
    assert f"{int(out.num_new_tokens.sum())}/10" in text
    generate(purgen.greedy(MODEL), MODEL.params, PROMPT, progress=True, **options)
    assert "compil" not in capsys.readouterr().err
    generate(purgen.greedy(MODEL), MODEL.params, PROMPT, **options)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("loop", ["compiled", "while"])
def test_time_is_up_between_turns(loop, monkeypatch):
    """A clock that moves a second a look: the rule fires at the first step after a turn began late."""
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    decoder = purgen.greedy(MODEL, stop=purgen.max_time(torch.tensor([4.0, 1e9])))
    out = generate(
        decoder, MODEL.params, PROMPT, max_new_tokens=40, loop=loop, backend="eager", chunk=3
    )
    assert out.stop_reasons == ["MAX_TIME", "MAX_NEW_TOKENS"]
    assert (int(out.num_new_tokens[0]) - 1) % 3 == 0
    assert 1 < int(out.num_new_tokens[0]) < 40


def test_slices_of_the_whole_program_give_the_same_tokens():
    decoder = purgen.sample(MODEL)
    runs = [
        generate(
            decoder,
            MODEL.params,
            PROMPT,
            rng_key=KEY,
            max_new_tokens=20,
            loop="while",
            backend="eager",
            chunk=chunk,
            record="logprob",
        )
        for chunk in (1, 7, 100, None)
    ]
    for run in runs[1:]:
        assert torch.equal(run.sequences, runs[0].sequences)
        assert torch.equal(run.record["logprob"], runs[0].record["logprob"])
    (program,) = PROGRAMS
    assert program.graphs == 1


def test_early_exit_at_the_step_where_all_have_stopped():
    decoder = purgen.greedy(MODEL, stop=purgen.max_new_tokens(torch.tensor([2, 5])))
    seen = []
    counted = purgen.replace(
        decoder, step=lambda params, state: (seen.append(1), decoder.step(params, state))[1]
    )
    out = generate(counted, MODEL.params, PROMPT, max_new_tokens=50)
    assert len(seen) == 5
    out = generate(decoder, MODEL.params, PROMPT, max_new_tokens=50, loop="while", backend="eager")
    assert out.num_new_tokens.tolist() == [2, 5]
    state = decoder.init(MODEL.params, PROMPT, max_new_tokens=50)
    run = purgen.advance.Run(state=state, record={}, made=torch.zeros((), dtype=torch.int64))
    program = PROGRAMS.find(
        "while", decoder.step, MODEL.params, run, run.made, compiler=Compiler("eager")
    )
    with torch.no_grad():
        program(decoder.step, MODEL.params, run, torch.tensor(49))
    assert int(run.made) == 5


def test_the_whole_generation_as_a_pure_function():
    decoder = purgen.sample(MODEL)
    state = decoder.init(MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=9)
    held = purgen.testing.laws.clone_tree(state)
    program = torch.compile(purgen.advance.complete, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        after = program(decoder.step, MODEL.params, state)
    assert purgen.testing.laws.difference(held, state) is None
    expected = generate(decoder, MODEL.params, PROMPT, rng_key=KEY, max_new_tokens=9)
    assert torch.equal(after.tokens, expected.state.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk must be an int of at least 1 or None, not 0"),
        ({"chunk": True}, "chunk must be an int"),
        ({"loop": "fast"}, "loop must be one of .* not 'fast'"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        generate(purgen.greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=2, **options)


def test_stream_has_no_while():
    for options in ({"loop": "while"}, {"chunk": 4}):
        with pytest.raises(ValueError, match="stream hands out"):
            purgen.stream(purgen.greedy(MODEL), MODEL.params, PROMPT, max_new_tokens=2, **options)


def test_stream_compiled_hands_out_states_that_last():
    decoder = purgen.sample(MODEL, stop=purgen.any_of())
    arguments = (decoder, MODEL.params, PROMPT)
    options = {"rng_key": KEY, "max_new_tokens": 12, "buckets": Buckets(8)}
    eager = list(purgen.stream(*arguments, **options))
    compiled = list(purgen.stream(*arguments, loop="compiled", backend="eager", **options))
    for (state, info), (other, more) in zip(eager, compiled, strict=True):
        assert torch.equal(state.tokens, other.tokens)
        assert torch.equal(info.token, more.token)
        assert not other.lockstep
    half = resume(decoder, MODEL.params, compiled[4][0])
    assert torch.equal(half.sequences, resume(decoder, MODEL.params, eager[-1][0]).sequences)
