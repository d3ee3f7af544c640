"""Watermarks: what marks a text, bit for bit, and that a detector finds it there and nowhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import purgen
from purgen import random
from purgen.testing import example_view, toy_model
from purgen.watermark import detect_green_list, detect_synthid
from purgen.watermark.synthid import g_values, hash_of, sampling_table

VOCAB = 200
KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966, 226, 324]
SYNTHID = {"ngram_len": 4, "keys": KEYS}
GREEN = {
    "plain": {},
    "wide": {"greenlist_ratio": 0.5, "context_width": 3, "hashing_key": 2**40 + 7},
    "self": {"seeding_scheme": "selfhash"},
    "wide self": {"seeding_scheme": "selfhash", "context_width": 4},
}


def mark(options):
    return purgen.green_list_watermark(**options, bias=3.0)


def generate(model, transform, prompts, length, seed=0):
    """New tokens of one sampled text a prompt."""
    return purgen.generate(
        purgen.sample(model, transform=transform),
        model.params,
        prompts,
        rng_key=random.key(seed),
        max_new_tokens=length,
    ).new_tokens


@pytest.fixture(scope="module")
def toy():
    """A model with some entropy, and prompts for it."""
    model = toy_model(vocab_size=VOCAB)
    model = purgen.replace(model, params=model.params | {"head": model.params["head"] * 0.5})
    return model, purgen.Prompt.from_lists([[n, n + 1, 2 * n] for n in range(1, 9)], pad_token_id=0)


# The green list.


def green_by_hand(context, token, *, ratio, secret, scheme):
    """The definition, one key and one token at a time."""

    def word(key, number):
        return int(random.bits(key, (number + 1,))[number]) if number < 100 else wide(key, number)

    def wide(key, number):
        high, low = random.fold_in(key, number).tolist()
        return high ^ low

    key = random.fold_in(random.fold_in(random.key(0), secret >> 32), secret & 0xFFFFFFFF)
    if scheme == "lefthash":
        for before in context:
            key = random.fold_in(key, before)
        return word(key, token) < round(ratio * 2**32)
    inner, outer = random.split(key)
    hashes = [word(random.fold_in(inner, before), token) for before in context]
    return word(outer, min([word(inner, token), *hashes])) < round(ratio * 2**32)


@pytest.mark.parametrize("name", GREEN)
def test_green_tokens_get_the_bias_and_no_other(name):
    options = GREEN[name]
    scheme = options.get("seeding_scheme", "lefthash")
    width = options.get("context_width", 1) - (scheme == "selfhash")
    rows = [[1, 2, 3, 4, 5], [7, 3], [9, 9, 9, 4]]
    view = example_view(rows, vocab_size=30, pad_token_id=9)
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(0))
    transform = mark(options)
    gained = transform.apply(transform.init(view), logits, view)[0] - logits
    for index, row in enumerate(rows):
        for token in range(30):
            green = len(row) >= width and green_by_hand(
                row[len(row) - width :],
                token,
                ratio=options.get("greenlist_ratio", 0.25),
                secret=options.get("hashing_key", 15485863),
                scheme=scheme,
            )
            assert float(gained[index, token]) == pytest.approx(3.0 * green, abs=1e-6)


@pytest.mark.parametrize("name", GREEN)
def test_share_of_green_tokens_is_the_ratio(name):
    ratio = GREEN[name].get("greenlist_ratio", 0.25)
    before = torch.randint(1000, (50, 3), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [[*context, newest] for newest, context in enumerate(before)]
    view = example_view(rows, vocab_size=1000)
    transform = mark(GREEN[name])
    green = transform.apply(transform.init(view), torch.zeros(50, 1000), view)[0] > 0
    if name == "self":  # without a context there is one list
        assert bool((green == green[0]).all())
        green = green[:1]
    else:
        assert len(green.unique(dim=0)) == 50
    spread = math.sqrt(ratio * (1 - ratio) / green.numel())
    if name == "wide self":  # where its own hash is the least, a token has one colour in all rows
        spread *= 3
    assert abs(float(green.float().mean()) - ratio) < 4 * spread


def test_settings_a_row_are_those_of_the_row():
    ratios, biases, secrets = torch.tensor([0.2, 0.7]), torch.tensor([1.0, -2.0]), [5, 2**35]
    view = example_view([[3], [3]], vocab_size=100)
    together = purgen.green_list_watermark(ratios, bias=biases, hashing_key=torch.tensor(secrets))
    result = together.apply(together.init(view), torch.zeros(2, 100), view)[0]
    one = example_view([[3]], vocab_size=100)
    for row in (0, 1):
        alone = purgen.green_list_watermark(
            float(ratios[row]), bias=float(biases[row]), hashing_key=secrets[row]
        )
        expected = alone.apply(alone.init(one), torch.zeros(1, 100), one)[0]
        assert torch.equal(result[row], expected[0])


@pytest.mark.parametrize("name", GREEN)
@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=12), min_size=1, max_size=3),
    left=st.booleans(),
    once=st.booleans(),
)
def test_detector_counts_what_was_marked(name, rows, left, once):
    options = GREEN[name]
    scheme = options.get("seeding_scheme", "lefthash")
    width = options.get("context_width", 1) - (scheme == "selfhash")
    ratio = options.get("greenlist_ratio", 0.25)
    longest = max(len(row) for row in rows)
    pads = [[3] * (longest - len(row)) for row in rows]
    tokens = [pad + row if left else row + pad for row, pad in zip(rows, pads, strict=True)]
    mask = [
        [0] * len(pad) + [1] * len(row) if left else [1] * len(row) + [0] * len(pad)
        for row, pad in zip(rows, pads, strict=True)
    ]
    shape = (len(rows), longest)
    score = detect_green_list(
        torch.tensor(tokens, dtype=torch.int64).reshape(shape),
        mask=torch.tensor(mask).reshape(shape),
        ignore_repeated_ngrams=once,
        **options,
    )
    for index, row in enumerate(rows):
        grams = [tuple(row[place - width : place + 1]) for place in range(width, len(row))]
        grams = list(set(grams)) if once else grams
        green = sum(
            green_by_hand(
                gram[:-1],
                gram[-1],
                ratio=ratio,
                secret=options.get("hashing_key", 15485863),
                scheme=scheme,
            )
            for gram in grams
        )
        assert int(score.num_tokens_scored[index]) == len(grams)
        assert int(score.num_green_tokens[index]) == green
        if grams:
            z = (green - ratio * len(grams)) / math.sqrt(len(grams) * ratio * (1 - ratio))
            assert float(score.z_score[index]) == pytest.approx(z, abs=1e-5)
            assert float(score.p_value[index]) == pytest.approx(math.erfc(z / 2**0.5) / 2, abs=1e-6)
            assert float(score.green_fraction[index]) == pytest.approx(green / len(grams))
        else:
            assert float(score.z_score[index]) == 0
            assert float(score.p_value[index]) == 0.5


def test_score_is_that_of_transformers_for_the_same_counts():
    config = transformers.PreTrainedConfig(vocab_size=VOCAB, bos_token_id=0)
    theirs = transformers.WatermarkDetector(config, "cpu", transformers.WatermarkingConfig())
    score = detect_green_list(torch.arange(300).reshape(3, 100))
    scored, green = score.num_tokens_scored.numpy(), score.num_green_tokens.numpy()
    z = theirs._compute_z_score(green, scored)
    np.testing.assert_allclose(score.z_score, z, rtol=1e-5)
    np.testing.assert_allclose(score.p_value, theirs._compute_pval(z), rtol=1e-4)


@pytest.mark.parametrize("name", GREEN)
def test_green_text_is_told_from_other_text(name, toy):
    model, prompts = toy
    options = GREEN[name]
    marked = generate(model, mark(options), prompts, 60)
    plain = generate(model, None, prompts, 60)
    other = {**options, "hashing_key": 99}
    least = float(detect_green_list(marked, **options).z_score.min())
    assert least > 4
    if name == "self":  # one list for all contexts: texts that like the same tokens are no evidence
        return
    for tokens, found in ((plain, options), (marked, other)):
        score = detect_green_list(tokens, ignore_repeated_ngrams=True, **found)
        assert float(score.z_score.max()) < least
        assert float(score.z_score.mean()) < 1.5


@pytest.mark.parametrize(
    ("detect", "options"),
    [
        (detect_green_list, GREEN["plain"]),
        (detect_green_list, GREEN["wide self"]),
        (detect_synthid, SYNTHID),
    ],
    ids=["green", "self", "synthid"],
)
def test_scores_of_unmarked_text_are_standard_normal(detect, options):
    text = torch.randint(50_000, (2000, 60), generator=torch.Generator().manual_seed(0))
    score = detect(text, **options)
    assert abs(float(score.z_score.mean())) < 0.15
    assert abs(float(score.z_score.std()) - 1) < 0.1
    assert 0.03 < float((score.p_value < 0.05).float().mean()) < 0.08


def test_no_bias_marks_nothing(toy):
    model, prompts = toy
    unmarked = purgen.green_list_watermark(bias=0.0)
    assert torch.equal(generate(model, unmarked, prompts, 9), generate(model, None, prompts, 9))


# SynthID-Text.


def theirs_synthid(**options):
    defaults = {
        "sampling_table_size": 2**16,
        "sampling_table_seed": 0,
        "context_history_size": 1024,
    }
    return transformers.SynthIDTextWatermarkLogitsProcessor(
        **{**defaults, **options}, device=torch.device("cpu")
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ngram_len=st.integers(2, 5),
    depth=st.integers(1, 12),
    history=st.integers(1, 6),
    skip=st.booleans(),
    few=st.booleans(),
    pads=st.integers(0, 3),
)
def test_synthid_equals_transformers(seed, ngram_len, depth, history, skip, few, pads):
    generator = torch.Generator().manual_seed(seed)
    options = {
        "ngram_len": ngram_len,
        "keys": torch.randint(2**40, (depth,), generator=generator).tolist(),
        "sampling_table_size": 997,
        "sampling_table_seed": seed,
        "context_history_size": history,
        "skip_first_ngram_calls": skip,
    }
    prompt, steps, batch, vocab = 3, 14, 3, 40
    # Of two tokens, so that contexts come again.
    ids = torch.randint(2 if few else vocab, (batch, prompt + steps), generator=generator)
    ours, theirs, state = purgen.synthid_watermark(**options), theirs_synthid(**options), None
    for step in range(steps):
        logits = torch.randn(batch, vocab, generator=generator) * 3
        sofar = ids[:, : prompt + step]
        padded = torch.nn.functional.pad(sofar, (pads, 0), value=1).tolist()
        view = example_view(padded, vocab_size=vocab, num_new_tokens=step)
        view = purgen.replace(view, start=view.start + pads)
        state = ours.init(view) if state is None else state
        result, state = ours.apply(state, logits, view)
        expected = theirs(sofar, logits.clone())
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(state, theirs.state.context_history)


def test_forbidden_tokens_stay_forbidden():
    logits = torch.tensor([[1.0, -torch.inf, 2.0, torch.nan, -300.0]])
    view = example_view(batch_size=1, vocab_size=5)
    transform = purgen.synthid_watermark(**SYNTHID)
    result = transform.apply(transform.init(view), logits, view)[0]
    assert (result == -torch.inf).tolist() == [[False, True, False, True, False]]
    kept = [0, 2, 4]
    expected = theirs_synthid(**SYNTHID)(view.tokens[:, :3], logits[:, kept])  # a probability of 0
    assert float(expected[0, 2]) == float(result[0, 4]) == torch.finfo(torch.float32).min


def test_marking_leaves_the_distribution_right_on_average():
    """Over keys, the mean of the marked probabilities is the model's own."""
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]])
    view = example_view(batch_size=1, vocab_size=5)
    marked = []
    for seed in range(400):
        transform = purgen.synthid_watermark(3, keys=[seed, 7 * seed + 1], sampling_table_seed=seed)
        marked.append(transform.apply(transform.init(view), logits, view)[0].exp())
    torch.testing.assert_close(
        torch.cat(marked).mean(dim=0), logits[0].softmax(-1), rtol=0, atol=0.03
    )
    assert all(float(row.sum()) == pytest.approx(1.0, abs=1e-5) for row in marked)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), ngram_len=st.integers(2, 5), history=st.integers(1, 9))
