"""Greedy and sampled decoding: exact tokens, exact distributions, keys."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

import purgen
from purgen import generate, greedy, sample

MODEL = purgen.testing.toy_model(vocab_size=24)
KEY = purgen.random.key(11)
LISTS = [[1, 2, 3, 4], [5], [6, 7], [8, 9, 10], [2], [3, 3], [4, 1, 6, 7, 9], [11]]


def test_greedy_equals_a_run_without_cache():
    out = generate(
        greedy(MODEL),
        MODEL.params,
        purgen.Prompt.from_lists(LISTS, pad_token_id=0),
        max_new_tokens=12,
    )
    for row, prompt in enumerate(LISTS):
        text = list(prompt)
        for _ in range(12):
            tokens = torch.tensor([text])
            logits = MODEL.apply(MODEL.params, tokens, MODEL.init_cache(1, len(text))).logits
            text.append(int(logits[0, -1].argmax()))
        assert out.new_tokens[row].tolist() == text[len(prompt) :]
    assert len(out.new_tokens.unique()) > 5


def test_greedy_takes_the_lowest_id_of_tied_tokens():
    model = purgen.replace(MODEL, params={**MODEL.params, "head": torch.zeros(16, 24)})
    out = generate(
        greedy(model),
        model.params,
        purgen.Prompt.from_lists([[1]], pad_token_id=0),
        max_new_tokens=2,
    )
    assert out.new_tokens.tolist() == [[0, 0]]


def test_sample_needs_a_key_before_any_work():
    calls = []
    model = purgen.replace(MODEL, prefill=lambda *args, **kwargs: calls.append(1))
    with pytest.raises(ValueError, match="rng_key is None.*pass rng_key=purgen.random.key"):
        generate(
            sample(model),
            model.params,
            purgen.Prompt.from_lists(LISTS, pad_token_id=0),
            max_new_tokens=2,
        )
    assert not calls


def test_a_strategy_that_draws_says_that_it_needs_a_key():
    drawing = purgen.token_strategy(
        MODEL, lambda logits, state: purgen.random.categorical(purgen.step_key(state), logits)
    )
    with pytest.raises(ValueError, match="rng_key is None"):
        generate(
            drawing, MODEL.params, purgen.Prompt.from_lists([[1]], pad_token_id=0), max_new_tokens=2
        )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_sample_is_the_same_in_any_batch(side, size):
    """Row i of one key, in batches of 1, 3 and 8, permuted, padded on either side."""
    decoder = sample(MODEL, transform=purgen.temperature(1.3))
    whole = generate(
        decoder,
        MODEL.params,
        purgen.Prompt.from_lists(LISTS, pad_token_id=0),
        rng_key=KEY,
        max_new_tokens=16,
    )
    keys = purgen.random.split(KEY, len(LISTS))
    order = torch.arange(len(LISTS)).roll(3)
    for chunk in order.split(size):
        prompt = purgen.Prompt.from_lists(
            [LISTS[row] for row in chunk], pad_token_id=2, padding_side=side
        )
        part = generate(decoder, MODEL.params, prompt, rng_key=keys[chunk], max_new_tokens=16)
        assert torch.equal(part.new_tokens, whole.new_tokens[chunk])
    # One key for the batch: row i has the i-th of its splits, whatever the batch size.
    first = purgen.Prompt.from_lists(LISTS[:size], pad_token_id=0, padding_side=side)
    part = generate(decoder, MODEL.params, first, rng_key=KEY, max_new_tokens=16)
    assert torch.equal(part.new_tokens, whole.new_tokens[:size])


def test_keys_matter_and_repeat():
    prompt = purgen.Prompt.from_lists([[1]] * 6, pad_token_id=0)
    runs = [
        generate(
            sample(MODEL), MODEL.params, prompt, rng_key=purgen.random.key(seed), max_new_tokens=9
        )
        for seed in (1, 1, 2)
    ]
    assert torch.equal(runs[0].new_tokens, runs[1].new_tokens)
    assert not torch.equal(runs[0].new_tokens, runs[2].new_tokens)
    assert len({tuple(row) for row in runs[0].new_tokens.tolist()}) == 6


def bigram(table):
    def apply(params, tokens, cache, *, cache_position=None, **_):
        position = cache.cache_position if cache_position is None else cache_position
        cache = purgen.Cache(layers=(), cache_position=position + tokens.shape[1])
        return purgen.ModelOutput(logits=params[tokens], cache=cache)

    return purgen.Model(
        params=table,
        prefill=lambda params, tokens, cache, *, mask, inputs=None: apply(params, tokens, cache),
        apply=apply,
        init_cache=lambda rows, slots: purgen.Cache(
            layers=(), cache_position=torch.zeros(rows, dtype=torch.int64)
        ),
        vocab_size=len(table),
    )


def test_sample_draws_from_the_exact_warped_distribution():
    """100,000 draws of two tokens, against the probabilities of all pairs (chi-square)."""
    size, draws = 7, 100_000
    table = torch.randn(size, size, generator=torch.Generator().manual_seed(0)) * 1.5
    model = bigram(table)
    warp = purgen.chain(
        purgen.temperature(0.7), purgen.top_k(5), purgen.top_p(0.9), purgen.min_p(0.02)
    )
    prompt = purgen.Prompt(tokens=torch.full((draws, 1), 3))
    out = generate(
        sample(model, transform=warp), model.params, prompt, rng_key=KEY, max_new_tokens=2
    )
    # The same warping, from its definition, in float64.
    scaled = table.double() / 0.7
    allowed = torch.zeros(size, size, dtype=torch.bool)
    for row in range(size):
        best = scaled[row].argsort(descending=True)[:5]
        probability = scaled[row, best].softmax(0)
        kept = best[(probability.cumsum(0) - probability) < 0.9]
        share = scaled[row, kept] - scaled[row, kept].max()
        allowed[row, kept[share >= torch.tensor(0.02).log()]] = True
    warped = torch.where(allowed, scaled, -torch.inf).softmax(-1)
    expected = (warped[3][:, None] * warped).flatten() * draws
    pair = out.new_tokens[:, 0] * size + out.new_tokens[:, 1]
    observed = torch.bincount(pair, minlength=size * size).double()
    assert observed[expected == 0].sum() == 0
    live = expected > 0
    assert int(live.sum()) >= 6
    result = stats.chisquare(observed[live].numpy(), expected[live].numpy())
    assert result.pvalue > 1e-4


def test_step_under_vmap_over_parameters():
    prompt = purgen.Prompt.from_lists([[1, 2, 3], [4]], pad_token_id=0)
    decoder = sample(MODEL)
    other = {name: value * 1.1 for name, value in MODEL.params.items()}
    stacked = {name: torch.stack([MODEL.params[name], other[name]]) for name in other}

    def run(params):
        state = decoder.init(params, prompt, rng_key=KEY, max_new_tokens=4)
        for _ in range(4):
            state, _ = decoder.step(params, state)
        return state.tokens

    state = decoder.init(MODEL.params, prompt, rng_key=KEY, max_new_tokens=4)
    stepped, _ = torch.func.vmap(decoder.step, in_dims=(0, None))(stacked, state)
    for lane, params in enumerate((MODEL.params, other)):
        expected, _ = decoder.step(params, state)
        assert torch.equal(stepped.tokens[lane], expected.tokens)
        torch.testing.assert_close(stepped.cache.layers["key"][lane], expected.cache.layers["key"])
    assert not torch.equal(run(MODEL.params), run(other))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": [purgen.top_k(3)]}, "transform must be a purgen.LogitsTransform, not list"),
        ({"stop": 3}, "stop must be a purgen.StopRule, not int"),
    ],
)
def test_wrong_kinds_are_refused_where_they_are_given(options, message):
    with pytest.raises(TypeError, match=message):
        greedy(MODEL, **options)
    with pytest.raises(TypeError, match="choose must be a function"):
        purgen.token_strategy(MODEL, 3)
