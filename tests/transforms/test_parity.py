"""Every transform that transformers has, too: equal on random logits and histories."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.parity import NEAR, PARITY, VOCAB, view_of_ids


@st.composite
def inputs(draw):
    """Histories int64 [B, L] of few ids, so that they repeat, and float32 logits [B, V]."""
    seed, batch, length = (
        draw(st.integers(0, 2**31)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 12)),
    )
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(draw(st.sampled_from([3, 8, VOCAB])), (batch, length), generator=generator)
    logits = torch.randn(batch, VOCAB, generator=generator) * draw(
        st.sampled_from([0.1, 2.0, 20.0])
    )
    if draw(st.booleans()):  # ties, among them for the best
        logits = logits.round()
    if draw(st.booleans()):
        forbidden = torch.rand(batch, VOCAB, generator=generator) < 0.3
        forbidden[:, 0] = False
        logits = logits.masked_fill(forbidden, -torch.inf)
    return ids, logits


def undecided(parity, options, logits, expected):
    """Tokens that rounding decides, and tied ones of which a filter kept some."""
    if parity.undecided is None:
        return torch.zeros_like(logits, dtype=torch.bool)
    kept = expected > -torch.inf
    edge = torch.where(kept, logits, torch.inf).amin(dim=-1, keepdim=True)
    split_tie = (logits == edge) & ((logits == edge) & ~kept).any(dim=-1, keepdim=True)
    return parity.undecided(options, logits) | split_tie


@pytest.mark.parametrize("name", PARITY)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_transformers(name, data):
    parity = PARITY[name]
    options, (ids, logits) = data.draw(parity.settings), data.draw(inputs())
    expected = parity.theirs(options, ids)(ids, logits.clone())
    transform = parity.ours(**options)
    for pads in (0, 4):
        view = view_of_ids(ids, prompt_length=ids.shape[1], pads=pads, pad=int(ids[0, 0]))
        result, _ = transform.apply(transform.init(view), logits, view)
        decided = ~undecided(parity, options, logits, expected)
        torch.testing.assert_close(result[decided], expected[decided], rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("name", PARITY)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_half_precision_and_settings_a_row(name, data):
    """A setting a row, in any dtype, gives each row what the single setting gives it."""
    parity = PARITY[name]
    rows = data.draw(st.lists(parity.settings, min_size=3, max_size=3))
    principal = parity.principal
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    ids = torch.randint(8, (3, 6), generator=generator)
    logits = (torch.randn(3, VOCAB, generator=generator) * 3).to(dtype)
    together = parity.ours(torch.tensor([row[principal] for row in rows]))
    view = view_of_ids(ids, prompt_length=4)
    result, _ = together.apply(together.init(view), logits, view)
    assert result.dtype == dtype
    for row, options in enumerate(rows):
        for value in (options[principal], torch.tensor(options[principal])):
            alone = parity.ours(value)
            one = view_of_ids(ids[row : row + 1], prompt_length=4)
            expected, _ = alone.apply(alone.init(one), logits[row : row + 1], one)
            assert torch.equal(result[row : row + 1], expected)
