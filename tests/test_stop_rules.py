"""Stop rules beside plain searches, in generations, and where settings are wrong."""

from __future__ import annotations

import time

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import purgen
from purgen import StopReason
from purgen.stop_rules.automaton import over_vocabulary
from purgen.testing import example_view, toy_model

VOCAB = 12


def view_at(rows, prompts, step, pads=0, pad=0, **fields):
    """The view of rows of token ids after `step` new tokens; row b has prompts[b] prompt tokens."""
    seen = [[pad] * pads + row[: prompt + step] for row, prompt in zip(rows, prompts, strict=True)]
    view = example_view(seen, vocab_size=VOCAB, num_new_tokens=step, pad_token_id=pad)
    return purgen.replace(view, start=view.start + pads, **fields)


def steps_of(rule, rows, prompts, pads=0, pad=0):
    """At which new tokens the rule fires, asked on and on: bool [B, N]."""
    count = min(len(row) - prompt for row, prompt in zip(rows, prompts, strict=True))
    state, fired = rule.init(view_at(rows, prompts, 0, pads, pad)), []
    for step in range(1, count + 1):
        stop, state = rule.check(state, view_at(rows, prompts, step, pads, pad))
        fired.append(stop)
    return torch.stack(fired, dim=1)


def scripted(rows, stop, prompt=((1,), (1, 1)), **options):
    """Generates the tokens of a script, until the rule stops them."""
    script, model = torch.tensor(rows), toy_model(vocab_size=VOCAB)

    def choose(logits, state):
        return script.gather(1, state.num_new_tokens.clamp(max=script.shape[1] - 1)[:, None])[:, 0]

    return purgen.generate(
        purgen.token_strategy(model, choose, stop=stop),
        model.params,
        purgen.Prompt.from_lists([list(row) for row in prompt[: len(rows)]], pad_token_id=0),
        max_new_tokens=script.shape[1],
        **options,
    )


# Characters of one, two and four bytes, so that tokens may split them.
TEXTS = st.text("abé😀", min_size=1, max_size=4)
PIECES = st.one_of(
    st.none(),
    st.binary(min_size=0, max_size=2),
    st.text("abé😀", max_size=3).map(str.encode),
    st.sampled_from([byte.to_bytes() for byte in "é😀".encode()]),
)
VOCABULARIES = st.lists(PIECES, min_size=VOCAB, max_size=VOCAB)
ROWS = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=12, max_size=12), min_size=1, max_size=3
)


@settings(max_examples=150, deadline=None)
@given(strings=st.lists(TEXTS, min_size=1, max_size=4), vocabulary=VOCABULARIES, rows=ROWS)
def test_stop_strings_equal_a_search_in_the_text(strings, vocabulary, rows):
    # So that every string can come up.
    vocabulary = [*vocabulary[:-2], "".join(strings).encode(), b"a"]
    rule = purgen.stop_strings(strings, vocabulary=vocabulary)
    prompts = [1 + index for index in range(len(rows))]
    fired = steps_of(rule, rows, prompts)
    assert torch.equal(fired, steps_of(rule, rows, prompts, pads=3, pad=VOCAB - 1))
    for row, prompt, found in zip(rows, prompts, fired.tolist(), strict=True):
        new = row[prompt:]
        for step, fires in enumerate(found, start=1):
            before = b"".join(vocabulary[token] or b"" for token in new[: step - 1])
            text = before + (vocabulary[new[step - 1]] or b"")
            ends = {
                end
                for string in map(str.encode, strings)
                for end in range(len(string), len(text) + 1)
                if text[end - len(string) : end] == string
            }
            assert fires == any(end > len(before) for end in ends), step


def test_stop_string_is_found_wherever_it_begins_and_ends():
    vocabulary = [b"s", b"st", b"sto", b"stop", b"op", b"opera", b"p", b"pped", b"to", b"las"]
    vocabulary += [b"topper", b"at"]
    rule = purgen.stop_strings("stop", vocabulary=vocabulary)

    def fires(*texts):
        row = [0, *(vocabulary.index(text) for text in texts)]
        return steps_of(rule, [row], [1])[0].tolist()

    for texts in ([b"st", b"op"], [b"stop"], [b"st", b"opera"], [b"sto", b"pped"]):
        assert fires(*texts)[-1]
    assert fires(b"las", b"topper") == [False, True]
    assert fires(b"s", b"to", b"pped") == [False, False, True]
    assert fires(b"stop", b"at") == [True, False]
    assert fires(b"st", b"op", b"at") == [False, True, False]
    assert fires(b"st", b"at", b"op") == [False, False, False]


