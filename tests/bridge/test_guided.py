"""Unbatched guidance: the tokens of transformers, plain at scale 1, the same again when used again."""

from __future__ import annotations

import pytest
import torch

import purgen
from tests.bridge.families import PAD, ragged_prompt

NEW = 16


def theirs(module, scale, negative=None):
    tokens, mask = ragged_prompt()
    options = {}
    if negative is not None:
        options = {
            "negative_prompt_ids": negative.tokens,
            "negative_prompt_attention_mask": negative.mask.long(),
        }
    out = module.generate(
        tokens,
        attention_mask=mask.long(),
        do_sample=False,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        guidance_scale=scale,
        **options,
    )
    return out[:, tokens.shape[1] :]


def generate(model, **settings):
    tokens, mask = ragged_prompt()
    decoder = purgen.guided(model, stop=purgen.any_of(), **settings)
    prompt = purgen.Prompt(tokens=tokens, mask=mask)
    return purgen.generate(
        decoder,
        model.params,
        prompt,
        rng_key=purgen.random.key(0),
        max_new_tokens=NEW,
        record=["logprob", "model_logprob"],
    )


@pytest.mark.parametrize("scale", [1.5, 3.0, 0.5])
@pytest.mark.parametrize("with_negative", [False, True])
def test_equals_transformers(scale, with_negative, modules, models):
    negative = None
    if with_negative:
        negative = purgen.Prompt.from_lists([[9, 8, 7], [30, 31, 32], [50, 5, 6]], pad_token_id=PAD)
    out = generate(models("llama"), scale=scale, negative_prompt=negative)
    assert out.new_tokens.tolist() == theirs(modules("llama"), scale, negative).tolist()
    assert out.new_tokens.tolist() != generate(models("llama"), scale=1.0).new_tokens.tolist()


def test_scale_1_is_plain_decoding_to_the_last_bit(models):
    model = models("llama")
    tokens, mask = ragged_prompt()
    for do_sample, make in ((False, purgen.greedy), (True, purgen.sample)):
        guided = generate(model, scale=torch.tensor([1.0, 1.0, 1.0]), do_sample=do_sample)
        plain = purgen.generate(
            make(model, stop=purgen.any_of()),
            model.params,
            purgen.Prompt(tokens=tokens, mask=mask),
            rng_key=purgen.random.key(0),
            max_new_tokens=NEW,
            record=["logprob", "model_logprob"],
        )
        assert torch.equal(guided.sequences, plain.sequences)
        for name in ("logprob", "model_logprob"):
            assert torch.equal(guided.record[name], plain.record[name])


def test_one_decoder_used_again_gives_the_same(models):
    tokens, mask = ragged_prompt()
    model = models("llama")
    decoder = purgen.guided(model, scale=2.0, stop=purgen.any_of())
    prompt = purgen.Prompt(tokens=tokens, mask=mask)
    other = purgen.Prompt(tokens=tokens.flip(0), mask=mask.flip(0))
    runs = [
        purgen.generate(decoder, model.params, given, max_new_tokens=NEW).new_tokens
        for given in (prompt, other, prompt)
    ]
    assert torch.equal(runs[0], runs[2])
    assert torch.equal(runs[0], runs[1].flip(0))


def test_forbidden_tokens_stay_forbidden():
    model = purgen.testing.toy_model(vocab_size=12)
    allowed = purgen.suppress_tokens(range(6))
    decoder = purgen.guided(model, scale=4.0, transform=allowed)
    prompt = purgen.Prompt.from_lists([[1, 2], [3]], pad_token_id=0)
    out = purgen.generate(decoder, model.params, prompt, max_new_tokens=9)
    assert (out.new_tokens >= 6).all()


def test_bad_arguments_are_refused():
    model = purgen.testing.toy_model()
    with pytest.raises(ValueError, match="scale must be at most .* not inf"):
        purgen.guided(model, scale=torch.inf)
    negative = purgen.Prompt.from_lists([[1], [2]], pad_token_id=0)
    decoder = purgen.guided(model, scale=2.0, negative_prompt=negative)
    prompt = purgen.Prompt.from_lists([[1], [2], [3]], pad_token_id=0)
    with pytest.raises(ValueError, match="negative_prompt has 2 rows; the prompt has 3"):
        purgen.generate(decoder, model.params, prompt, max_new_tokens=2)
    drawing = purgen.guided(model, scale=2.0, do_sample=True)
    with pytest.raises(ValueError, match="rng_key is None"):
        purgen.generate(drawing, model.params, prompt, max_new_tokens=2)
