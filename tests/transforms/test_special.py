"""Transforms of lengths, forced and suppressed tokens, audio models and guidance.

Each is compared with its transformers class, row by row: a row of ours among pads, in a batch, against
that row alone without a pad. What transformers has wrong is tested by value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

import purgen
from purgen.testing import check_transform, example_view, toy_model
from tests.registry import GROUPED, ROWS, cases
from tests.transforms.parity import NEAR, numbers

INF = torch.inf
VOCAB = 24
EOS = [2, 5]


def apply(transform, logits, view):
    return transform.apply(transform.init(view), logits, view)[0]


@dataclasses.dataclass(frozen=True)
class Case:
    """One class of transformers for a row with a prompt of `prompt_length` tokens."""

    settings: st.SearchStrategy[dict[str, Any]]
    ours: Callable[..., purgen.LogitsTransform]
    theirs: Callable[[dict[str, Any], int], Any]
    begin: str | None = None  # the setting that None stands for the prompt's length in


COUNT = st.integers(0, 14)
BEGIN = st.none() | st.integers(1, 10)


def whisper(options, begin):
    config = transformers.GenerationConfig(
        eos_token_id=options["eos_token_id"],
        no_timestamps_token_id=options["no_timestamps_token_id"],
        max_initial_timestamp_index=options["max_initial_timestamp_index"],
    )
    detect = options["detect_timestamp_from_logprob"]
    return transformers.WhisperTimeStampLogitsProcessor(config, begin, detect)


CASES = {
    "min_length": Case(
        st.fixed_dictionaries({"min_length": COUNT}),
        lambda **options: purgen.min_length(**options, eos_token_id=EOS),
        lambda options, prompt: transformers.MinLengthLogitsProcessor(**options, eos_token_id=EOS),
    ),
    "min_new_tokens": Case(
        st.fixed_dictionaries({"min_new_tokens": COUNT}),
        lambda **options: purgen.min_new_tokens(**options, eos_token_id=EOS),
        lambda options, prompt: transformers.MinNewTokensLengthLogitsProcessor(
            prompt, **options, eos_token_id=EOS
        ),
    ),
    "forced_bos": Case(
        st.fixed_dictionaries({"bos_token_id": st.integers(0, VOCAB - 1)}),
        purgen.forced_bos,
        lambda options, prompt: transformers.ForcedBOSTokenLogitsProcessor(**options),
    ),
    "forced_eos": Case(
        st.fixed_dictionaries({"max_length": st.integers(1, 14)}),
        lambda **options: purgen.forced_eos(EOS, **options),
        lambda options, prompt: transformers.ForcedEOSTokenLogitsProcessor(
            **options, eos_token_id=EOS
        ),
    ),
    "exponential_decay_length_penalty": Case(
        st.fixed_dictionaries({"pair": st.tuples(COUNT, numbers(0.5, 3))}),
        lambda pair: purgen.exponential_decay_length_penalty(pair, eos_token_id=EOS),
        lambda options, prompt: transformers.ExponentialDecayLengthPenalty(
            options["pair"], EOS, prompt
        ),
    ),
    "suppress_tokens": Case(
        st.fixed_dictionaries(
            {"suppress_tokens": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)}
        ),
        purgen.suppress_tokens,
        lambda options, prompt: transformers.SuppressTokensLogitsProcessor(**options),
    ),
    "suppress_tokens_at_begin": Case(
        st.fixed_dictionaries({"begin_index": BEGIN}),
        lambda **options: purgen.suppress_tokens_at_begin(EOS, **options),
        lambda options, prompt: transformers.SuppressTokensAtBeginLogitsProcessor(EOS, **options),
        "begin_index",
    ),
    "log_normalize": Case(
        st.just({}),
        purgen.log_normalize,
        lambda options, prompt: transformers.LogitNormalization(),
    ),
    "remove_invalid": Case(
        st.just({}),
        purgen.remove_invalid,
        lambda options, prompt: transformers.InfNanRemoveLogitsProcessor(),
    ),
    "whisper_timestamps": Case(
        st.fixed_dictionaries(
            {
                "no_timestamps_token_id": st.integers(3, VOCAB - 2),
                "eos_token_id": st.integers(1, 3),
                "begin_index": BEGIN,
                "max_initial_timestamp_index": st.none() | st.integers(0, VOCAB),
                "detect_timestamp_from_logprob": st.booleans(),
            }
        ),
        purgen.whisper_timestamps,
        lambda options, prompt: whisper(options, options["begin_index"]),
        "begin_index",
    ),
    "alternating_codebooks": Case(
        st.fixed_dictionaries(
            {
                "input_start_len": BEGIN,
                "semantic_vocab_size": st.integers(0, 12),
                "codebook_size": st.integers(1, 11),
            }
        ),
        purgen.alternating_codebooks,
        lambda options, prompt: transformers.AlternatingCodebooksLogitsProcessor(**options),
        "input_start_len",
    ),
}


@st.composite
def batches(draw):
    """Rows of their own lengths among pads that are an eos id, and logits of few different values."""
    rows = draw(
        st.lists(
            st.lists(st.integers(0, 7), min_size=1, max_size=12).flatmap(
                lambda row: st.tuples(st.just(row), st.integers(1, len(row)))
            ),
            min_size=1,
            max_size=4,
        )
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(len(rows), VOCAB, generator=generator) * 3
    if draw(st.booleans()):
        logits = logits.round()
    if draw(st.booleans()):
        forbidden = torch.rand(len(rows), VOCAB, generator=generator) < 0.3
        logits = logits.masked_fill(forbidden, -INF)
    more, width = draw(st.integers(0, 3)), max(len(row) for row, _ in rows)
    padded = [[EOS[0]] * (more + width - len(row)) + row for row, _ in rows]
    view = example_view(padded, vocab_size=VOCAB, pad_token_id=EOS[0])
    prompt_length = torch.tensor([more + width - len(row) + prompt for row, prompt in rows])
    view = purgen.replace(
        view,
        start=torch.tensor([more + width - len(row) for row, _ in rows]),
        prompt_length=prompt_length,
        num_new_tokens=view.length - prompt_length,
        max_new_tokens=50,
    )
    return rows, view, logits


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_rows_among_pads_equal_transformers_on_the_row_alone(name, data):
    case = CASES[name]
    options, (rows, view, logits) = data.draw(case.settings), data.draw(batches())
    result = apply(case.ours(**options), logits, view)
    for index, (row, prompt) in enumerate(rows):
        filled = dict(options)
        if case.begin is not None and options[case.begin] is None:
            filled[case.begin] = prompt
        expected = case.theirs(filled, prompt)(
            torch.tensor([row]), logits[index : index + 1].clone()
        )
        if name == "exponential_decay_length_penalty":
            expected = torch.where(expected.isfinite(), expected, logits[index : index + 1])
        torch.testing.assert_close(result[index : index + 1], expected, rtol=NEAR, atol=NEAR)


@settings(max_examples=30, deadline=None)
@given(
    batch=batches(),
    begin=BEGIN,
    token=st.integers(0, VOCAB - 1),
    logprobs=st.booleans(),
)
def test_no_speech_probability_equals_transformers(batch, begin, token, logprobs):
    rows, view, logits = batch
    logits = logits.log_softmax(-1) if logprobs else logits
    transform = purgen.whisper_no_speech(token, begin_index=begin, scores_is_logprobs=logprobs)
    same, state = transform.apply(transform.init(view), logits, view)
    assert torch.equal(same, logits)
    for index, (row, prompt) in enumerate(rows):
        theirs = logits_process.WhisperNoSpeechDetection(token, 1, logprobs)
        theirs.set_begin_index(prompt if begin is None else begin)
        theirs(torch.tensor([row]), logits[index : index + 1])
        assert float(state.no_speech_prob[index]) == pytest.approx(
            float(theirs.no_speech_prob[0]), rel=1e-5
        )


def test_no_speech_probability_stays_once_it_was_read():
    model = toy_model(vocab_size=VOCAB)
    decoder = purgen.greedy(
        model, transform=purgen.named_chain(silence=purgen.whisper_no_speech(7))
    )
    prompt = purgen.Prompt.from_lists([[1], [2]], pad_token_id=0)
    out = purgen.generate(decoder, model.params, prompt, max_new_tokens=5)
    cache = model.init_cache(2, 1)
    first = model.prefill(model.params, prompt.tokens, cache, mask=prompt.mask).logits[:, -1]
    found = out.state.transform["silence"].no_speech_prob
    torch.testing.assert_close(found, first.softmax(-1)[:, 7])


# Lengths and forced tokens, where transformers counts pads, knows one eos, or has no number.


def test_min_length_counts_no_pads():
    view = example_view([[1], [1, 3, 4, 6]], vocab_size=4)
    result = apply(purgen.min_length(4, eos_token_id=2), torch.zeros(2, 4), view)
    assert result.tolist() == [[0, 0, -INF, 0], [0, 0, 0, 0]]


def test_forced_tokens_come_out_of_a_generation():
    model = toy_model(vocab_size=VOCAB, eos_token_id=(2,))
    prompt = purgen.Prompt.from_lists([[1], [3, 4, 6]], pad_token_id=2)
    warp = purgen.chain(
        purgen.min_new_tokens(99, eos_token_id=2),
        purgen.forced_bos(torch.tensor([9, 11]), begin_index=None),
        purgen.forced_eos(2, max_length=torch.tensor([4, 99])),
    )
    out = purgen.generate(
        purgen.greedy(model, transform=warp), model.params, prompt, max_new_tokens=6
    )
    assert out.num_new_tokens.tolist() == [3, 6]  # by max_length, by the budget
    assert out.new_tokens[:, 0].tolist() == [9, 11]
    assert [out.new_tokens[0, 2], out.new_tokens[1, 5]] == [2, 2]
    assert out.stop_reason.tolist() == [purgen.StopReason.EOS] * 2


def test_forced_bos_by_default_follows_the_start_token_only():
    view = example_view([[1], [1, 3]], vocab_size=4)
    logits = torch.ones(2, 4)
    assert apply(purgen.forced_bos(3), logits, view).tolist() == [[-INF, -INF, -INF, 0], [1] * 4]
    always = apply(purgen.forced_bos(3, begin_index=None), logits, view)
    assert always.tolist() == [[-INF, -INF, -INF, 0]] * 2


def test_forced_eos_takes_the_earlier_of_limit_and_budget():
    model = toy_model(vocab_size=VOCAB)
    prompt = purgen.Prompt.from_lists([[1], [3, 4, 6]], pad_token_id=0)
    columns = 3 + 5  # what transformers passes as max_length for this batch and budget
    for limit in (None, columns):
        warp = purgen.forced_eos([2, 5], max_length=limit)
        out = purgen.generate(
            purgen.greedy(model, transform=warp), model.params, prompt, max_new_tokens=5
        )
        assert set(out.new_tokens[:, 4].tolist()) <= {2, 5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_length_penalty_never_lowers_and_never_breaks(dtype):
    penalty = purgen.exponential_decay_length_penalty((0, 1.5), eos_token_id=[0, 1, 2, 3, 4, 5])
    row = [-2.0, 3.0, -INF, INF, 0.0, torch.nan, 1.0]
    before = torch.tensor([row], dtype=dtype)
    state, last = penalty.init(example_view([[1]], vocab_size=7)), before
    for step in range(1, 400):
        view = example_view([[1] * (step + 1)], num_new_tokens=step)
        result, state = penalty.apply(state, before, view)
        assert result.dtype == dtype
        assert not result.isnan().any()
        assert (result >= torch.nan_to_num(last, nan=-INF, posinf=INF, neginf=-INF)).all()
        assert result[0, [2, 3, 4, 5, 6]].tolist() == [-INF, INF, 0, -INF, 1]
        last = result
    assert last[0, :2].tolist() == [torch.finfo(dtype).max] * 2


def test_text_ends_at_every_eos_of_a_set():
    rules = purgen.whisper_timestamps(8, eos_token_id=[2, 7], detect_timestamp_from_logprob=False)
    opened = example_view([[1, 9, 3, 10]], vocab_size=12, num_new_tokens=3)
    result = apply(rules, torch.zeros(1, 12), opened)[0]
    assert (result == 0).nonzero()[:, 0].tolist() == [2, 7, 10, 11]


def test_whisper_transcript_is_well_formed():
    """Timestamps of a whole generation come in pairs, in order, and first."""
    model = toy_model(vocab_size=VOCAB, eos_token_id=(9,), seed=3)
    rules = purgen.whisper_timestamps(11, eos_token_id=9, max_initial_timestamp_index=2)
    prompt = purgen.Prompt.from_lists([[10], [10, 3, 4], [10, 5], [10, 6]] * 4, pad_token_id=9)
    out = purgen.generate(
        purgen.sample(model, transform=rules),
        model.params,
        prompt,
        rng_key=purgen.random.key(1),
        max_new_tokens=30,
    )
    for row, count in zip(out.new_tokens.tolist(), out.num_new_tokens.tolist(), strict=True):
        text = row[:count]
        times = [token for token in text if token > 11]
        assert 12 <= text[0] <= 14
        assert times == sorted(times)
        assert 11 not in text
        runs = "".join("t" if token > 11 else "w" for token in text)
        assert "ttt" not in runs
        assert not runs.startswith("tt")


# Audio channels.


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), channels=st.integers(1, 4), eos=st.integers(1, VOCAB - 1))
def test_channel_filter_equals_transformers(seed, channels, eos):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3 * channels, VOCAB, generator=generator).mul(3).round()
    logits[::2, eos] += 4
    logits[0] = logits[0].masked_fill(torch.rand(VOCAB, generator=generator) < 0.5, -INF)
    view = example_view(batch_size=3 * channels, vocab_size=VOCAB)
    result = apply(purgen.dia_eos_channel_filter(channels, eos_token_id=eos), logits, view)
    theirs = transformers.generation.logits_process.DiaEOSChannelFilterLogitsProcessor(
        channels, eos
    )
    assert torch.equal(result, theirs(view.tokens, logits.clone()))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    delays=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    room=st.integers(0, 12),
    pads=st.integers(0, 3),
)
def test_delayed_eos_equals_transformers(seed, delays, room, pads):
    generator = torch.Generator().manual_seed(seed)
    rows, eos, prompt = 2 * len(delays), 3, 2
    longest = prompt + max(delays) + 1 + room  # so that the end is not missed
    ours = purgen.dia_eos_delay(delays, eos_token_id=eos, max_generation_len=longest)
    theirs = transformers.generation.logits_process.DiaEOSDelayPatternLogitsProcessor(
        delays, eos, longest
    )
    ids = torch.randint(VOCAB, (rows, longest), generator=generator)
    state = None
    for step in range(longest - prompt):
        logits = torch.randn(rows, VOCAB, generator=generator)
        logits[:, eos] += 2.0 * (torch.rand(rows, generator=generator) < 0.2)
        padded = torch.nn.functional.pad(ids[:, : prompt + step], (pads, 0), value=eos).tolist()
        view = example_view(padded, vocab_size=VOCAB, num_new_tokens=step, capacity=99)
        view = purgen.replace(view, start=view.start + pads)
        state = ours.init(view) if state is None else state
        result, state = ours.apply(state, logits, view)
        assert torch.equal(result, theirs(ids[:, : prompt + step], logits.clone()))


def test_delayed_eos_ends_within_the_budget():
    model = toy_model(vocab_size=VOCAB, eos_token_id=(3,), seed=1)
    prompt = purgen.Prompt.from_lists([[1], [2], [4], [5]], pad_token_id=0)
    for limit in (None, 50):
        delay = purgen.dia_eos_delay([0, 2], eos_token_id=3, max_generation_len=limit)
        warp = purgen.chain(purgen.suppress_tokens(3), delay)
        out = purgen.generate(
            purgen.greedy(model, transform=warp), model.params, prompt, max_new_tokens=9
        )
        assert out.num_new_tokens.tolist() == [7, 9, 7, 9]
        assert out.stop_reason.tolist() == [purgen.StopReason.EOS] * 4


def test_dead_first_channel_does_not_choose_eos():
    delay = purgen.dia_eos_delay([0, 0], eos_token_id=0, max_generation_len=50)
    logits = torch.tensor([[-INF, -INF], [1.0, 2.0]])
    assert torch.equal(apply(delay, logits, example_view(batch_size=2, vocab_size=2)), logits)


# Guidance over pairs of rows.


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    scale=numbers(1.0001, 10),
    best=st.none() | st.integers(1, VOCAB),
)
def test_guidance_equals_transformers(seed, scale, best):
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    view = example_view(batch_size=6, vocab_size=VOCAB)
    pairs = (
        (purgen.guidance(scale), transformers.ClassifierFreeGuidanceLogitsProcessor(scale)),
        (
            purgen.dia_guidance(scale, guidance_top_k=best),
            logits_process.DiaClassifierFreeGuidanceLogitsProcessor(scale, best),
        ),
    )
    for ours, theirs in pairs:
        expected = theirs(view.tokens[:3], logits)
        torch.testing.assert_close(
            apply(ours, logits, view), torch.cat([expected] * 2), rtol=NEAR, atol=NEAR
        )


def test_plain_guidance_is_bitwise_plain():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    view = example_view(batch_size=4, vocab_size=VOCAB)
    for transform in (
        purgen.guidance(1.0),
        purgen.guidance(torch.tensor([1.0, 1.0, 9.0, 9.0])),
        purgen.dia_guidance(0.0),
        purgen.dia_guidance(3.0, guidance_top_k=VOCAB),
    ):
        assert torch.equal(apply(transform, logits, view), logits[:2].repeat(2, 1))


@pytest.mark.parametrize("transform", [purgen.guidance(3.0), purgen.dia_guidance(3.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_infinities_of_a_pair_leave_the_conditional_logit(transform, dtype):
    conditional = [-INF, -INF, 1.0, INF, torch.nan, 2.0, 6e4]
    unconditional = [-INF, 1.0, -INF, INF, 1.0, torch.nan, -6e4]
    logits = torch.tensor([conditional, unconditional], dtype=dtype)
    result = apply(transform, logits, example_view(batch_size=2, vocab_size=7))
    assert result[0, :6].tolist() == [-INF, -INF, 1.0, INF, -INF, 2.0]
    assert 6e4 <= float(result[0, 6]) < INF


def test_a_pair_emits_the_same_tokens():
    model = toy_model(vocab_size=VOCAB)
    prompt = purgen.Prompt.from_lists([[1, 3], [4], [7], [8]], pad_token_id=0)
    keys = purgen.random.split(purgen.random.key(3), 2).repeat(2, 1)
    for decoder in (
        purgen.greedy(model, transform=purgen.guidance(2.0)),
        purgen.sample(model, transform=purgen.guidance(2.0)),
    ):
        out = purgen.generate(decoder, model.params, prompt, rng_key=keys, max_new_tokens=12)
        assert torch.equal(out.new_tokens[:2], out.new_tokens[2:])
    alone = purgen.generate(
        purgen.sample(model),
        model.params,
        purgen.select_rows(prompt, torch.tensor([0, 1])),
        rng_key=keys[:2],
        max_new_tokens=12,
    )
    plain = purgen.sample(model, transform=purgen.guidance(1.0))
    out = purgen.generate(plain, model.params, prompt, rng_key=keys, max_new_tokens=12)
    assert torch.equal(out.new_tokens[:2], alone.new_tokens)


@pytest.mark.parametrize("make", cases(GROUPED))
def test_grouped_transform_keeps_the_other_laws(make):
    check_transform(make(), batch_size=ROWS, except_laws=["rows"])
    for dtype in (torch.float16, torch.bfloat16):
        options = {"dtype": dtype, "steps": 3, "backend": None}
        check_transform(make(), batch_size=ROWS, except_laws=["rows"], **options)


@pytest.mark.parametrize("make", cases(GROUPED))
def test_grouped_transform_really_breaks_the_law(make):
    with pytest.raises(AssertionError, match="^rows: row 0 alone"):
        check_transform(make(), batch_size=ROWS, backend=None)


def test_only_the_law_of_rows_has_exceptions():
    for laws in (["pure"], "rows"):
        with pytest.raises(ValueError, match='may hold "rows" and nothing else'):
            check_transform(purgen.guidance(2.0), except_laws=laws)
    broken = purgen.stateless(lambda logits, view: logits.mul_(0.5))
    with pytest.raises(AssertionError, match="^pure"):
        check_transform(broken, except_laws=["rows"])


# Totality and bad settings.


@pytest.mark.parametrize(
    "transform",
    [
        purgen.min_length(9, eos_token_id=1),
        purgen.min_new_tokens(9, eos_token_id=1),
        purgen.exponential_decay_length_penalty((0, 2.0), eos_token_id=1),
        purgen.suppress_tokens([1]),
        purgen.suppress_tokens_at_begin([1]),
        purgen.log_normalize(),
        purgen.bark_eos(1, min_eos_p=0.9),
        purgen.green_list_watermark(),
        purgen.synthid_watermark(3, keys=[1, 2, 3]),
        purgen.whisper_no_speech(1),
        purgen.guidance(3.0),
    ],
)
def test_rows_without_numbers_have_a_result(transform):
    rows = torch.tensor([[-INF] * 3, [INF, 0.0, INF], [torch.nan] * 3, [torch.nan, 0.0, 1.0]])
    view = example_view(batch_size=8, vocab_size=3)
    result = apply(transform, torch.cat([rows, rows]), view)[:4]
    assert not result.isnan().any()
    assert (result[0] == -INF).all()
    share = purgen.log_softmax(result)[1].exp().tolist()
    assert share[1] == 0
    assert min(share[0], share[2]) > 0
    assert (result[2] == -INF).all()
    assert result[3, 0] == -INF
    assert result[3, 2] > -INF


def test_certain_eos_ends_bark():
    row = torch.tensor([[0.0, INF, 3.0]])
    view = example_view(batch_size=1, vocab_size=3)
    assert apply(purgen.bark_eos(1, min_eos_p=0.5), row, view).tolist() == [[-INF, INF, -INF]]


BAD = [
    (lambda: purgen.min_length(-1, eos_token_id=1), "min_length: min_length must be .* not -1"),
    (lambda: purgen.min_length(1, eos_token_id=[]), "min_length: eos_token_id is empty"),
    (lambda: purgen.min_length(1.5, eos_token_id=1), "min_length must be an int"),
    (lambda: purgen.min_new_tokens(-1, eos_token_id=1), "min_new_tokens must be .* not -1"),
    (lambda: purgen.min_new_tokens(1, eos_token_id=-2), "eos_token_id holds -2"),
    (lambda: purgen.forced_bos(-1), "bos_token_id must be at least 0, not -1"),
    (lambda: purgen.forced_bos(1, begin_index=-1), "begin_index must be at least 0, not -1"),
    (lambda: purgen.forced_eos(1, max_length=0), "max_length must be at least 1, not 0"),
    (lambda: purgen.forced_eos("</s>"), "eos_token_id must hold ints"),
    (
        lambda: purgen.exponential_decay_length_penalty(3, eos_token_id=1),
        r"must be a pair \(start, factor\), not 3",
    ),
    (
        lambda: purgen.exponential_decay_length_penalty((1, 2, 3), eos_token_id=1),
        r"must be a pair \(start, factor\)",
    ),
    (
        lambda: purgen.exponential_decay_length_penalty((-1, 2.0), eos_token_id=1),
        "start must be at least 0, not -1",
    ),
    (
        lambda: purgen.exponential_decay_length_penalty((1, 0.0), eos_token_id=1),
        "factor must be above 0.0, not 0.0",
    ),
    (lambda: purgen.suppress_tokens([]), "suppress_tokens is empty"),
    (lambda: purgen.suppress_tokens([1, -1]), "suppress_tokens holds -1"),
    (lambda: purgen.suppress_tokens_at_begin([]), "begin_suppress_tokens is empty"),
    (lambda: purgen.suppress_tokens_at_begin(1, begin_index="first"), "begin_index must be an int"),
    (lambda: purgen.whisper_timestamps(-1, eos_token_id=1), "no_timestamps_token_id holds -1"),
    (lambda: purgen.whisper_timestamps([1, 2], eos_token_id=1), "must be one token id"),
    (lambda: purgen.whisper_timestamps(3, eos_token_id=[]), "eos_token_id is empty"),
    (
        lambda: purgen.whisper_timestamps(3, eos_token_id=1, max_initial_timestamp_index=-1),
        "max_initial_timestamp_index must be at least 0",
    ),
    (lambda: purgen.whisper_no_speech(-1), "no_speech_token holds -1"),
    (lambda: purgen.alternating_codebooks(-1, codebook_size=2), "semantic_vocab_size must be"),
    (lambda: purgen.alternating_codebooks(1, codebook_size=0), "codebook_size must be .* not 0"),
    (lambda: purgen.bark_eos(1, min_eos_p=0.0), "min_eos_p must be above 0.0, not 0.0"),
    (lambda: purgen.bark_eos(1, min_eos_p=1.5), "min_eos_p must be at most 1.0, not 1.5"),
    (lambda: purgen.guidance(-0.5), "guidance_scale must be at least 0.0, not -0.5"),
    (lambda: purgen.guidance(INF), "guidance_scale must be at most .* not inf"),
    (lambda: purgen.dia_guidance(-1.0), "guidance_scale must be at least 0.0"),
    (lambda: purgen.dia_guidance(2.0, guidance_top_k=0), "guidance_top_k must be .* not 0"),
    (lambda: purgen.dia_eos_channel_filter(0, eos_token_id=3), "num_channels must be .* not 0"),
    (lambda: purgen.dia_eos_channel_filter(2.0, eos_token_id=3), "num_channels must be an int"),
    (lambda: purgen.dia_eos_channel_filter(2, eos_token_id=0), "eos_token_id must be at least 1"),
    (lambda: purgen.dia_eos_delay([], eos_token_id=3), "delay_pattern is empty"),
    (lambda: purgen.dia_eos_delay([0, -1], eos_token_id=3), "delay_pattern holds -1"),
    (lambda: purgen.dia_eos_delay([0, 0.5], eos_token_id=3), "delay_pattern must hold ints"),
    (
        lambda: purgen.dia_eos_delay([0], eos_token_id=3, max_generation_len=0),
        "max_generation_len must be at least 1, not 0",
    ),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_settings_are_refused_where_they_are_given(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (purgen.min_length(3, eos_token_id=32), r"eos_token_id holds 32, outside"),
        (purgen.min_length(torch.tensor([1, 2]), eos_token_id=1), "min_length has 2 numbers"),
        (purgen.min_new_tokens(3, eos_token_id=32), r"eos_token_id holds 32, outside"),
        (purgen.forced_bos(32), "bos_token_id holds 32, outside"),
        (purgen.forced_bos(torch.tensor([1, 2])), "bos_token_id has 2 numbers"),
        (purgen.forced_eos(99), "eos_token_id holds 99, outside"),
        (purgen.suppress_tokens([99]), "suppress_tokens holds 99, outside"),
        (purgen.suppress_tokens_at_begin([99]), "begin_suppress_tokens holds 99, outside"),
        (
            purgen.exponential_decay_length_penalty((1, torch.ones(2)), eos_token_id=1),
            "factor has 2 numbers",
        ),
        (purgen.whisper_timestamps(31, eos_token_id=2), "no timestamp is left above it"),
        (purgen.whisper_no_speech(32), "no_speech_token holds 32, outside"),
        (
            purgen.alternating_codebooks(20, codebook_size=12),
            "add up to 32, which leaves no id for the second codebook",
        ),
        (purgen.bark_eos(32, min_eos_p=0.5), "eos_token_id holds 32"),
        (purgen.guidance(2.0), "the batch has 3 rows; it must have an even number"),
        (purgen.dia_guidance(2.0), "the batch has 3 rows; it must have an even number"),
        (purgen.dia_eos_channel_filter(2, eos_token_id=3), "3 rows, which is no multiple of 2"),
        (purgen.dia_eos_channel_filter(3, eos_token_id=32), "eos_token_id holds 32"),
        (purgen.dia_eos_delay([0, 1], eos_token_id=3), "3 rows, which is no multiple of 2"),
        (purgen.dia_eos_delay([0], eos_token_id=32), "eos_token_id holds 32"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_init(transform, message):
    with pytest.raises(ValueError, match=message):
        transform.init(example_view(batch_size=3, vocab_size=32))


def test_an_unknown_budget_cannot_end_a_row():
    view = purgen.replace(example_view(), max_new_tokens=0)
    for transform in (purgen.forced_eos(3), purgen.dia_eos_delay([0], eos_token_id=3)):
        with pytest.raises(ValueError, match="is None, which stands for the budget"):
            transform.init(view)
    assert purgen.forced_eos(3, max_length=9).init(view).tolist() == [9, 9]
