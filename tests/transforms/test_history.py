"""Transforms that look at the tokens of a row, against plain Python that follows the definition."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import purgen
from purgen.testing import check_transform, example_view, toy_model
from purgen.testing.laws import CompileCounter
from purgen.transforms.token_graph import DEAD, END, ROOT, merge_equal, tables_of

INF = torch.inf
VOCAB = 7
EOS = 0  # and the pad id: a pad that counted as a token would show

few = settings(max_examples=60, deadline=None)
path = st.lists(st.integers(0, 3), min_size=1, max_size=5)
paths = st.lists(path, min_size=1, max_size=6)
history = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=14), min_size=1, max_size=4)
seeds = st.integers(0, 2**20)


def view_of(rows, num_new_tokens=0):
    return example_view(
        rows, vocab_size=VOCAB, num_new_tokens=num_new_tokens, pad_token_id=EOS, capacity=3
    )


def random_logits(rows, seed=0):
    """Logits with ties, and with a token forbidden here and there."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(rows), VOCAB, generator=generator) * 2).round(decimals=1)
    return logits.masked_fill(torch.rand(logits.shape, generator=generator) < 0.1, -INF)


def apply(transform, rows, logits=None, num_new_tokens=0):
    logits = random_logits(rows) if logits is None else logits
    view = view_of(rows, num_new_tokens)
    return transform.apply(transform.init(view), logits, view)[0]


def play(transform, rows, prompt_size, logits=None):
    """The result after each token of rows whose first `prompt_size` tokens are the prompt."""
    steps = min(len(row) for row in rows) - prompt_size
    prompts = [row[: len(row) - steps] for row in rows]
    logits = random_logits(rows) if logits is None else logits
    whole = view_of(rows, steps)
    slot = torch.arange(whole.tokens.shape[1])
    state, results = None, []
    for step in range(steps + 1):
        length = whole.prompt_length + step
        view = purgen.replace(
            whole,
            tokens=torch.where(slot < length[:, None], whole.tokens, EOS),
            length=length,
            num_new_tokens=torch.full_like(length, step),
        )
        state = transform.init(view) if state is None else state
        result, state = transform.apply(state, logits, view)
        results.append(result)
    texts = [
        [p + row[len(p) : len(p) + step] for p, row in zip(prompts, rows, strict=True)]
        for step in range(steps + 1)
    ]
    return list(zip(texts, results, strict=True))


def forbid(logits, *forbidden):
    """`logits` with a set of tokens of each row at -inf."""
    expected = logits.clone()
    for row, tokens in enumerate(forbidden):
        expected[row, list(tokens)] = -INF
    return expected


# n-grams


def completions(text, source, n):
    """Tokens that complete an n-gram of `source` after `text`."""
    before = text[len(text) - n + 1 :] if n > 1 else []
    if len(text) < n - 1:
        return set()
    return {
        source[at + n - 1] for at in range(len(source) - n + 1) if source[at : at + n - 1] == before
    }


@few
@given(rows=history, n=st.integers(1, 9), seed=seeds)
def test_no_repeat_ngram(rows, n, seed):
    logits = random_logits(rows, seed)
    expected = forbid(logits, *[completions(row, row, n) for row in rows])
    assert torch.equal(apply(purgen.no_repeat_ngram(n), rows, logits), expected)
    sizes = [1 + (n + row) % 9 for row in range(len(rows))]
    expected = forbid(logits, *[completions(r, r, n) for r, n in zip(rows, sizes, strict=True)])
    result = apply(purgen.no_repeat_ngram(torch.tensor(sizes)), rows, logits)
    assert torch.equal(result, expected)


@few
@given(rows=history, inputs=paths, n=st.integers(1, 6), seed=seeds)
def test_encoder_no_repeat_ngram(rows, inputs, n, seed):
    inputs = [inputs[row % len(inputs)] for row in range(len(rows))]
    logits = random_logits(rows, seed)
    pairs = list(zip(rows, inputs, strict=True))
    expected = forbid(logits, *[completions(row, source, n) for row, source in pairs])
    ids, mask = padded(inputs, left=seed % 2 == 0)
    for options in (
        {"encoder_input_ids": inputs},
        {"encoder_input_ids": ids, "encoder_attention_mask": mask},
    ):
        transform = purgen.encoder_no_repeat_ngram(n, **options)
        assert torch.equal(apply(transform, rows, logits), expected)


