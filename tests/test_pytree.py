"""The pytree decorator and the functions on rows."""

from __future__ import annotations

import dataclasses
import pickle

import optree
import pytest
import torch
import torch.utils._pytree as torch_pytree

import purgen
from purgen import Cache, GenerationState


def state(batch_size=3):
    row = torch.arange(batch_size)
    return GenerationState(
        tokens=row[:, None].repeat(1, 5),
        start=row.clone(),
        length=row + 2,
        prompt_length=row + 1,
        cache=Cache(layers=[{"k": row.float()[:, None]}], cache_position=row + 1),
        stopped=row == 1,
        stop_reason=row.clone(),
        rng_key=row[:, None].repeat(1, 2),
        extra={"a": row},
    )


def test_both_libraries_see_the_same_leaves():
    leaves, other = torch_pytree.tree_leaves(state()), optree.tree_leaves(state())
    assert len(leaves) == 13
    assert all(a is b or torch.equal(a, b) for a, b in zip(leaves, other, strict=True))
    assert optree.tree_structure(state()) == optree.tree_structure(state())


def test_structure_holds_static_fields():
    one, two = state(), purgen.replace(state(), pad_token_id=7)
    assert torch_pytree.tree_structure(one) != torch_pytree.tree_structure(two)
    assert optree.tree_map(lambda leaf: leaf + 1, two).pad_token_id == 7


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        state().tokens = None


def test_repr_shows_shapes_and_dtypes():
    text = repr(state())
    assert "tokens=int64[3, 5]" in text
    assert "cache=Cache(layers=[{'k': float32[3, 1]}], cache_position=int64[3])" in text
    cache = Cache(layers=[torch.ones(1)] * 30, cache_position=torch.zeros(1))
    assert repr(cache) == "Cache(layers=[float32[1] × 30], cache_position=float32[1])"


def test_keys_name_the_fields():
    paths = [
        torch_pytree.keystr(path) for path, _ in torch_pytree.tree_flatten_with_path(state())[0]
    ]
    assert ".cache.layers[0]['k']" in paths


def test_pickle_round_trip():
    assert torch.equal(pickle.loads(pickle.dumps(state())).tokens, state().tokens)


def test_one_graph_and_vmap():
    graphs = purgen.testing.CompileCounter(
        lambda s: optree.tree_map(torch.clone, purgen.replace(s, length=s.length + 1))
    )
    value = state()
    for _ in range(4):
        value = graphs(value)
    assert graphs.graphs == 1
    assert value.length.tolist() == [6, 7, 8]
    stacked = torch_pytree.tree_map(lambda leaf: torch.stack([leaf, leaf]), state())
    lengths = torch.func.vmap(lambda s: s.length + s.cache_position)(stacked)
    assert lengths.tolist() == [[3, 5, 7]] * 2


def test_replace_reaches_the_cache_position():
    moved = purgen.replace(state(), cache_position=torch.tensor([0, 0, 0]), stopped=torch.ones(3))
    assert moved.cache_position.tolist() == [0, 0, 0]
    assert state().cache_position.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="no field 'lenght'"):
        purgen.replace(state(), lenght=1)
    with pytest.raises(TypeError, match="not int"):
        purgen.replace(3, a=1)


def test_replace_works_on_decoders():
    decoder = purgen.greedy(purgen.testing.toy_model())
    assert purgen.replace(decoder, step=print).step is print


def test_select_rows_takes_every_leaf():
    picked = purgen.select_rows(state(), torch.tensor([2, 0, 2]))
    assert picked.start.tolist() == [2, 0, 2]
    assert picked.cache.layers[0]["k"][:, 0].tolist() == [2.0, 0.0, 2.0]
    assert purgen.select_rows(state(), torch.tensor([True, False, True])).start.tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"index holds \[5\]; there are 3 rows"):
        purgen.select_rows(state(), torch.tensor([5]))
    with pytest.raises(TypeError, match="index must be int64"):
        purgen.select_rows(state(), torch.tensor([0.5]))


def test_repeat_rows_puts_copies_side_by_side():
    assert purgen.repeat_rows(state(), 2).cache_position.tolist() == [1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="n must be at least 1, not 0"):
        purgen.repeat_rows(state(), 0)


def test_where_rows_picks_row_by_row():
    a, b = state(), purgen.replace(state(), tokens=state().tokens + 10, start=state().start + 10)
    mixed = purgen.where_rows(torch.tensor([True, False, True]), a, b)
    assert mixed.tokens[:, 0].tolist() == [0, 11, 2]
    assert mixed.start.tolist() == [0, 11, 2]
    with pytest.raises(ValueError, match=r"mask has shape \[2\], leaves have \[3, 5\]"):
        purgen.where_rows(torch.tensor([True, False]), a, b)
    with pytest.raises(ValueError, match="mask must be bool"):
        purgen.where_rows(torch.tensor([1, 0, 1]), a, b)
    with pytest.raises(ValueError, match="mismatch"):
        purgen.where_rows(torch.tensor([True] * 3), a, purgen.replace(b, extra=()))


def test_a_type_of_ones_own():
    @purgen.pytree_dataclass
    class Particle:
        weight: torch.Tensor
        name: str = purgen.static_field(default="p")

    doubled = optree.tree_map(lambda leaf: leaf * 2, Particle(weight=torch.ones(2)))
    assert doubled.weight.tolist() == [2.0, 2.0]
    assert repr(doubled) == "Particle(weight=float32[2], name='p')"
