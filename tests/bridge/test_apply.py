"""`prefill` and `apply` as values: positions, masks, blocks, rewinding, purity."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import bridge
import purgen
from tests.bridge.families import (
    MAIN,
    assert_close,
    assert_same,
    prefilled,
    ragged_prompt,
    tiny_module,
)

TOKENS = torch.tensor([[5, 90, 17], [44, 3, 120], [61, 61, 8]])


@pytest.fixture(params=MAIN)
def model(request, models):
    return models(request.param)


def test_explicit_is_implicit(model):
    """What the cache knows and what a caller says give the same bits."""
    _, mask = ragged_prompt()
    cache = prefilled(model)
    width = mask.shape[1]
    implicit = model.apply(model.params, TOKENS, cache)
    seen = torch.cat([mask, torch.ones(3, 3, dtype=torch.bool)], dim=1)
    positions = (seen.cumsum(1) - 1)[:, width:]
    for attention_mask in (seen, seen.long(), torch.nn.functional.pad(seen, (0, 9))):
        explicit = model.apply(
            model.params,
            TOKENS,
            cache,
            cache_position=torch.full((3,), width),
            attention_mask=attention_mask,
            position_ids=positions,
        )
        assert_same(explicit, implicit)
    moved = purgen.replace(cache, cache_position=torch.zeros(3, dtype=torch.int64))
    elsewhere = model.apply(model.params, TOKENS, moved, cache_position=cache.cache_position)
    assert_same(elsewhere, implicit)


def test_one_position_for_all_is_a_position_a_row(model):
    """A 0-d position, where rows move together, gives the same bits."""
    cache = prefilled(model)
    each = model.apply(model.params, TOKENS, cache, cache_position=torch.tensor([9, 9, 9]))
    shared = model.apply(model.params, TOKENS, cache, cache_position=torch.tensor(9))
    assert_same(shared, each)


def test_longer_cache_goes_on(model):
    """A cache that is lengthened midway gives the logits of one that was long from the start."""
    cache = prefilled(model, room=3)
    longer = model.apply(model.params, TOKENS, cache).cache
    longer = longer.layout.resized(longer, 21)
    expected = model.apply(model.params, TOKENS, prefilled(model)).cache
    assert_close(longer, expected)
    got = model.apply(model.params, TOKENS, longer)
    assert_close(got, model.apply(model.params, TOKENS, expected))


def test_block_is_single_steps(model):
    cache = prefilled(model)
    block = model.apply(model.params, TOKENS, cache)
    logits = []
    for column in range(3):
        out = model.apply(model.params, TOKENS[:, column : column + 1], cache)
        cache = out.cache
        logits.append(out.logits)
    assert_close(torch.cat(logits, 1), block.logits)
    assert_close(cache, block.cache)


def test_rows_anywhere(model):
    """Rows at positions of their own give what each gives alone."""
    cache = prefilled(model)
    cache = model.apply(model.params, TOKENS, cache).cache
    position = torch.tensor([12, 10, 11])
    ragged = purgen.replace(cache, cache_position=position)
    out = model.apply(model.params, TOKENS[:, :2], ragged)
    assert out.cache.cache_position.tolist() == [14, 12, 13]
    for row in range(3):
        one = purgen.select_rows(ragged, torch.tensor([row]))
        alone = model.apply(model.params, TOKENS[row : row + 1, :2], one)
        assert_close(out.logits[row : row + 1], alone.logits)


def test_rewind(model):
    """Lowering the position forgets: what was beyond it no longer counts."""
    cache = prefilled(model)
    clean = model.apply(model.params, TOKENS, cache)
    further = model.apply(model.params, TOKENS.flip(1), cache).cache
    further = model.apply(model.params, TOKENS + 1, further).cache
    back = purgen.replace(further, cache_position=cache.cache_position)
    again = model.apply(model.params, TOKENS, back)
    assert torch.equal(again.logits, clean.logits)
    assert torch.equal(again.cache.layers["valid"], clean.cache.layers["valid"])
    _, mask = ragged_prompt()
    assert again.cache.layers["valid"].sum(1).tolist() == (mask.sum(1) + 3).tolist()
    following = model.apply(model.params, TOKENS[:, :1], again.cache)
    expected = model.apply(model.params, TOKENS[:, :1], clean.cache)
    assert torch.equal(following.logits, expected.logits)


def test_prefill_is_apply_in_pieces(model):
    """A prompt fed to an empty cache by `apply` gives the same as `prefill`."""
    tokens, mask = ragged_prompt()
    whole = model.prefill(model.params, tokens, model.init_cache(3, 12), mask=mask)
    pieces = model.apply(
        model.params, tokens[:, :4], model.init_cache(3, 12), attention_mask=mask[:, :4]
    )
    pieces = model.apply(model.params, tokens[:, 4:], pieces.cache, attention_mask=mask)
    real = mask[:, 4:]
    assert_close(pieces.logits[real], whole.logits[:, 4:][real])
    assert torch.equal(pieces.cache.layers["valid"], whole.cache.layers["valid"])


def test_padding_does_not_matter(model):
    """Pads left, right or both sides of the prompt: the same logits at the same tokens."""
    row = torch.tensor([[7, 99, 23, 42, 64]])
    plain = model.prefill(
        model.params, row, model.init_cache(1, 20), mask=torch.ones(1, 5, dtype=torch.bool)
    )
    expected = model.apply(model.params, TOKENS[:1], plain.cache).logits
    for left, right in ((4, 0), (0, 3), (2, 2)):
        tokens = torch.nn.functional.pad(row, (left, right), value=33)
        mask = torch.nn.functional.pad(torch.ones_like(row), (left, right))
        out = model.prefill(model.params, tokens, model.init_cache(1, 20), mask=mask)
        assert_close(out.logits[:, left : left + 5], plain.logits)
        after = model.apply(model.params, TOKENS[:1], out.cache)
        assert_close(after.logits, expected)


def test_row_without_tokens(model):
    """A row of pads gives finite numbers and leaves the others and its own later tokens alone."""
    tokens, mask = ragged_prompt()
    empty = mask.clone()
    empty[1] = False
    out = model.prefill(model.params, tokens, model.init_cache(3, 16), mask=empty)
    assert out.logits.isfinite().all()
    full = model.prefill(model.params, tokens, model.init_cache(3, 16), mask=mask)
    assert torch.equal(out.logits[[0, 2]], full.logits[[0, 2]])
    after = model.apply(model.params, TOKENS, out.cache)
    fresh = model.prefill(
        model.params,
        TOKENS[1:2],
        model.init_cache(1, 4),
        mask=torch.ones(1, 3, dtype=torch.bool),
    )
    assert_close(after.logits[1:2], fresh.logits)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_row_without_tokens_in_16_bits(name, dtype):
    """Scores far below zero, added to a mask, must not reach -inf: 0 times NaN is NaN."""
    module = tiny_module(name, num_key_value_heads=4).to(dtype)
    for layer in module.model.layers:
        attention = layer.self_attn
        attention.k_proj.weight.data = -16 * attention.q_proj.weight.data
    model = bridge.load(module)
    tokens, mask = ragged_prompt()
    mask[1], tokens[1] = False, 7
    out = model.prefill(model.params, tokens, model.init_cache(3, 9), mask=mask)
    assert out.logits.isfinite().all()


def test_inputs_do_not_change(model):
    tokens, mask = ragged_prompt()
    empty = model.init_cache(3, 16)
    position = torch.tensor([9, 7, 8])
    seen = torch.nn.functional.pad(mask, (0, 3), value=True)
    filled = model.prefill(model.params, tokens, empty, mask=mask).cache
    inputs = (model.params, tokens, empty, mask, filled, position, seen)
    before = tree_map(torch.clone, inputs)
    torch.manual_seed(0)
    random_state = torch.get_rng_state()
    model.prefill(model.params, tokens, empty, mask=mask)
    model.apply(model.params, TOKENS, filled, cache_position=position, attention_mask=seen)
    first = model.apply(model.params, TOKENS, filled)
    assert_same(inputs, before)
    assert_same(model.apply(model.params, TOKENS, filled), first)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_threads_do_not_mix(models):
    """Each thread computes with the parameters that it was called with."""
    model = models("llama")
    cache = prefilled(model)
    sets = [{name: value * factor for name, value in model.params.items()} for factor in (1, 0.9)]
    expected = [model.apply(params, TOKENS, cache).logits for params in sets]
    wrong = []

    def work(index):
        for _ in range(30):
            logits = model.apply(sets[index], TOKENS, cache).logits
            if not torch.equal(logits, expected[index]):
                wrong.append(index)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 1)))
    assert wrong == []


def test_outputs_are_contiguous(model):
    """And keep their strides from call to call, or a compiled step would compile again."""
    cache = prefilled(model)
    out = model.apply(model.params, TOKENS[:, :1], cache)
    for old, new in zip(tree_leaves(cache), tree_leaves(out.cache), strict=True):
        assert new.is_contiguous()
        assert (old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype)
        assert old.shape[0] == 3
        assert new.data_ptr() != old.data_ptr()
    assert out.logits.is_contiguous()
    assert out.hidden_states.is_contiguous()
