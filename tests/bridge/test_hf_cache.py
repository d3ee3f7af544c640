"""Caches that cross over in the midst of a text: purgen to transformers, transformers to purgen."""

from __future__ import annotations

import inspect

import pytest
import torch
import transformers
from torch.utils._pytree import tree_map
from transformers.masking_utils import create_chunked_causal_mask

import bridge
import purgen
from tests.bridge.families import (
    FAMILIES,
    VOCAB,
    assert_close,
    assert_same,
    generated,
    greedy,
    prefilled,
    ragged_prompt,
    tiny_module,
)

HALF = 9  # new tokens before the crossing: past the window of those that have one
# transformers 5.17 calls its own masks of chunks with an argument that they do not take.
STATIC_CHUNKS = "block_sequence_ids" in inspect.signature(create_chunked_causal_mask).parameters
# Their modules read a mask with a prompt alone; `generate`, given a filled cache, hands them one.
MASKED_ONCE = ("mamba", "mamba2")
NO_STATIC_CHUNKS = "this transformers refuses a static cache for layers in chunks"
# Their modules take no StaticCache of transformers' own: biases come from a mask as long as the text.
GROWING = ("bloom", "falcon_alibi")
KINDS = (
    "llama",
    "mistral",
    "gemma2",
    "gpt2",
    "bloom",
    "qwen3_next",
    "falcon_h1",
    "llama4_text",
    "mamba",
    "mamba2",
)


def argument(module):
    """Returns what this version of transformers calls the cache."""
    accepted = inspect.signature(type(module).forward).parameters
    return next(n for n in ("cache", "past_key_values", "cache_params") if n in accepted)


def half_way(module, tokens, mask, **options):
    """Returns the sequences and the cache of transformers after HALF new tokens."""
    out = module.generate(
        tokens,
        attention_mask=mask.long(),
        do_sample=False,
        min_new_tokens=HALF,
        max_new_tokens=HALF,
        return_dict_in_generate=True,
        **options,
    )
    held = getattr(out, "cache", None)
    held = held if held is not None else getattr(out, "past_key_values", None)
    return out.sequences, held if held is not None else out.cache_params


def going_on(name, module, text, mask, view):
    """Returns int64 [B, P + HALF]: what transformers makes of a text with its last token unread."""
    if name in MASKED_ONCE:
        for _ in range(HALF):
            inputs = module.prepare_inputs_for_generation(
                text[:, -1:], use_cache=True, is_first_iteration=False, **{argument(module): view}
            )
            with torch.no_grad():
                token = module(**inputs).logits[:, -1:].argmax(-1)
            text = torch.cat([text, token], dim=1)
        return text
    return module.generate(
        text,
        attention_mask=torch.nn.functional.pad(mask.long(), (0, 1), value=1),
        do_sample=False,
        min_new_tokens=HALF,
        max_new_tokens=HALF,
        **{argument(module): view},
    )


def continued(model, cache, token, count):
    """Returns int64 [B, count]: greedy tokens after `token`, by `apply` alone."""
    chosen = []
    for _ in range(count):
        out = model.apply(model.params, token[:, None], cache)
        cache, token = out.cache, out.logits[:, -1].argmax(-1)
        chosen.append(token)
    return torch.stack(chosen, dim=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_dynamic_cache_goes_on(name, modules, models):
    tokens, mask = ragged_prompt()
    module, model = modules(name), models(name)
    expected = generated(module, tokens, mask)
    sequences, held = half_way(module, tokens, mask)
    fed = sequences.shape[1] - 1
    seen = torch.nn.functional.pad(mask, (0, HALF - 1), value=True)
    before = [getattr(layer, "keys", None) for layer in held.layers]
    before = [None if keys is None else keys.clone() for keys in before]
    cache = bridge.from_hf_cache(model, held, attention_mask=seen, max_length=40)
    assert cache.seen().tolist() == [fed] * 3
    rest = continued(model, cache, sequences[:, -1], 20 - HALF)
    assert rest.tolist() == expected[:, HALF:].tolist()
    for layer, keys in zip(held.layers, before, strict=True):
        assert keys is None or torch.equal(layer.keys, keys)


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "qwen3_next", "llama4_text"])
@pytest.mark.parametrize("length", [18, 40])
def test_a_static_cache_goes_on(name, length, modules, models):
    if name == "llama4_text" and not STATIC_CHUNKS:
        pytest.skip(NO_STATIC_CHUNKS)
    tokens, mask = ragged_prompt()
    module, model = modules(name), models(name)
    held = transformers.StaticCache(config=module.config, max_cache_len=length)
    sequences, _ = half_way(module, tokens, mask, **{argument(module): held})
    seen = torch.nn.functional.pad(mask, (0, HALF - 1), value=True)
    cache = bridge.from_hf_cache(model, held, attention_mask=seen, max_length=40)
    rest = continued(model, cache, sequences[:, -1], 20 - HALF)
    assert rest.tolist() == generated(module, tokens, mask)[:, HALF:].tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_goes_on(name, modules, models):
    """Its own `generate` continues on a cache of ours, and what it leaves goes on with us."""
    if name == "llama4_text" and not STATIC_CHUNKS:
        pytest.skip(NO_STATIC_CHUNKS)
    tokens, mask = ragged_prompt()
    module, model = modules(name), models(name)
    expected = greedy(model, tokens, mask)
    cache = model.init_cache(3, 40)
    out = model.prefill(model.params, tokens, cache, mask=mask)
    given, first = out.cache, out.logits[:, -1].argmax(-1)
    kept = tree_map(torch.clone, given)
    view = bridge.as_hf_cache(given, static=name not in GROWING)
    assert view.get_seq_length() == 9
    text = torch.cat([tokens, first[:, None]], dim=1)
    result = going_on(name, module, text, mask, view)
    assert result[:, 10:].tolist() == expected[:, 1 : HALF + 1].tolist()
    assert view.get_seq_length() == 9 + HALF
    assert_same(given, kept)
    after = view.value
    assert after.cache_position.tolist() == [9 + HALF] * 3
    assert torch.equal(view.attention_mask, after.layers["valid"][:, : 9 + HALF].long())
    rest = continued(model, after, result[:, -1], 20 - HALF - 1)
    assert rest.tolist() == expected[:, HALF + 1 :].tolist()


