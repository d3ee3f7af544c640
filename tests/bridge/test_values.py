"""Every family: a cache is a value. Going back, on, apart and together gives the same tokens."""

from __future__ import annotations

import functools

import pytest
import torch

import bridge
import purgen
from tests.bridge.families import FAMILIES, ragged_prompt, tiny_module
from tests.bridge.families_images import IMAGE_TEXT, image_prompt, tiny_image_text
from tests.bridge.families_seq2seq import SEQ2SEQ, seq2seq_prompt, tiny_seq2seq

NEW = 10  # tokens of the run that is not interrupted: past every window
NAMES = [
    *FAMILIES,
    *(f"seq2seq {name}" for name in SEQ2SEQ),
    *(f"images {name}" for name in IMAGE_TEXT),
]


@functools.cache
def case(name):
    """Returns the model, and caches and tokens of a run: `NEW + 1` of them, [3] tokens each."""
    kind, _, which = name.rpartition(" ")
    if kind == "seq2seq":
        model, prompt = bridge.load(tiny_seq2seq(which)), seq2seq_prompt(which)
    elif kind == "images":
        model, prompt = bridge.load(tiny_image_text(which)), image_prompt(which)
    else:
        model = bridge.load(tiny_module(which))
        prompt = purgen.Prompt(*ragged_prompt())
    rows, width = prompt.tokens.shape
    out = model.prefill(
        model.params,
        prompt.tokens,
        model.init_cache(rows, width + NEW + 2),
        mask=prompt.mask,
        inputs=prompt.inputs or None,
    )
    caches, tokens = [out.cache], [out.logits[:, -1].argmax(-1)]
    for _ in range(NEW):
        cache, token = after(model, caches[-1], tokens[-1])
        caches.append(cache)
        tokens.append(token)
    return model, caches, tokens


def after(model, cache, token):
    out = model.apply(model.params, token[:, None], cache)
    return out.cache, out.logits[:, -1].argmax(-1)


def run(model, cache, token, count):
    """Returns the tokens that follow, int64 [B, count]."""
    found = []
    for _ in range(count):
        cache, token = after(model, cache, token)
        found.append(token)
    return torch.stack(found, dim=1)


def wanted(tokens, begin):
    return torch.stack(tokens[begin + 1 :], dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_rewind_and_replay(name):
    model, caches, tokens = case(name)
    if not model.slot_addressed:  # what cannot go back says so; the earlier value does as well
        back = purgen.replace(caches[-1], cache_position=caches[2].cache_position)
        with pytest.raises(ValueError, match="can be rewound by 0 at most"):
            model.apply(model.params, tokens[2][:, None], back)
        back = caches[2]
    else:
        back = purgen.replace(caches[-1], cache_position=caches[2].cache_position)
    assert torch.equal(run(model, back, tokens[2], NEW - 2), wanted(tokens, 2))


@pytest.mark.parametrize("name", NAMES)
def test_rows_rewind_apart(name):
    """Each row goes back by another number of slots, where a row can have a slot of its own."""
    model, caches, tokens = case(name)
    steps = torch.tensor([2, 5, 3])
    position = torch.stack([caches[int(step)].cache_position[0] for step in steps])
    back = purgen.replace(caches[-1], cache_position=position)
    token = torch.stack([tokens[int(step)][row] for row, step in enumerate(steps)])
    if not model.slot_addressed:
        with pytest.raises(ValueError, match="can be rewound by 0 at most"):
            model.apply(model.params, token[:, None], back)
        return
    got = run(model, back, token, NEW - 5)
    for row, step in enumerate(steps.tolist()):
        assert got[row].tolist() == wanted(tokens, step)[row, : NEW - 5].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_repeat_and_select(name):
    model, caches, tokens = case(name)
    expected = wanted(tokens, 2)
    many = purgen.repeat_rows(caches[2], 2)
    got = run(model, many, tokens[2].repeat_interleave(2), NEW - 2)
    assert torch.equal(got, expected.repeat_interleave(2, dim=0))
    order = torch.tensor([2, 0, 2])
    got = run(model, purgen.select_rows(caches[2], order), tokens[2][order], NEW - 2)
    assert torch.equal(got, expected[order])


@pytest.mark.parametrize("name", NAMES)
def test_growth(name):
    model, caches, tokens = case(name)
    cache = caches[2]
    longer = cache.layout.resized(cache, 2 * cache.layout.capacity(cache))
    assert torch.equal(run(model, longer, tokens[2], NEW - 2), wanted(tokens, 2))
    assert longer.seen().tolist() == cache.seen().tolist()
