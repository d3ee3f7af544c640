"""Transforms with state a slot, in transformers' own loop, whose text grows call by call."""

from __future__ import annotations

import pytest
import transformers

import bridge
import purgen
from tests.bridge.families import PAD, ragged_prompt


@pytest.mark.parametrize("num_beams", [1, 2])
def test_dry_in_generate(num_beams, modules, models):
    tokens, mask = ragged_prompt()
    dry = purgen.dry(3.0, allowed_length=1)
    processor = bridge.to_logits_processor(dry, pad_token_id=PAD, prompt_mask=mask)
    out = modules("llama").generate(
        tokens,
        attention_mask=mask.long(),
        do_sample=False,
        num_beams=num_beams,
        min_new_tokens=12,
        max_new_tokens=12,
        logits_processor=transformers.LogitsProcessorList([processor]),
    )
    assert out.shape[1] == tokens.shape[1] + 12
    if num_beams == 1:
        decoder = purgen.greedy(models("llama"), transform=dry, stop=purgen.any_of())
        prompt = purgen.Prompt(tokens=tokens, mask=mask)
        ours = purgen.generate(decoder, models("llama").params, prompt, max_new_tokens=12)
        assert ours.sequences.tolist() == out.tolist()
