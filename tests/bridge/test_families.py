"""Every family: greedy tokens on the seam are those of transformers' own generate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import bridge
from bridge.families import FAMILIES as SUPPORTED
from tests.bridge.families import (
    FAMILIES,
    WINDOWED,
    assert_close,
    generated,
    greedy,
    ragged_prompt,
    tiny_module,
)
from tests.bridge.families_images import IMAGE_TEXT
from tests.bridge.families_seq2seq import SEQ2SEQ


def test_every_supported_type_is_tested():
    tested = [*FAMILIES.values(), *SEQ2SEQ.values(), *IMAGE_TEXT.values()]
    assert {model_type for model_type, _ in tested} == set(SUPPORTED)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_equals_generate(name, modules, models):
    tokens, mask = ragged_prompt()
    got = greedy(models(name), tokens, mask)
    assert len(set(got.flatten().tolist())) >= 12, "tokens must vary for this to say anything"
    assert got.tolist() == generated(modules(name), tokens, mask).tolist()
    for row in range(tokens.shape[0]):
        real = mask[row]
        alone = tokens[row : row + 1, real], mask[row : row + 1, real]
        own = greedy(models(name), *alone)
        assert own.tolist() == generated(modules(name), *alone).tolist()
        assert own.tolist() == got[row : row + 1].tolist()


@pytest.mark.parametrize("name", WINDOWED)
def test_window_matters(name, models):
    """The prompt and the new tokens go past the window, or the test above would say nothing."""
    tokens, mask = ragged_prompt()
    wide = bridge.load(tiny_module(name, sliding_window=64))
    assert greedy(wide, tokens, mask).tolist() != greedy(models(name), tokens, mask).tolist()


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "opt", "deepseek_v3"])
def test_logits_equal_the_forward(name, modules, models):
    """Prefill logits at real tokens, and hidden states, are those of the forward without cache."""
    tokens, mask = ragged_prompt()
    model = models(name)
    cache = model.init_cache(*tokens.shape)
    out = model.prefill(model.params, tokens, cache, mask=mask)
    with torch.no_grad():
        expected = modules(name)(
            tokens,
            attention_mask=mask.long(),
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            output_hidden_states=True,
        )
    assert_close(out.logits[mask], expected.logits[mask])
    assert_close(out.hidden_states[mask], expected.hidden_states[-1][mask])


def test_16_bit(models):
    """bf16 goes through, with the cache in bf16."""
    model = bridge.load(tiny_module("llama").to(torch.bfloat16))
    tokens, mask = ragged_prompt()
    out = model.prefill(model.params, tokens, model.init_cache(3, 9), mask=mask)
    assert out.logits.dtype == out.cache.layers["layers"][0]["k"].dtype == torch.bfloat16
    exact = models("llama").prefill(
        models("llama").params, tokens, models("llama").init_cache(3, 9), mask=mask
    )
    torch.testing.assert_close(out.logits[mask].float(), exact.logits[mask], atol=0.3, rtol=0.1)


def test_the_support_table_lists_every_family():
    """docs/families.md is written by `tests/bridge/support_table.py`; it may not be left behind."""
    table = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| ([\w ]+) \| [\w]+ \|", table, flags=re.MULTILINE))
    assert listed >= {*FAMILIES, *(f"seq2seq {name}" for name in SEQ2SEQ)}
