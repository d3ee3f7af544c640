"""Many prompts through one batch: what each gives is what it gives alone."""

from __future__ import annotations

import pytest
import torch

import purgen

MODEL = purgen.testing.toy_model(vocab_size=24, eos_token_id=(3, 4))
KEY = purgen.random.key(5)
PROMPTS = [[(7 * i + j) % 20 + 1 for j in range(1 + i * 5 % 9)] for i in range(13)]


def many(decoder, prompts=PROMPTS, *, batch_size=3, max_new_tokens=12, **options):
    done = purgen.generate_many(
        decoder,
        MODEL.params,
        prompts,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        rng_key=KEY,
        **options,
    )
    return list(done)


def alone(decoder, index, *, max_new_tokens=12, **options):
    prompt = purgen.Prompt.from_lists([PROMPTS[index]], pad_token_id=0)
    return purgen.generate(
        decoder,
        MODEL.params,
        prompt,
        rng_key=purgen.random.split(KEY, index + 1)[index:],
        max_new_tokens=max_new_tokens,
        **options,
    )


DECODERS = {
    "greedy": purgen.greedy(MODEL),
    "sample": purgen.sample(
        MODEL, transform=purgen.chain(purgen.temperature(2.0), purgen.top_p(0.9))
    ),
    "stateful": purgen.sample(
        MODEL,
        transform=purgen.chain(purgen.dry(2.0), purgen.no_repeat_ngram(2), purgen.mirostat(2.0)),
        stop=purgen.any_of(purgen.eos(3), purgen.stop_sequences([[7, 7], [9]])),
    ),
    "guided": purgen.guided(MODEL, scale=1.5),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_each_is_as_alone(name, batch_size):
    decoder = DECODERS[name]
    record = ["logprob", "top_tokens"]
    done = many(decoder, batch_size=batch_size, record=record)
    assert sorted(each.index for each in done) == list(range(len(PROMPTS)))
    lengths = set()
    for each in done:
        want = alone(decoder, each.index, record=record)
        assert torch.equal(each.output.sequences, want.sequences)
        assert torch.equal(each.output.new_tokens, want.new_tokens)
        assert torch.equal(each.output.stop_reason, want.stop_reason)
        torch.testing.assert_close(each.output.record, want.record)
        lengths.add(int(want.num_new_tokens))
    assert len(lengths) > 3, "answers must differ in length for this to say anything"


def test_rows_that_stop_make_room_and_the_batch_shrinks():
    """No more than the batch is in memory, each step works on as few rows as run, and one decoder."""
    rows = []

    def step(params, state):
        rows.append(len(state.length))
        return DECODERS["greedy"].step(params, state)

    decoder = purgen.replace(DECODERS["greedy"], step=step)
    done = many(decoder, batch_size=4)
    assert max(rows) == 4
    assert rows[-1] == 1
    useful = sum(int(each.output.num_new_tokens) for each in done)
    apart = 0
    for begin in range(0, len(PROMPTS), 4):
        group = [
            int(alone(DECODERS["greedy"], i).num_new_tokens)
            for i in range(begin, min(begin + 4, 13))
        ]
        apart += len(group) * max(group)
    assert useful <= sum(rows) < apart


def test_prompts_are_read_as_they_are_needed():
    read = []

    def source():
        for index, prompt in enumerate(PROMPTS):
            read.append(index)
            yield prompt

    done = purgen.generate_many(
        DECODERS["greedy"], MODEL.params, source(), batch_size=2, max_new_tokens=12
    )
    next(done)
    assert len(read) <= 4
    assert len(list(done)) == len(PROMPTS) - 1


def test_one_prompt_of_many_rows():
    prompt = purgen.Prompt.from_lists(PROMPTS, pad_token_id=0)
    done = many(DECODERS["greedy"], prompt)
    for each in done:
        want = alone(DECODERS["greedy"], each.index)
        assert torch.equal(each.output.new_tokens, want.new_tokens)
        width = prompt.tokens.shape[1]
        assert torch.equal(each.output.sequences[0, :width], prompt.tokens[each.index])


@pytest.mark.parametrize("loop", ["compiled", "while"])
@pytest.mark.parametrize("name", ["greedy", "stateful"])
def test_compiled_loops(name, loop):
    decoder = DECODERS[name]
    done = many(decoder, batch_size=4, loop=loop, backend="eager", chunk=3)
    for each in done:
        want = alone(decoder, each.index)
        assert torch.equal(each.output.new_tokens, want.new_tokens)
        assert torch.equal(each.output.stop_reason, want.stop_reason)


def test_nothing_to_do():
    assert many(DECODERS["greedy"], []) == []


def test_errors():
    with pytest.raises(ValueError, match="batch_size must be an int of at least 1, not 0"):
        many(DECODERS["greedy"], batch_size=0)
    with pytest.raises(TypeError, match=r"prompts\[1\] must be a Prompt of one row or a list"):
        many(DECODERS["greedy"], [[1], "text"])
    with pytest.raises(ValueError, match=r"prompts\[0\] has 2 rows"):
        many(DECODERS["greedy"], [purgen.Prompt.from_lists([[1], [2]], pad_token_id=0)])
    with pytest.raises(ValueError, match=r"rng_key must be one key \[2\]"):
        next(
            purgen.generate_many(
                DECODERS["greedy"],
                MODEL.params,
                PROMPTS,
                batch_size=2,
                max_new_tokens=2,
                rng_key=purgen.random.split(KEY, 3),
            )
        )