def test_detector_has_the_g_values_and_contexts_of_transformers(seed, ngram_len, history):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, (4, 20), generator=generator)
    theirs = theirs_synthid(ngram_len=ngram_len, keys=KEYS, context_history_size=history)
    values = theirs.compute_g_values(tokens)
    grams = tokens.unfold(1, ngram_len, 1)
    assert torch.equal(g_values(hash_of(grams), KEYS, sampling_table(2**16, 0)), values)
    counts = theirs.compute_context_repetition_mask(tokens)
    score = detect_synthid(tokens, ngram_len=ngram_len, keys=KEYS, context_history_size=history)
    assert torch.equal(score.num_tokens_scored, counts.sum(1))
    picked = (values * counts[..., None]).double()
    torch.testing.assert_close(
        score.mean.double(), picked.sum((1, 2)) / counts.sum(1) / len(KEYS), rtol=1e-6, atol=1e-6
    )
    weight = torch.linspace(10, 1, len(KEYS), dtype=torch.float64)
    weighted = (picked * weight / weight.sum()).sum((1, 2)) / counts.sum(1)
    torch.testing.assert_close(score.weighted_mean.double(), weighted, rtol=1e-6, atol=1e-6)


def test_a_table_of_its_own():
    table = sampling_table(99, 12345)
    view, logits = example_view(batch_size=1, vocab_size=50), torch.zeros(1, 50)
    text = torch.arange(40)[None]
    made = {"sampling_table_size": 99, "sampling_table_seed": 12345}
    ours, same = (
        purgen.synthid_watermark(**SYNTHID, **options)
        for options in (made, {"sampling_table": table.bool()})
    )
    assert torch.equal(
        ours.apply(ours.init(view), logits, view)[0], same.apply(same.init(view), logits, view)[0]
    )
    score = detect_synthid(text, **SYNTHID, **made)
    assert torch.equal(score.z_score, detect_synthid(text, **SYNTHID, sampling_table=table).z_score)