def test_a_character_split_over_tokens_is_found():
    vocabulary = [None, *[byte.to_bytes() for byte in "😀".encode()], b"x", *[b""] * 6]
    rule = purgen.stop_strings("😀", vocabulary=vocabulary)
    out = scripted([[5, 1, 2, 3, 4, 5], [1, 2, 5, 1, 2, 3]], rule)
    assert out.num_new_tokens.tolist() == [5, 6]
    assert out.stop_reason.tolist() == [StopReason.STOP_STRING, StopReason.MAX_NEW_TOKENS]


def test_text_of_the_prompt_does_not_count():
    vocabulary = [b"", b"s", b"top", *[b"-"] * 9]
    rule = purgen.stop_strings("stop", vocabulary=vocabulary)
    out = scripted([[2, 3, 3, 3], [3, 1, 2, 3]], rule, prompt=((1,), (1, 1)))
    assert out.num_new_tokens.tolist() == [4, 3]


def test_what_an_id_outside_the_vocabulary_says_is_nothing():
    table = over_vocabulary([b"ab"], [b"a", b"b"])
    rule = purgen.stop_rules.automaton.rule_of(table)
    assert steps_of(rule, [[9, 0, 7, 1, 0, 1]], [1])[0].tolist() == [0, 0, 1, 0, 1]


def test_a_token_that_was_not_asked_about_cuts_the_text():
    vocabulary = [b"s", b"top", b"x", *[b""] * 9]
    rule = purgen.when(
        lambda view: view.num_new_tokens != 2, purgen.stop_strings("stop", vocabulary=vocabulary)
    )
    assert steps_of(rule, [[2, 0, 2, 1, 0, 1]], [1])[0].tolist() == [0, 0, 0, 0, 1]


def test_automaton_of_a_real_size_is_made_at_once():
    generator = torch.Generator().manual_seed(0)
    letters = torch.randint(97, 123, (49152, 11), generator=generator).tolist()
    vocabulary = [bytes(row[: 1 + index % 11]) for index, row in enumerate(letters)]
    strings = [bytes(row).decode() for row in letters[:50]]
    began = time.perf_counter()
    purgen.stop_strings(strings, vocabulary=vocabulary)
    assert time.perf_counter() - began < 5  # a fifth of a second on an idle core


@settings(max_examples=100, deadline=None)
@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=4),
    rows=st.lists(st.lists(st.integers(0, 2), min_size=9, max_size=9), min_size=1, max_size=3),
)
def test_stop_sequences_equal_a_comparison(sequences, rows):
    rule = purgen.stop_sequences(sequences)
    prompts = [1 + index for index in range(len(rows))]
    fired = steps_of(rule, rows, prompts)
    assert torch.equal(fired, steps_of(rule, rows, prompts, pads=2, pad=sequences[0][0]))
    for row, prompt, found in zip(rows, prompts, fired.tolist(), strict=True):
        new = row[prompt:]
        for step, fires in enumerate(found, start=1):
            ends = [new[max(step - len(ids), 0) : step] == ids for ids in sequences]
            assert fires == any(ends)


def test_one_sequence_needs_no_second_list():
    for sequences in ([5, 6], (5, 6), torch.tensor([5, 6]), [torch.tensor([5, 6])], [(5, 6)]):
        rule = purgen.stop_sequences(sequences)
        assert steps_of(rule, [[5, 6, 5, 5, 6]], [1])[0].tolist() == [0, 0, 0, 1]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 999), st.floats(0, 1, width=32))
def test_confidence_equals_transformers(seed, threshold):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, VOCAB, generator=generator)
    token = torch.randint(VOCAB, (1, 1), generator=generator)
    probability = scores.softmax(-1)[0, token[0, 0]]
    if abs(float(probability) - threshold) < 1e-6:
        return
    expected = transformers.generation.stopping_criteria.ConfidenceCriteria(threshold)
    view = purgen.replace(
        example_view([[1, int(token)]], num_new_tokens=1), logprob=probability[None].log()
    )
    rule = purgen.confidence(threshold)
    assert bool(rule.check(rule.init(view), view)[0]) == expected(token, (scores,))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 999), st.integers(1, 8), st.sets(st.integers(0, VOCAB - 1), min_size=1))
def test_eos_and_max_length_equal_transformers(seed, limit, eos):
    ids = torch.randint(VOCAB, (3, 8), generator=torch.Generator().manual_seed(seed))
    pairs = [
        (purgen.eos(eos), transformers.EosTokenCriteria(sorted(eos))),
        (purgen.max_length(limit), transformers.MaxLengthCriteria(limit)),
    ]
    for rule, criterion in pairs:
        begin = 1 if rule.code == StopReason.EOS else 0
        for length in range(1, 9):
            view = example_view(ids[:, :length].tolist(), num_new_tokens=length, vocab_size=VOCAB)
            state = rule.init(example_view(ids[:, :begin].tolist(), vocab_size=VOCAB))
            stop, _ = rule.check(state, view)
            assert torch.equal(stop, criterion(ids[:, :length], None))