@pytest.mark.parametrize("name", KINDS)
def test_transformers_begins(name, modules, models):
    """A prompt that the module reads into an empty cache."""
    tokens, mask = ragged_prompt()
    module, model = modules(name), models(name)
    empty = model.init_cache(3, 40)
    view = bridge.as_hf_cache(empty, attention_mask=mask, static=name not in GROWING)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    accepted = inspect.signature(type(module).forward).parameters
    extra = {"position_ids": positions} if "position_ids" in accepted else {}
    with torch.no_grad():
        module(tokens, attention_mask=mask.long(), **extra, **{argument(module): view})
    ours = prefilled(model, room=31)
    got = view.value
    first = torch.tensor([5, 44, 61])
    assert torch.equal(got.layers["valid"], ours.layers["valid"])
    assert continued(model, got, first, 6).tolist() == continued(model, ours, first, 6).tolist()


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "falcon_h1", "mamba", "mamba2"])
def test_values_stay(name, modules, models):
    """Each call leaves a value that later calls do not change: two continuations of one cache."""
    module, model = modules(name), models(name)
    view = bridge.as_hf_cache(prefilled(model))
    token = torch.tensor([[5], [44], [61]])

    def fed(token):
        seen = torch.nn.functional.pad(view.attention_mask, (0, 1), value=1)
        with torch.no_grad():
            inputs = module.prepare_inputs_for_generation(
                token,
                attention_mask=seen,
                position_ids=(seen.cumsum(1) - 1)[:, -1:],
                use_cache=True,
                is_first_iteration=False,
                **{argument(module): view},
            )
            return module(**inputs).logits

    fed(token)
    value = view.value
    kept = tree_map(torch.clone, value)
    left = fed(token + 1)
    assert_same(value, kept)
    right = model.apply(model.params, token + 1, value)
    assert_close(left, right.logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "mamba"])
@pytest.mark.parametrize("padded", [False, True])
def test_compiled_calls(name, padded):
    """The length is right before, between and after compiled calls, and one program is enough."""
    torch._dynamo.reset()
    module = tiny_module(name)
    model = bridge.load(module)
    tokens, mask = ragged_prompt()
    mask = mask if padded else torch.ones_like(mask)
    cache = model.prefill(model.params, tokens, model.init_cache(3, 24), mask=mask).cache
    view = bridge.as_hf_cache(cache)
    step = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)
    ours = torch.compile(model.apply, backend="aot_eager", fullgraph=True, dynamic=False)
    token = torch.tensor([[5], [44], [61]])
    with torch.no_grad():
        for count in range(4):
            assert view.get_seq_length() == 9 + count
            assert cache.seen().tolist() == [9 + count] * 3
            given = {}
            if padded and name not in MASKED_ONCE:
                seen = torch.nn.functional.pad(mask.long(), (0, count + 1), value=1)
                full = torch.nn.functional.pad(seen, (0, 24 - seen.shape[1]))
                given = {
                    "attention_mask": full,
                    "position_ids": (seen.cumsum(1) - 1)[:, -1:].clone(),
                }
            logits = step(token, **given, **{argument(module): view}).logits
            out = ours(model.params, token, cache)
            assert_close(logits, out.logits)
            cache = out.cache
            token = logits[:, -1:].argmax(-1)
            if count == 0:
                torch._dynamo.config.error_on_recompile = True
    torch._dynamo.config.error_on_recompile = False
    assert_close(view.value, cache)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_what_a_window_has_dropped_is_not_gone_back_to(name, modules, models):
    module, model, (tokens, mask) = modules(name), models(name), ragged_prompt()
    sequences, held = half_way(module, tokens, mask)
    fed = sequences.shape[1] - 1
    seen = torch.nn.functional.pad(mask, (0, HALF - 1), value=True)
    cache = bridge.from_hf_cache(model, held, attention_mask=seen, max_length=40)
    token = sequences[:, -1:]
    went_on = model.apply(model.params, token, cache).cache
    view = bridge.as_hf_cache(went_on).value
    for later in (cache, went_on, view):
        with pytest.raises(ValueError, match=rf"row 0 is {fed - 1}; .* {fed} is the lowest"):
            model.apply(model.params, token, later, cache_position=cache.cache_position - 1)
    again = model.apply(model.params, token, went_on, cache_position=cache.cache_position)
    assert_close(again.cache, went_on)
    whole = bridge.from_hf_cache(
        models("llama"), half_way(modules("llama"), tokens, mask)[1], attention_mask=seen
    )
    assert "floor" not in whole.layers