def test_pads_are_no_text():
    text = torch.randint(VOCAB, (2, 30), generator=torch.Generator().manual_seed(1))
    for detect, options in ((detect_green_list, GREEN["wide"]), (detect_synthid, SYNTHID)):
        alone = detect(text, **options)
        for widths in ((5, 0), (0, 5), (2, 3)):
            padded = torch.nn.functional.pad(text, widths, value=7)
            mask = torch.nn.functional.pad(torch.ones_like(text), widths)
            score = detect(padded, mask=mask, **options)
            for name in ("num_tokens_scored", "z_score", "p_value"):
                assert torch.equal(getattr(score, name), getattr(alone, name))


def test_text_too_short_to_score():
    for detect, options in ((detect_green_list, GREEN["wide"]), (detect_synthid, SYNTHID)):
        for length in (0, 1, 3):
            score = detect(torch.zeros(2, length, dtype=torch.int64), **options)
            assert score.num_tokens_scored.tolist() == [0, 0]
            assert score.z_score.tolist() == [0, 0]
            assert score.p_value.tolist() == [0.5, 0.5]
    assert score.mean.tolist() == score.weighted_mean.tolist() == [0.5, 0.5]


def test_synthid_text_is_told_from_other_text(toy):
    model, prompts = toy
    marked = generate(model, purgen.synthid_watermark(**SYNTHID), prompts, 80)
    plain = generate(model, None, prompts, 80)
    found = detect_synthid(marked, **SYNTHID)
    assert float(found.z_score.min()) > 4
    assert bool((found.mean > 0.5).all())
    other = {**SYNTHID, "keys": [key + 1 for key in KEYS]}
    for tokens, options in ((plain, SYNTHID), (marked, other)):
        assert float(detect_synthid(tokens, **options).z_score.max()) < 3.5