@pytest.mark.parametrize(
    ("rule", "counts", "reasons"),
    [
        (purgen.stop_sequences([[3, 4]]), [2, 4], ["STOP_SEQUENCE", "MAX_NEW_TOKENS"]),
        (purgen.confidence(1.0), [1, 1], ["CONFIDENCE"] * 2),
        (purgen.confidence(torch.tensor([0.0, 1.0])), [4, 1], ["MAX_NEW_TOKENS", "CONFIDENCE"]),
        (purgen.entropy_above(0.0), [1, 1], ["ENTROPY"] * 2),
        (purgen.entropy_above(2.5), [4, 4], ["MAX_NEW_TOKENS"] * 2),  # log 12 is less
        (purgen.mean_logprob_below(0.0), [1, 1], ["LOGPROB"] * 2),
        (purgen.mean_logprob_below(-99.0), [4, 4], ["MAX_NEW_TOKENS"] * 2),
        (
            purgen.all_of(purgen.mean_logprob_below(0.0), purgen.max_new_tokens(3)),
            [3, 3],
            ["LOGPROB"] * 2,
        ),
        (
            purgen.any_of(purgen.stop_sequences([7]), purgen.eos([4, 7]), purgen.max_time(99)),
            [2, 3],
            ["EOS", "STOP_SEQUENCE"],
        ),
        (
            purgen.any_of(
                purgen.when(lambda view: view.num_new_tokens > 2, purgen.confidence(1.0)),
                purgen.stop_strings("b", vocabulary=[*[b""] * 4, b"ab", *[b""] * 7]),
            ),
            [2, 3],
            ["STOP_STRING", "CONFIDENCE"],
        ),
    ],
)
def test_which_rule_stopped_a_row(rule, counts, reasons):
    out = scripted([[3, 4, 5, 6], [5, 6, 7, 3]], rule)
    assert (out.num_new_tokens.tolist(), out.stop_reasons) == (counts, reasons)


def test_compiled_loop_stops_alike():
    rule = purgen.any_of(
        purgen.stop_strings("ba", vocabulary=[b"", b"a", b"b", b"ab", *[b""] * 8]),
        purgen.stop_sequences([5, 6]),
        purgen.mean_logprob_below(-50.0),
    )
    rows = [[3, 1, 5, 6], [5, 5, 6, 3]]
    outs = [scripted(rows, rule, loop=loop) for loop in ("eager", "compiled")]
    for out in outs:
        assert out.stop_reasons == ["STOP_STRING", "STOP_SEQUENCE"]
        assert out.num_new_tokens.tolist() == [2, 3]


def test_mean_is_over_the_new_tokens():
    out = scripted(
        [[3, 4, 5, 6, 7, 8], [5, 6, 7, 3, 2, 1]],
        purgen.mean_logprob_below(-1e9),
        record=["logprob"],
    )
    means = out.record["logprob"].cumsum(1) / torch.arange(1, 7)
    for limit in (-2.0, -2.5, -3.0):
        stopped = scripted(
            [[3, 4, 5, 6, 7, 8], [5, 6, 7, 3, 2, 1]], purgen.mean_logprob_below(limit)
        )
        below = torch.nn.functional.pad(means < limit, (0, 1), value=True)
        expected = (below.long().argmax(1) + 1).clamp(max=6)
        assert torch.equal(stopped.num_new_tokens, expected)


