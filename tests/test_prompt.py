"""Prompts: any padding, and a clear error for everything that is no prompt."""

from __future__ import annotations

import pytest
import torch

import purgen
from purgen import Prompt
from purgen.prompt import right_align

MODEL = purgen.testing.toy_model(vocab_size=10)


def begin(prompt, max_new_tokens=3, model=MODEL, **options):
    decoder = purgen.greedy(model)
    return decoder.init(model.params, prompt, max_new_tokens=max_new_tokens, **options)


def prompt(tokens, mask=None):
    return Prompt(tokens=torch.tensor(tokens), mask=None if mask is None else torch.tensor(mask))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8])
def test_rows_are_right_aligned_from_any_side(dtype):
    tokens = torch.tensor([[9, 9, 1, 2], [1, 2, 9, 9], [9, 1, 2, 9], [5, 6, 7, 8]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 1, 1]]).to(dtype)
    aligned, start, offset = right_align(
        Prompt(tokens=tokens, mask=mask), vocab_size=10, pad_token_id=0
    )
    assert aligned.tolist() == [[0, 0, 1, 2]] * 3 + [[5, 6, 7, 8]]
    assert start.tolist() == [2, 2, 2, 0]
    assert offset.tolist() == [2, 0, 1, 0]


def test_state_at_the_beginning():
    state = begin(prompt([[0, 4, 5], [6, 7, 0]], [[0, 1, 1], [1, 1, 0]]))
    assert state.tokens.tolist() == [[0, 4, 5, 0, 0, 0], [0, 6, 7, 0, 0, 0]]
    assert state.start.tolist() == [1, 1]
    assert state.length.tolist() == state.prompt_length.tolist() == [3, 3]
    assert state.cache_position.tolist() == [2, 2]
    assert state.rng_key.shape == (2, 2)
    assert not state.stopped.any()


def test_output_shows_the_prompt_as_it_was_given():
    given = prompt([[0, 4, 5], [6, 7, 0]], [[0, 1, 1], [1, 1, 0]])
    out = purgen.generate(purgen.greedy(MODEL), MODEL.params, given, max_new_tokens=2)
    assert out.sequences[:, :3].tolist() == [[0, 4, 5], [6, 7, 0]]
    assert torch.equal(out.sequences[:, 3:], out.new_tokens)


@pytest.mark.parametrize("side", ["left", "right"])
def test_from_lists(side):
    made = Prompt.from_lists([[1], [2, 3]], pad_token_id=9, padding_side=side)
    assert made.tokens.tolist() == [[9, 1] if side == "left" else [1, 9], [2, 3]]
    assert made.mask.sum(dim=1).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda: [[1, 2]], TypeError, "prompt must be a purgen.Prompt, not list"),
        (lambda: prompt([[1.0, 2.0]]), TypeError, "tokens must be an int64 tensor"),
        (lambda: prompt([1, 2]), ValueError, r"must be \[B, P\].*not \[2\]"),
        (lambda: Prompt(tokens=torch.zeros(0, 3, dtype=torch.int64)), ValueError, r"not \[0, 3\]"),
        (lambda: Prompt(tokens=torch.zeros(2, 0, dtype=torch.int64)), ValueError, r"not \[2, 0\]"),
        (lambda: prompt([[1, 2]], [[1.0, 1.0]]), TypeError, "mask must be a tensor of bools"),
        (lambda: prompt([[1, 2]], [[1, 1, 1]]), ValueError, r"mask has shape \[1, 3\]"),
        (lambda: prompt([[1, 2]], [[1, 2]]), ValueError, "mask holds 2"),
        (lambda: prompt([[1, 2], [3, 4]], [[1, 1], [0, 0]]), ValueError, "row 1 has no real token"),
        (lambda: prompt([[1, 2, 3]], [[1, 0, 1]]), ValueError, "row 0 has a hole"),
        (lambda: prompt([[1, 10]], [[1, 1]]), ValueError, "token 10 at row 0, column 1 is outside"),
        (lambda: prompt([[1, -1]], [[1, 1]]), ValueError, "token -1 at row 0"),
        (lambda: prompt([[0, 2]]), ValueError, "row 0 holds the pad id 0 and mask is None"),
    ],
)
def test_bad_prompts_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        begin(given())


def test_ids_outside_the_vocabulary_may_lie_under_pads():
    state = begin(prompt([[-100, 1]], [[0, 1]]))
    assert state.tokens[0, 0] == 0


def test_pad_that_is_a_token_is_fine_with_a_mask():
    state = begin(prompt([[0, 0, 1]], [[0, 1, 1]]))
    assert state.start.tolist() == [1]
    assert begin(prompt([[1, 2]])).start.tolist() == [0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1, not 0"),
        ({"max_new_tokens": -3}, ValueError, "not -3"),
        ({"max_new_tokens": 2.0}, TypeError, "max_new_tokens must be an int, not float"),
        ({"max_new_tokens": True}, TypeError, "not bool"),
        ({"rng_key": 3}, TypeError, "rng_key must be an int64 tensor"),
        ({"rng_key": torch.tensor([1.0, 2.0])}, TypeError, "not torch.float32"),
        ({"rng_key": torch.zeros(3, 2, dtype=torch.int64)}, ValueError, r"B = 1, not \[3, 2\]"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        begin(prompt([[1, 2]]), **options)


def test_pad_and_eos_ids_of_any_model_object():
    given = prompt([[0, 4, 5], [6, 7, 8]], [[0, 1, 1], [1, 1, 1]])
    far = purgen.replace(MODEL, pad_token_id=99)
    out = purgen.generate(purgen.greedy(far), far.params, given, max_new_tokens=2)
    plain = purgen.generate(purgen.greedy(MODEL), MODEL.params, given, max_new_tokens=2)
    assert torch.equal(out.new_tokens, plain.new_tokens)
    with pytest.raises(ValueError, match="pad_token_id must be an int, not None"):
        begin(given, model=purgen.replace(MODEL, pad_token_id=None))
    assert begin(given, model=purgen.replace(MODEL, eos_token_id=None)).stopped.sum() == 0
    with pytest.raises(TypeError, match=r"sequence 0 holds 2.5"):
        Prompt.from_lists([[1, 2.5]], pad_token_id=0)


def test_prompt_longer_than_the_model_reads():
    short = purgen.replace(MODEL, max_length=6)
    begin(prompt([[1, 2, 3]]), model=short)
    with pytest.raises(ValueError, match="prompt of 4 tokens and 3 new ones exceed the 6 tokens"):
        begin(prompt([[1, 2, 3, 4]]), model=short)
    # Pads do not count.
    begin(prompt([[0, 0, 1, 2, 3]], [[0, 0, 1, 1, 1]]), model=short)


@pytest.mark.parametrize(
    ("sequences", "message"), [([], "sequences is empty"), ([[1], []], "sequence 1 is empty")]
)
def test_from_lists_refuses_empty_ones(sequences, message):
    with pytest.raises(ValueError, match=message):
        Prompt.from_lists(sequences, pad_token_id=0)
    with pytest.raises(ValueError, match="padding_side must be 'left' or 'right', not 'up'"):
        Prompt.from_lists([[1]], pad_token_id=0, padding_side="up")