# Settings.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: purgen.green_list_watermark(0.0), "greenlist_ratio must be above 0.0, not 0.0"),
        (lambda: purgen.green_list_watermark(1.0), "greenlist_ratio must be at most .* not 1.0"),
        (lambda: purgen.green_list_watermark(bias=torch.inf), "bias must be at most .* not inf"),
        (lambda: purgen.green_list_watermark(hashing_key=-1), "hashing_key must be at least 0"),
        (lambda: purgen.green_list_watermark(seeding_scheme="right"), "one of .* not 'right'"),
        (lambda: purgen.green_list_watermark(context_width=0), "context_width must be .* not 0"),
        (lambda: purgen.green_list_watermark(context_width=1.0), "context_width must be an int"),
        (lambda: purgen.synthid_watermark(1, keys=[1]), "ngram_len must be at least 2, not 1"),
        (lambda: purgen.synthid_watermark(2.0, keys=[1]), "ngram_len must be an int"),
        (lambda: purgen.synthid_watermark(2, keys=[]), "keys is empty"),
        (lambda: purgen.synthid_watermark(2, keys=[0.5]), "keys must be an int, not float 0.5"),
        (lambda: purgen.synthid_watermark(2, keys=[2**63]), "keys must be from"),
        (
            lambda: purgen.synthid_watermark(2, keys=[1], sampling_table_size=2**25),
            "sampling_table_size must be from 1 to 16777216, not 33554432",
        ),
        (
            lambda: purgen.synthid_watermark(2, keys=[1], context_history_size=-1),
            "context_history_size must be at least 0, not -1",
        ),
        (
            lambda: purgen.synthid_watermark(2, keys=[1], sampling_table=torch.tensor([0, 2])),
            "sampling_table must hold 0 and 1",
        ),
        (lambda: detect_green_list([[1, 2]]), "tokens must be an int64 tensor"),
        (lambda: detect_green_list(torch.tensor([1, 2])), r"tokens must be \[B, L\], not \[2\]"),
        (
            lambda: detect_green_list(torch.ones(1, 3).long(), mask=torch.ones(1, 2)),
            r"mask must be \[1, 3\], like tokens, not \[1, 2\]",
        ),
        (
            lambda: detect_green_list(torch.ones(2, 3).long(), greenlist_ratio=torch.ones(3) / 2),
            "greenlist_ratio has 3 numbers, one a row, and the batch has 2 rows",
        ),
        (lambda: detect_synthid(torch.ones(1, 3).long(), ngram_len=1, keys=[1]), "ngram_len must"),
        (lambda: detect_synthid(torch.ones(1, 3), **SYNTHID), "tokens must be an int64 tensor"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


# Real text.


@pytest.mark.real
def test_real_text_marked_and_unmarked_are_told_apart():
    import bridge

    model = bridge.load(bridge.embedded_checkpoint())
    prompts = model.encode(
        [
            "Once upon a time there was",
            "The history of the city begins",
            "In this paper we",
            "My favourite recipe for dinner is",
        ]
    )
    synthid = {"ngram_len": 5, "keys": KEYS}

    def text(warp):
        out = purgen.generate(
            purgen.sample(model, transform=warp),
            model.params,
            prompts,
            rng_key=random.key(0),
            max_new_tokens=60,
        )
        column = torch.arange(out.new_tokens.shape[1])
        return {"tokens": out.new_tokens, "mask": column < out.num_new_tokens[:, None]}

    plain = text(None)
    for transform, detect, options in (
        (purgen.green_list_watermark(bias=3.0), detect_green_list, {}),
        (purgen.synthid_watermark(**synthid), detect_synthid, synthid),
    ):
        assert float(detect(**text(transform), **options).z_score.min()) > 3
        assert float(detect(**plain, **options).z_score.max()) < 3