def padded(rows, left):
    """int64 [R, S] filled up with `EOS`, and the mask."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), EOS)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[index, place], mask[index, place] = torch.tensor(row), 1
    return ids, mask


def test_ngrams_at_the_edges():
    logits = torch.zeros(1, VOCAB)
    for row, n, forbidden in (
        ([2, 5], 1, {2, 5}),  # no token twice
        ([2], 2, set()),
        ([2, 2], 2, {2}),
        ([2, 2], 3, set()),
        ([2, 2, 2], 3, {2}),
        ([2, 5], 50, set()),  # longer than the row, and than the buffer
        ([EOS, 3, EOS], 2, {3}),  # an eos in the text is a token; a pad is none
    ):
        result = apply(purgen.no_repeat_ngram(n), [row, [1] * 4], torch.zeros(2, VOCAB))
        assert torch.equal(result[:1], forbid(logits, forbidden)), (row, n)


def test_ngram_sizes_under_vmap_are_not_read():
    rows = [[1, 2, 3, 1, 2], [2, 2, 2, 2, 2]]
    logits, view = random_logits(rows), view_of(rows)

    def run(n):
        transform = purgen.no_repeat_ngram(n)
        return transform.apply(transform.init(view), logits, view)[0]

    sizes = torch.tensor([1, 2, 3, 6])
    expected = torch.stack([run(int(n)) for n in sizes])
    assert torch.equal(torch.func.vmap(run)(sizes), expected)


def test_ngram_program_serves_other_sizes():
    """Sizes of one power of two share a program, since they are in the state."""
    rows = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]]
    logits, view = random_logits(rows), view_of(rows)
    longest = purgen.no_repeat_ngram(5)
    compiled = CompileCounter(longest.apply)
    for n in (2, 3, 4, 5):
        own = purgen.no_repeat_ngram(n)
        result, _ = compiled(own.init(view), logits, view)
        assert torch.equal(result, own.apply(own.init(view), logits, view)[0])
    assert compiled.graphs == 1


# encoder inputs


@few
@given(rows=history, inputs=paths, penalty=st.floats(0.1, 9), seed=seeds)
def test_encoder_repetition_penalty(rows, inputs, penalty, seed):
    inputs = [inputs[row % len(inputs)] for row in range(len(rows))]
    logits = random_logits(rows, seed)
    expected = logits.clone()
    for row, source in enumerate(inputs):
        for token in set(source):
            value = float(logits[row, token])
            expected[row, token] = value * penalty if value > 0 else value / penalty
    ids, mask = padded(inputs, left=seed % 2 == 0)
    for options in (
        {"encoder_input_ids": inputs},
        {"encoder_input_ids": ids, "encoder_attention_mask": mask.bool()},
    ):
        transform = purgen.encoder_repetition_penalty(penalty, **options)
        torch.testing.assert_close(apply(transform, rows, logits), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "theirs"),
    [
        (
            lambda ids: purgen.encoder_no_repeat_ngram(2, encoder_input_ids=ids),
            lambda ids: transformers.EncoderNoRepeatNGramLogitsProcessor(2, ids),
        ),
        (
            lambda ids: purgen.encoder_repetition_penalty(2.0, encoder_input_ids=ids),
            lambda ids: transformers.EncoderRepetitionPenaltyLogitsProcessor(2.0, ids),
        ),
    ],
)
def test_encoder_inputs_stand_for_neighbouring_rows(make, theirs):
    """As in transformers, where the rows are beams."""
    ids = torch.tensor([[1, 2, 3, 1], [3, 3, 2, 5]])
    rows = [[4, 3], [2, 1], [1, 3], [1, 1]]
    logits = random_logits(rows)
    expected = theirs(ids)(torch.tensor(rows), logits.clone())
    torch.testing.assert_close(apply(make(ids), rows, logits), expected)
    with pytest.raises(ValueError, match="encoder_input_ids has 2 rows, and the batch has 3 rows"):
        apply(make(ids), rows[:3])


# sequences


def ends_with(text, before):
    return not before or text[-len(before) :] == before


@few
@given(rows=history, words=paths, seed=seeds)
def test_bad_words(rows, words, seed):
    logits = random_logits(rows, seed)
    hits = [{word[-1] for word in words if ends_with(row, word[:-1])} for row in rows]
    result = apply(purgen.bad_words(words), rows, logits)
    assert torch.equal(result, forbid(logits, *hits))
    for row, text in enumerate(rows):  # alone, and so without pads
        theirs = transformers.NoBadWordsLogitsProcessor(words)
        expected = theirs(torch.tensor([text]), logits[row : row + 1])
        assert torch.equal(result[row : row + 1], expected)


@few
@given(
    rows=history,
    biases=st.dictionaries(
        path.map(tuple), st.floats(-9, 9, width=32) | st.sampled_from([INF, -INF]), min_size=1
    ),
    seed=seeds,
)
def test_sequence_bias(rows, biases, seed):
    logits = random_logits(rows, seed)
    logits[0, seed % VOCAB] = INF
    expected = logits.double()
    for row, text in enumerate(rows):
        for token in range(VOCAB):
            terms = [expected[row, token].item()] + [
                bias
                for word, bias in biases.items()
                if word[-1] == token and ends_with(text, list(word[:-1]))
            ]
            expected[row, token] = -INF if -INF in terms else sum(terms)
    for form in (biases, [[list(word), bias] for word, bias in biases.items()]):
        result = apply(purgen.sequence_bias(form), rows, logits)
        torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-5)


def test_biases_a_row():
    biases = {(1,): torch.tensor([1.0, -INF]), (2, 3): torch.tensor(2.0), (4,): 3}
    result = apply(purgen.sequence_bias(biases), [[2], [2]], torch.zeros(2, VOCAB))
    assert result.tolist() == [[0, 1, 0, 2, 3, 0, 0], [0, -INF, 0, 2, 3, 0, 0]]


def test_a_bad_word_longer_than_the_text_does_not_fire():
    words = [[EOS, EOS, 2], [1, 2]]
    result = apply(purgen.bad_words(words), [[2], [EOS], [3, 3, 3]], torch.zeros(3, VOCAB))
    assert not result.isinf().any()


def test_a_bad_word_that_is_an_eos_is_refused_or_honoured():
    with pytest.raises(
        ValueError, match=r"holds \[2\], which is an eos id.*leave eos_token_id out"
    ):
        purgen.bad_words([[1], [2]], eos_token_id=[3, 2])
    longer = purgen.bad_words([[1, 2]], eos_token_id=2)  # only after another token
    assert apply(longer, [[1]], torch.zeros(1, VOCAB))[0, 2] == -INF
    assert apply(purgen.bad_words([[2]]), [[1]], torch.zeros(1, VOCAB))[0, 2] == -INF


def test_several_of_each_are_one_graph():
    generator = np.random.default_rng(0)
    words = [tuple(generator.integers(0, 8, size=1 + n % 6)) for n in range(40)]
    check_transform(
        purgen.chain(
            purgen.bad_words([[1, 2], [9]]),
            purgen.sequence_bias({(3, 4): -1.0, (7,): 2.0}),
            purgen.bad_words(words),
            purgen.sequence_bias([[[1, 5, 6], 1.0]]),
            purgen.no_repeat_ngram(3),
        ),
        steps=20,
    )


# penalties


@few
@given(rows=history, penalty=st.floats(-3, 3, width=32), new=st.integers(0, 3), seed=seeds)
@pytest.mark.parametrize("scope", ["all", "prompt", "generated"])
def test_presence_and_frequency_penalty(scope, rows, penalty, new, seed):
    logits = random_logits(rows, seed)
    new = min(new, *[len(row) - 1 for row in rows])
    presence, frequency = logits.clone(), logits.clone()
    for row, text in enumerate(rows):
        cut = len(text) - new
        counted = {"all": text, "prompt": text[:cut], "generated": text[cut:]}[scope]
        for token, count in Counter(counted).items():
            if token != 2:
                presence[row, token] -= penalty
                frequency[row, token] -= penalty * count
    options = {"scope": scope, "exempt": 2}
    for make, expected in (
        (purgen.presence_penalty, presence),
        (purgen.frequency_penalty, frequency),
    ):
        result = apply(make(penalty, **options), rows, logits, new)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    default = apply(purgen.presence_penalty(penalty), rows, logits, new)
    generated = apply(purgen.presence_penalty(penalty, scope="generated"), rows, logits, new)
    assert torch.equal(default, generated)


# DRY


def dry_penalties(text, multiplier, base, allowed, breakers=(), last_n=None, cut=0):
    """Token -> penalty, by looking at every earlier place and walking back from it."""
    text = text[cut:]
    text = text[-last_n:] if last_n else text
    longest = {}
    for at in range(len(text) - 1):
        size = 0
        while at >= size and text[at - size] == text[-1 - size] and text[at - size] not in breakers:
            size += 1
        token = text[at + 1]
        if token not in breakers:
            longest[token] = max(size, longest.get(token, 0))
    return {
        token: multiplier * base ** (size - allowed)
        for token, size in longest.items()
        if size >= max(allowed, 1)
    }


@few
@given(
    rows=st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=24), min_size=1, max_size=3),
    prompt_size=st.integers(1, 4),
    base=st.floats(1, 3),
    allowed=st.integers(0, 4),
    breakers=st.sets(st.integers(0, 3), max_size=2),
    last_n=st.none() | st.integers(1, 20),
    scope=st.sampled_from(["all", "generated"]),
)
def test_dry(rows, prompt_size, base, allowed, breakers, last_n, scope):
    transform = purgen.dry(
        0.8,
        base=base,
        allowed_length=allowed,
        sequence_breakers=breakers,
        penalty_last_n=last_n,
        scope=scope,
    )
    logits = random_logits(rows)
    steps = min(len(row) for row in rows) - prompt_size
    for step, (texts, result) in enumerate(play(transform, rows, prompt_size, logits)):
        expected = logits.clone()
        for row, text in enumerate(texts):
            cut = len(rows[row]) - steps if scope == "generated" else 0
            assert step <= len(text) - cut or scope == "all"
            for token, penalty in dry_penalties(
                text, 0.8, base, allowed, breakers, last_n, cut
            ).items():
                expected[row, token] -= penalty
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_dry_looks_for_repetitions_in_the_prompt():
    rows = [[1, 2, 3, 4, 2, 3, 5, 2, 3]]
    view = view_of(rows, num_new_tokens=5)  # prompt 1 2 3 4, then 2 3 5 2 3

    def penalised(scope):
        transform = purgen.dry(1.0, scope=scope)
        result, _ = transform.apply(transform.init(view), torch.zeros(1, VOCAB), view)
        return {token for token in range(VOCAB) if result[0, token] < 0}

    assert penalised("all") == {4, 5}
    assert penalised("prompt") == {4}
    assert penalised("generated") == {5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dry_has_no_limit_and_never_forbids(dtype):
    rows = [[1, 2] * 200]
    logits = torch.tensor([[0.0, 1.0, -INF, INF, 2.0, 0.0, 0.0]], dtype=dtype)
    result = apply(purgen.dry(1.0, base=1.0078125), rows, logits)
    torch.testing.assert_close(result[0, 1], torch.tensor(1 - 1.0078125**396, dtype=dtype))
    assert apply(purgen.dry(1.0, base=100.0), rows, logits)[0, 1] == torch.finfo(dtype).min
    assert torch.equal(apply(purgen.dry(0.0, base=100.0), rows, logits), logits)
    assert torch.equal(result[0, 2:], logits[0, 2:])


def test_dry_begins_anew_after_it_was_held_off():
    rows = [[1, 2, 3, 4, 1, 2, 3]]
    held = purgen.when(lambda view: view.num_new_tokens == 3, purgen.dry(1.0, base=2.0))
    whole = play(purgen.dry(1.0, base=2.0), rows, 4, torch.zeros(1, VOCAB))
    assert whole[-1][1][0, 4] == -2.0
    assert play(held, rows, 4, torch.zeros(1, VOCAB))[-1][1][0, 4] == 0.0  # 3 alone: too short


# allowed tokens


def allowed_after(sequences, new):
    """Tokens that may follow `new`; `EOS` is the one eos id."""
    if EOS in new:
        end = new.index(EOS)
        return {EOS} if new[:end] in sequences and set(new[end:]) == {EOS} else set()
    return {
        sequence[len(new)] if len(sequence) > len(new) else EOS
        for sequence in sequences
        if sequence[: len(new)] == new
    }


words = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=6)


@few
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=9), min_size=1, max_size=3),
    sequences=words,
    others=words,
    with_eos=st.booleans(),
)
def test_allowed_sequences(rows, sequences, others, with_eos):
    a_row = [others if row % 2 else sequences for row in range(len(rows))]
    shared = [sequences] * len(rows)
    close = [EOS] if with_eos else []
    logits = random_logits(rows)
    for form, lists in (
        ([word + close for word in sequences], shared),
        ([[word + close for word in members] for members in a_row], a_row),
    ):
        transform = purgen.prefix_allowed_tokens(form, eos_token_id=EOS)
        for step, (texts, result) in enumerate(play(transform, rows, 3, logits)):
            expected = torch.full_like(logits, -INF)
            for row, text in enumerate(texts):
                allowed = list(allowed_after(lists[row], text[len(text) - step :] if step else []))
                expected[row, allowed] = logits[row, allowed]
            assert torch.equal(result, expected)


def rule(row, ids):
    """The last token or the next one, whichever it is; after five tokens eos as well."""
    last = int(ids[-1])
    allowed = [last, 1 + last % 3] if row % 2 == 0 else [1 + last % 3]
    return [*allowed, EOS] if len(ids) > 5 else allowed


@pytest.mark.parametrize("eager", [False, True])
def test_allowed_by_function_equals_transformers(eager):
    transform = purgen.prefix_allowed_tokens(function=rule, eos_token_id=EOS, eager=eager)
    rows = [[2, 3, 3, 1, 1, 2, 2], [1, 3, 1, 2, 3, 1, 2]]  # after its prompt each does as allowed
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    theirs = transformers.generation.PrefixConstrainedLogitsProcessor(rule, 1)
    for texts, result in play(transform, rows, 3, logits):
        assert torch.equal(result, theirs(torch.tensor(texts), logits))


def test_function_is_asked_without_pads_and_not_after_eos():
    asked = []

    def function(row, ids):
        asked.append((row, ids.tolist()))
        return [1, EOS]

    transform = purgen.prefix_allowed_tokens(function=function, eos_token_id=EOS)
    rows = [[5, EOS, 6], [4]]
    view = purgen.replace(view_of(rows), max_new_tokens=3)
    state = transform.init(view)
    assert asked == [(row, text + [1] * n) for row, text in enumerate(rows) for n in range(3)]
    again = purgen.replace(
        view, length=view.length + 1, num_new_tokens=view.num_new_tokens + 1
    )  # both rows chose an eos
    _, state = transform.apply(state, torch.zeros(2, VOCAB), view)
    result, _ = transform.apply(state, torch.zeros(2, VOCAB), again)
    assert (result[:, EOS] == 0).all()
    assert (result[:, 1:] == -INF).all()


def test_a_row_that_nothing_may_follow_stops_with_no_token():
    model = toy_model(vocab_size=VOCAB, eos_token_id=EOS)
    prompt = purgen.Prompt.from_lists([[5], [6, 5]], pad_token_id=EOS)
    only = purgen.prefix_allowed_tokens([[[1, 2]], [[3, 1], [3, 2]]], eos_token_id=EOS)
    clash = purgen.chain(purgen.bad_words([[1, 2]]), only)
    for transform, reasons in ((only, ["EOS", "EOS"]), (clash, ["NO_TOKEN", "EOS"])):
        decoder = purgen.greedy(model, transform=transform)
        out = purgen.generate(decoder, model.params, prompt, max_new_tokens=5)
        assert out.stop_reasons == reasons
    empty = purgen.prefix_allowed_tokens(function=lambda row, ids: [], eos_token_id=EOS)
    assert (apply(empty, [[1]]) == -INF).all()


def test_allowed_sequences_may_begin_within_a_text():
    answer = purgen.prefix_allowed_tokens([[1, 2, 3]], eos_token_id=EOS)
    after_4 = purgen.when(lambda view: (view.tokens == 4).any(dim=1), answer)
    results = play(after_4, [[5, 6, 6, 4, 1, 2]], 1, torch.zeros(1, VOCAB))
    allowed = [{t for t in range(VOCAB) if result[0, t] == 0} for _, result in results]
    assert allowed == [set(range(VOCAB))] * 3 + [{1}, {2}, {3}]


def test_thousands_of_sequences_take_little_memory():
    vocab, generator = 50_000, torch.Generator().manual_seed(0)
    sequences = torch.randint(2, vocab, (3000, 6), generator=generator).tolist()
    transform = purgen.prefix_allowed_tokens(sequences, eos_token_id=1)
    view = example_view([[5]] * 2, vocab_size=vocab)
    logits = torch.zeros(2, vocab)
    result, _ = transform.apply(transform.init(view), logits, view)
    assert set((result[0] == 0).nonzero()[:, 0].tolist()) == {ids[0] for ids in sequences}
    held = [cell.cell_contents for cell in transform.apply.__closure__]
    held += [cell.cell_contents for item in held for cell in getattr(item, "__closure__", ()) or ()]
    (tables,) = [item for item in held if isinstance(item, dict)]
    assert sum(table.numel() for table in tables.values()) < 10 * 3000 * 6


def test_prefix_of_a_generation_under_way_is_read_at_init():
    transform = purgen.prefix_allowed_tokens([[1, 2, 3], [4]], eos_token_id=0)
    for rows, new, allowed in (
        ([[5, 1]], 1, {2}),
        ([[5, 1, 2]], 2, {3}),
        ([[5, 4]], 1, {0}),
        ([[5, 7]], 1, set()),
        ([[5, 1, 2, 3, 0]], 4, {0}),
    ):
        view = example_view(rows, vocab_size=8, num_new_tokens=new)
        result, _ = transform.apply(transform.init(view), torch.zeros(1, 8), view)
        assert set((result[0] == 0).nonzero()[:, 0].tolist()) == allowed


def test_equal_states_are_merged():
    edges = [{}, {EOS: END}, {1: 3, 2: 4}, {5: 5}, {5: 6}, {6: END}, {6: END}]
    merged = merge_equal(edges)
    assert merged == [{}, {EOS: END}, {1: 3, 2: 3}, {5: 4}, {6: END}]
    assert merge_equal([{}, {EOS: END}, {}]) == [{}, {EOS: END}, {}]
    assert tables_of([merged])["first"].tolist() == [[0, 0, 1, 3, 4, 5]]
    assert (DEAD, END, ROOT) == (0, 1, 2)


@pytest.mark.parametrize("eager", [False, True])
def test_what_a_function_raises_is_raised_with_advice(eager):
    def function(row, ids):
        raise KeyError(f"no rule for {ids.tolist()}")

    with pytest.raises(KeyError, match="no rule for") as caught:
        apply(purgen.prefix_allowed_tokens(function=function, eos_token_id=EOS, eager=eager), [[4]])
    assert "row 0 and input_ids [4]" in caught.value.__notes__[0]
    assert "eager=True" in caught.value.__notes__[0]
    assert caught.traceback[-1].name == "function"


def test_a_function_that_allows_too_much_is_refused_with_advice():
    calls = []

    def everything(row, ids):
        calls.append(ids)
        return range(VOCAB)

    transform = purgen.prefix_allowed_tokens(function=everything, eos_token_id=EOS, max_states=1000)
    view = purgen.replace(view_of([[4]]), max_new_tokens=50)
    with pytest.raises(ValueError, match=r"more than max_states = 1000 .*eager=True") as caught:
        transform.init(view)
    assert len(calls) < 200
    assert "max_new_tokens = 50" in str(caught.value)


def test_a_function_called_in_each_step_runs_eagerly_only():
    model = toy_model(vocab_size=VOCAB, eos_token_id=EOS)
    prompt = purgen.Prompt.from_lists([[5], [6, 5]], pad_token_id=EOS)

    def function(row, ids):  # too much for every prefix: any token but the last
        return [token for token in range(1, VOCAB) if token != int(ids[-1])]

    transform = purgen.prefix_allowed_tokens(function=function, eos_token_id=EOS, eager=True)
    decoder = purgen.greedy(model, transform=transform)
    out = purgen.generate(decoder, model.params, prompt, max_new_tokens=8)
    for text in out.new_tokens.tolist():
        assert all(a != b for a, b in pairwise(text))
    with pytest.raises(Exception, match='can be neither compiled nor vmapped; use loop="eager"'):
        purgen.generate(decoder, model.params, prompt, max_new_tokens=8, loop="compiled")
    view = view_of([[5], [6]])
    lanes = torch.zeros(3, 2, VOCAB)
    with pytest.raises(RuntimeError, match="can be neither compiled nor vmapped"):
        torch.func.vmap(lambda x: transform.apply(transform.init(view), x, view)[0])(lanes)
    turned = purgen.select_rows(transform.init(view), torch.tensor([1, 0]))
    assert turned.tolist() == [1, 0]  # a row keeps its number when rows are reordered


# all of them

EVERY = {
    "no_repeat_ngram": lambda: purgen.no_repeat_ngram(1),
    "encoder_no_repeat_ngram": lambda: purgen.encoder_no_repeat_ngram(
        2, encoder_input_ids=[[3, 3, 1, 3, 2, 3]]
    ),
    "encoder_repetition_penalty": lambda: purgen.encoder_repetition_penalty(
        2.0, encoder_input_ids=[[3, 5]]
    ),
    "sequence_bias": lambda: purgen.sequence_bias({(3, 1): 9.0, (3, 3, 2): -9.0, (4,): -1.0}),
    "bad_words": lambda: purgen.bad_words([[3, n] for n in range(0, 12, 2)]),
    "prefix_allowed_tokens": lambda: purgen.prefix_allowed_tokens(
        [[1, 2, 4, 5], [2, 1], [4, 4, 4, 4, 4, 4], [9, 8, 7, 6]], eos_token_id=3
    ),
    "dry": lambda: purgen.dry(5.0, allowed_length=1),
    "presence_penalty": lambda: purgen.presence_penalty(3.0, scope="all"),
    "frequency_penalty": lambda: purgen.frequency_penalty(2.0, scope="all"),
}


@pytest.mark.parametrize("name", EVERY)
def test_left_pads_that_are_eos_change_no_row(name):
    model = purgen.replace(toy_model(vocab_size=12, eos_token_id=(3,)), pad_token_id=3)
    lists = [[1, 5, 1], [2] * 9, [7], [4, 6, 4, 6, 4]]
    decoder = purgen.greedy(model, transform=EVERY[name]())

    def run(prompts):
        prompt = purgen.Prompt.from_lists(prompts, pad_token_id=3)
        out = purgen.generate(decoder, model.params, prompt, max_new_tokens=8)
        counts = out.num_new_tokens.tolist()
        return [row[:n] for row, n in zip(out.new_tokens.tolist(), counts, strict=True)]

    together = run(lists)
    assert together == [run([one])[0] for one in lists]


@pytest.mark.parametrize("name", EVERY)
def test_rows_without_numbers_have_a_result(name):
    logits = torch.zeros(4, VOCAB)
    logits[0], logits[1, :5], logits[2], logits[3, 1:3] = -INF, INF, torch.nan, torch.nan
    transform = EVERY[name]()
    view = example_view([[3, 3, 1]] * 4, vocab_size=12, pad_token_id=3)
    result, _ = transform.apply(transform.init(view), logits, view)
    assert not result.isnan().any()
    assert (result[0] == -INF).all()
    assert (result[2] == -INF).all()
    assert (result[3, 1:3] == -INF).all()
    for dtype in (torch.float16, torch.bfloat16):
        half, _ = transform.apply(transform.init(view), logits.to(dtype), view)
        assert half.dtype == dtype
        assert torch.equal(half == -INF, result == -INF)


ENCODER = {"encoder_input_ids": [1]}
ALLOW = purgen.prefix_allowed_tokens


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: purgen.no_repeat_ngram(0), ValueError, "ngram_size must be at least 1, not 0"),
        (lambda: purgen.no_repeat_ngram(2.0), TypeError, "ngram_size must be an int"),
        (lambda: purgen.no_repeat_ngram(torch.tensor([2, 0])), ValueError, "not 0"),
        (
            lambda: purgen.encoder_no_repeat_ngram(0, **ENCODER),
            ValueError,
            "encoder_ngram_size must be at least 1",
        ),
        (
            lambda: purgen.encoder_no_repeat_ngram(2, encoder_input_ids=[]),
            ValueError,
            "encoder_input_ids must be .* and not empty",
        ),
        (
            lambda: purgen.encoder_no_repeat_ngram(2, encoder_input_ids=[[1], [-2]]),
            ValueError,
            "holds -2",
        ),
        (
            lambda: purgen.encoder_no_repeat_ngram(2, encoder_input_ids=[[1.5]]),
            TypeError,
            "must hold ints, not 1.5",
        ),
        (
            lambda: purgen.encoder_no_repeat_ngram(2, encoder_input_ids=torch.ones(1, 2)),
            TypeError,
            "must hold integers, not torch.float32",
        ),
        (
            lambda: purgen.encoder_no_repeat_ngram(
                2, encoder_input_ids=torch.tensor([1, 2]), encoder_attention_mask=torch.ones(1, 2)
            ),
            ValueError,
            r"encoder_attention_mask is \[1, 2\] and encoder_input_ids \[2\]",
        ),
        (
            lambda: purgen.encoder_no_repeat_ngram(
                2, encoder_input_ids=[1], encoder_attention_mask=torch.ones(1)
            ),
            ValueError,
            "encoder_attention_mask goes with a tensor",
        ),
        (
            lambda: purgen.encoder_repetition_penalty(0.0, **ENCODER),
            ValueError,
            "penalty must be above 0.0",
        ),
        (lambda: purgen.sequence_bias([]), ValueError, "sequence_bias is empty"),
        (lambda: purgen.sequence_bias([[[], 1.0]]), ValueError, "holds an empty sequence"),
        (lambda: purgen.sequence_bias({(-1,): 1.0}), ValueError, "holds -1"),
        (lambda: purgen.sequence_bias({(1.5,): 1.0}), TypeError, "must hold ints, not 1.5"),
        (
            lambda: purgen.sequence_bias({(1,): "x"}),
            TypeError,
            r"the bias of \[1\] must be a float",
        ),
        (lambda: purgen.sequence_bias({(1,): torch.nan}), ValueError, "not nan"),
        (lambda: purgen.sequence_bias([[[1], 1.0], [[1], 2.0]]), ValueError, r"holds \[1\] twice"),
        (lambda: purgen.sequence_bias([[1, 2, 3]]), TypeError, r"must be \[\[ids, bias\]"),
        (lambda: purgen.sequence_bias(3), TypeError, r"must be \[\[ids, bias\]"),
        (lambda: purgen.bad_words([]), ValueError, "bad_words_ids is empty"),
        (lambda: purgen.bad_words([[1], []]), ValueError, "holds an empty sequence"),
        (lambda: purgen.bad_words([1, 2]), TypeError, "must hold sequences of token ids, not 1"),
        (lambda: purgen.bad_words([["a"]]), TypeError, "must hold ints, not 'a'"),
        (lambda: purgen.bad_words([[True]]), TypeError, "must hold ints, not True"),
        (lambda: purgen.bad_words([[1, -3]]), ValueError, "holds -3"),
        (lambda: purgen.bad_words(5), TypeError, "bad_words_ids must be"),
        (lambda: purgen.dry(-1.0), ValueError, "multiplier must be at least 0.0, not -1.0"),
        (lambda: purgen.dry(1.0, base=0.5), ValueError, "base must be at least 1.0, not 0.5"),
        (lambda: purgen.dry(1.0, allowed_length=-1), ValueError, "allowed_length .* not -1"),
        (lambda: purgen.dry(1.0, penalty_last_n=0), ValueError, "penalty_last_n .* not 0"),
        (lambda: purgen.dry(1.0, scope="both"), ValueError, "scope must be one of"),
        (lambda: purgen.dry(1.0, sequence_breakers=[-1]), ValueError, "sequence_breakers holds -1"),
        (lambda: purgen.presence_penalty(INF), ValueError, "penalty must be at most"),
        (lambda: purgen.frequency_penalty(torch.nan), ValueError, "not nan"),
        (lambda: purgen.presence_penalty(1.0, scope="x"), ValueError, "not 'x'"),
        (lambda: purgen.frequency_penalty(1.0, exempt=[-1]), ValueError, "exempt holds -1"),
        (lambda: ALLOW(eos_token_id=0), ValueError, "either sequences or function"),
        (lambda: ALLOW([[1]], eos_token_id=0, function=rule), ValueError, "either sequences or"),
        (lambda: ALLOW([], eos_token_id=0), ValueError, "holds no sequence"),
        (lambda: ALLOW([[]], eos_token_id=0), ValueError, "holds an empty sequence"),
        (lambda: ALLOW([[[1]], []], eos_token_id=0), ValueError, "holds no sequence"),
        (lambda: ALLOW([[1, 0, 2]], eos_token_id=0), ValueError, "with an eos id before its end"),
        (lambda: ALLOW([[1]], eos_token_id=[]), ValueError, "eos_token_id is empty"),
        (lambda: ALLOW([["a"]], eos_token_id=0), TypeError, "'a'"),
        (lambda: ALLOW([[1]], eos_token_id=0, eager=True), ValueError, "eager=True is for a func"),
        (lambda: ALLOW(function=3, eos_token_id=0), TypeError, "function must be a function"),
        (
            lambda: ALLOW(function=rule, eos_token_id=0, max_states=0),
            ValueError,
            "max_states must be an int of at least 1, not 0",
        ),
    ],
)
def test_bad_settings_are_refused_where_they_are_given(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (purgen.no_repeat_ngram(torch.tensor([1, 2, 3])), "ngram_size has 3 numbers, .* 2 rows"),
        (purgen.encoder_no_repeat_ngram(2, encoder_input_ids=[[1]] * 3), "has 3 rows"),
        (purgen.sequence_bias({(1, 32): 1.0}), r"holds 32, outside the vocabulary \[0, 32\)"),
        (purgen.sequence_bias({(1,): torch.ones(3)}), r"the bias of \[1\] has 3 numbers"),
        (purgen.bad_words([[40]]), "bad_words_ids holds 40, outside"),
        (purgen.dry(torch.ones(3)), "multiplier has 3 numbers"),
        (purgen.dry(1.0, sequence_breakers=32), "sequence_breakers holds 32"),
        (purgen.presence_penalty(1.0, exempt=32), "exempt holds 32"),
        (ALLOW([[1, 32]], eos_token_id=0), "sequences holds 32"),
        (ALLOW([[1]], eos_token_id=32), "eos_token_id holds 32"),
        (ALLOW([[[1]]] * 3, eos_token_id=0), "sequences has 3 lists, one a row, .* 2 rows"),
        (ALLOW(function=lambda row, ids: [32], eos_token_id=0), "function returns 32, outside"),
        (ALLOW(function=lambda row, ids: [-1], eos_token_id=0), "what function returns holds -1"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_init(transform, message):
    with pytest.raises(ValueError, match=message):
        transform.init(example_view(batch_size=2, vocab_size=32))