def test_beams(modules, models):
    """transformers reorders the rows of a view; the cache that was given keeps its own."""
    model = models("llama")
    cache = prefilled(model)
    kept = tree_map(torch.clone, cache)
    view = bridge.as_hf_cache(cache)
    view.reorder_cache(torch.tensor([2, 2, 0]))
    assert_same(cache, kept)
    assert torch.equal(
        view.value.layers["layers"][0]["k"], kept.layers["layers"][0]["k"][[2, 2, 0]]
    )


def test_a_view_can_be_taken_over(models):
    model = models("gemma2")
    cache = prefilled(model)
    _, mask = ragged_prompt()
    again = bridge.from_hf_cache(
        model, bridge.as_hf_cache(cache), attention_mask=mask, max_length=21
    )
    assert_same(again, cache)


def test_wrong_uses(modules, models):
    model, (tokens, mask) = models("llama"), ragged_prompt()
    cache = prefilled(model)
    ragged = purgen.replace(cache, cache_position=torch.tensor([9, 8, 9]))
    with pytest.raises(ValueError, match=r"rows of cache are at positions \[9, 8, 9\]"):
        bridge.as_hf_cache(ragged)
    with pytest.raises(ValueError, match="attention_mask is None and cache is empty"):
        bridge.as_hf_cache(model.init_cache(3, 9))
    with pytest.raises(ValueError, match=r"\[3, 0 to 9\], not bool \[3, 10\]"):
        bridge.as_hf_cache(
            model.init_cache(3, 9), attention_mask=torch.ones(3, 10, dtype=torch.bool)
        )
    with pytest.raises(bridge.Unsupported, match="that of a decoder from bridge.load"):
        bridge.as_hf_cache(purgen.Cache(layers=(), cache_position=torch.zeros(1).long()))

    sequences, held = half_way(modules("llama"), tokens, mask)
    with pytest.raises(ValueError, match=r"= \[3, 17\], not bool \[3, 9\]"):
        bridge.from_hf_cache(model, held, attention_mask=mask)
    with pytest.raises(ValueError, match="max_length is 16, but hf_cache has been fed 17"):
        bridge.from_hf_cache(model, held, max_length=16)
    holes = torch.ones(3, 17, dtype=torch.bool)
    holes[1, 4] = False
    with pytest.raises(ValueError, match="row 1 has a pad after a real token"):
        bridge.from_hf_cache(model, held, attention_mask=holes)
    with pytest.raises(ValueError, match="a cache of another model"):
        bridge.from_hf_cache(models("qwen3"), half_way(modules("gpt2"), tokens, mask)[1])
    with pytest.raises(ValueError, match="layers"):
        bridge.from_hf_cache(models("jamba"), held)
    with pytest.raises(ValueError, match="hf_cache is empty"):
        bridge.from_hf_cache(model, transformers.DynamicCache(config=modules("llama").config))
    with pytest.raises(bridge.Unsupported, match="must be a DynamicCache, .* not tuple"):
        bridge.from_hf_cache(model, ())
    with pytest.raises(ValueError, match="attention_mask is needed"):
        bridge.from_hf_cache(models("mamba"), half_way(modules("mamba"), tokens, mask)[1])
    with pytest.raises(bridge.Unsupported, match="states cannot be cropped"):
        bridge.as_hf_cache(prefilled(models("mamba"))).crop(-1)
    # A window of which too much is gone: that of the module is shorter.
    narrow = half_way(tiny_module("mistral", sliding_window=4), tokens, mask)[1]
    with pytest.raises(
        ValueError, match=r"holds 3 slots, but the model still sees 5: they are gone"
    ):
        bridge.from_hf_cache(models("mistral"), narrow)
    assert sequences.max() < VOCAB