class TestMaxTime:
    @pytest.fixture
    def slow(self):
        model = toy_model(vocab_size=VOCAB)

        def apply(*arguments, **options):
            time.sleep(0.03)
            return model.apply(*arguments, **options)

        return purgen.replace(model, apply=apply)

    def test_stops_a_generation(self, slow):
        prompt = purgen.Prompt.from_lists([[1], [2], [3]], pad_token_id=0)
        rule = purgen.max_time(torch.tensor([0.1, 0.0, torch.inf]))
        decoder = purgen.greedy(slow, stop=rule)
        out = purgen.generate(decoder, slow.params, prompt, max_new_tokens=12)
        # Steps begin at 0, 0.03 or later, … : at most four before 0.1, and the one that sees it.
        assert 1 <= out.num_new_tokens[0] <= 5
        assert out.num_new_tokens.tolist()[1:] == [1, 12]
        assert out.stop_reasons == ["MAX_TIME", "MAX_TIME", "MAX_NEW_TOKENS"]

    def test_time_is_that_of_the_view(self):
        rule = purgen.max_time(torch.tensor([0.5, 1.0]))
        rows, prompts = [[1, 2], [1, 2]], [1, 1]
        state = rule.init(view_at(rows, prompts, 0))
        for elapsed, expected in ((0.49, [0, 0]), (0.5, [1, 0]), (0.99, [1, 0]), (2.0, [1, 1])):
            view = view_at(rows, prompts, 1, elapsed=torch.full((2,), elapsed))
            assert rule.check(state, view)[0].tolist() == expected

    def test_goes_on_where_it_was(self, slow):
        prompt = purgen.Prompt.from_lists([[1]], pad_token_id=0)
        decoder = purgen.greedy(slow, stop=purgen.max_time(0.2))
        steps = purgen.stream(decoder, slow.params, prompt, max_new_tokens=40)
        third = [next(steps)[0] for _ in range(3)][-1]
        time.sleep(0.3)  # does not count
        out = purgen.resume(decoder, slow.params, third)
        assert 3 < out.num_new_tokens[0] <= 9
        assert out.stop_reasons == ["MAX_TIME"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: purgen.stop_strings([], vocabulary=[b"a"]), ValueError, "stop_strings is empty"),
        (lambda: purgen.stop_strings("", vocabulary=[b"a"]), ValueError, "an empty string"),
        (lambda: purgen.stop_strings(["a", ""], vocabulary=[b"a"]), ValueError, "an empty string"),
        (lambda: purgen.stop_strings([3], vocabulary=[b"a"]), TypeError, "must hold str, not 3"),
        (lambda: purgen.stop_strings("a"), TypeError, "either tokenizer= or vocabulary="),
        (lambda: purgen.stop_strings("a", vocabulary=["a"]), TypeError, "not 'a' .token 0."),
        (lambda: purgen.stop_strings("a", vocabulary=[]), ValueError, "no token has the byte 0x61"),
        (lambda: purgen.stop_strings("é", vocabulary=[b"e"]), ValueError, "byte 0xa9 of 'é'"),
        (lambda: purgen.stop_strings("a", tokenizer=3), TypeError, "get_vocab.., which int lacks"),
        (lambda: purgen.stop_sequences([]), ValueError, "sequences is empty"),
        (lambda: purgen.stop_sequences([[1], []]), ValueError, r"sequences\[1\] is empty"),
        (lambda: purgen.stop_sequences([[1, -2]]), ValueError, "holds -2"),
        (lambda: purgen.stop_sequences([["a"]]), TypeError, "must hold ints, not 'a'"),
        (lambda: purgen.stop_sequences("ab"), TypeError, "lists of ids, not 'ab'"),
        (lambda: purgen.stop_sequences([[1], 2]), TypeError, r"sequences\[1\] must be a list"),
        (lambda: purgen.confidence(1.1), ValueError, "threshold must be at most 1.0, not 1.1"),
        (lambda: purgen.confidence(torch.nan), ValueError, "not nan"),
        (
            lambda: purgen.entropy_above(-0.1),
            ValueError,
            "threshold must be at least 0.0, not -0.1",
        ),
        (lambda: purgen.mean_logprob_below(0.1), ValueError, "must be at most 0.0, not 0.1"),
        (lambda: purgen.max_time(-1), ValueError, "max_time must be at least 0.0, not -1.0"),
        (lambda: purgen.max_time("1s"), TypeError, "max_time must be a float.*'1s'"),
    ],
)
def test_bad_settings_are_refused_where_they_are_given(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (purgen.stop_strings("a", vocabulary=[b"a"] * 9), "vocabulary has 9 tokens, the model 12"),
        (purgen.stop_sequences([[1, 12]]), r"sequences holds 12, outside the vocabulary \[0, 12\)"),
        (purgen.confidence(torch.ones(3)), "has 3 numbers, one a row, .* 2 rows"),
        (purgen.entropy_above(torch.ones(3)), "threshold has 3 numbers"),
        (purgen.mean_logprob_below(-torch.ones(3)), "threshold has 3 numbers"),
        (purgen.max_time(torch.ones(3)), "max_time has 3 numbers"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_init(rule, message):
    with pytest.raises(ValueError, match=message):
        rule.init(example_view(vocab_size=VOCAB))


def test_rules_asked_once_about_a_text_that_is_there():
    """A view whose new tokens the rule never saw before gives what asking at each token gives."""
    letters = [bytes([97 + index]) for index in range(16)]
    rule = purgen.stop_strings(["bc"], vocabulary=letters)
    for rows, expected in (([[5, 1, 2]], True), ([[5, 1, 2, 3]], False), ([[1, 5, 2]], False)):
        view = purgen.testing.example_view(rows, vocab_size=16, num_new_tokens=len(rows[0]) - 1)
        assert rule.check(rule.init(view), view)[0].tolist() == [expected]
    view = purgen.testing.example_view([[5, 1, 2, 3]], num_new_tokens=2)
    assert purgen.max_length(4).check(purgen.max_length(4).init(view), view)[0].tolist() == [True]
