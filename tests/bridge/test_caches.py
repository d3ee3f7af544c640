"""Kinds of caches: what they hold, what they cost, how far they go back."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves, tree_map

import bridge
import purgen
from tests.bridge.families import (
    BATCHING,
    NEW_TOKENS,
    WINDOW,
    assert_close,
    assert_same,
    generated,
    greedy,
    prefilled,
    ragged_prompt,
    tiny_module,
)

pytestmark = pytest.mark.filterwarnings(BATCHING)

TOKENS = torch.tensor([[5, 90, 17], [44, 3, 120], [61, 61, 8]])
SLACK = 4
KINDS = {
    "full": None,
    "ring": bridge.ring_cache(slack=SLACK),
    "tight ring": bridge.ring_cache(slack=0),
    "int8": bridge.quantized_cache(),
}
RINGED = ("mistral", "gemma2", "gemma3_text", "phi3", "gpt_oss", "olmo3")


@functools.cache
def model_of(name, kind):
    return bridge.load(tiny_module(name), cache=KINDS[kind])


@pytest.mark.parametrize("kind", ["ring", "tight ring"])
@pytest.mark.parametrize("name", RINGED)
def test_ring_gives_the_tokens_of_generate(name, kind, modules):
    """Prompt and new tokens go past the window several times."""
    tokens, mask = ragged_prompt()
    got = greedy(model_of(name, kind), tokens, mask)
    assert got.tolist() == generated(modules(name), tokens, mask).tolist()


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
@pytest.mark.parametrize("kind", ["ring", "tight ring"])
def test_ring_is_the_full_cache(name, kind):
    """Single tokens, blocks of any size, rows anywhere, rewinding within the slack."""
    model, full = model_of(name, kind), model_of(name, "full")
    caches = [prefilled(each, room=60) for each in (model, full)]
    for width in (1, 3, 2, 1, SLACK + 1, SLACK + 2, WINDOW + SLACK + 1):
        tokens = (torch.arange(3 * width).reshape(3, width) * 7 + 3) % 128
        outs = [
            each.apply(each.params, tokens, cache)
            for each, cache in zip((model, full), caches, strict=True)
        ]
        assert_close(outs[0].logits, outs[1].logits)
        caches = [out.cache for out in outs]
    if kind == "tight ring":
        return
    back = caches[1].cache_position - torch.tensor([0, SLACK, 2])
    outs = [
        each.apply(each.params, TOKENS[:, :2], purgen.replace(cache, cache_position=back))
        for each, cache in zip((model, full), caches, strict=True)
    ]
    assert_close(outs[0].logits, outs[1].logits)


def test_ring_refuses_what_is_gone():
    model = model_of("mistral", "ring")
    cache = model.apply(model.params, TOKENS, prefilled(model)).cache
    far = purgen.replace(cache, cache_position=cache.cache_position - SLACK - 1)
    with pytest.raises(ValueError, match=r"cache_position of row 0 is 7, .* rewound by 4"):
        model.apply(model.params, TOKENS[:, :1], far)
    full = model_of("mistral", "full")
    cache = full.apply(full.params, TOKENS, prefilled(full)).cache
    full.apply(full.params, TOKENS[:, :1], purgen.replace(cache, cache_position=far.cache_position))


def test_a_stopped_row_keeps_its_ring():
    """Neighbours that run on in lockstep do not write over what a row that has stopped holds."""
    model = model_of("mistral", "ring")
    tokens, mask = ragged_prompt()
    prompt = purgen.Prompt(tokens=tokens, mask=mask)
    budget = torch.tensor([3, NEW_TOKENS, 2])
    stopping = purgen.greedy(model, stop=purgen.max_new_tokens(budget))
    out = purgen.generate(stopping, model.params, prompt, max_new_tokens=NEW_TOKENS)
    running = purgen.greedy(model, stop=purgen.any_of())
    whole = purgen.generate(running, model.params, prompt, max_new_tokens=NEW_TOKENS)
    fresh = running.init(model.params, prompt, max_new_tokens=NEW_TOKENS)
    revived = purgen.replace(
        out.state,
        stopped=torch.tensor([False, True, False]),
        stop_reason=torch.tensor([0, 3, 0]),
        stop=fresh.stop,
    )
    again = purgen.resume(running, model.params, revived)
    assert again.new_tokens.tolist() == whole.new_tokens.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gemma2", "deepseek_v3", "falcon_h1"])
def test_bytes(name, kind):
    """What a layout says of a row is what its buffers take."""
    model = model_of(name, kind)
    for length in (9, 50):
        cache = model.init_cache(2, length)
        for layer, entry in enumerate(cache.layers["layers"]):
            held = sum(leaf.nbytes for leaf in entry.values())
            assert model.layout.bytes_per_row(length, layer) * 2 == held
        held = sum(leaf.nbytes for leaf in tree_leaves(cache.layers["layers"]))
        assert model.layout.bytes_per_row(length) * 2 == held
    longer, shorter = (model.layout.bytes_per_row(length) for length in (1001, 1000))
    assert model.layout.bytes_per_token() == longer - shorter


def test_int8_takes_less_and_is_near():
    full, model = model_of("llama", "full"), model_of("llama", "int8")
    assert model.layout.bytes_per_token() < 0.4 * full.layout.bytes_per_token()
    out, exact = (each.apply(each.params, TOKENS, prefilled(each)) for each in (model, full))
    error = (out.logits - exact.logits).square().mean().sqrt() / exact.logits.square().mean().sqrt()
    assert 0 < error < 0.02
    entry, want = out.cache.layers["layers"][0], exact.cache.layers["layers"][0]["k"]
    held = entry["k"].float() * entry["k_scale"]
    assert ((held - want).abs() <= entry["k_scale"] / 2 + 1e-6).all()


def test_int8_is_exact_on_what_it_holds():
    """Reordered, repeated, rewound: bit for bit what was written, and the same logits."""
    model = model_of("llama", "int8")
    cache = prefilled(model)
    further = model.apply(model.params, TOKENS, cache)
    index = torch.tensor([2, 0, 0])
    picked = purgen.select_rows(further.cache, index)
    for name in ("k", "k_scale", "v", "v_scale"):
        leaf = further.cache.layers["layers"][1][name]
        assert torch.equal(picked.layers["layers"][1][name], leaf[index])
        assert torch.equal(leaf[:, :, :9], cache.layers["layers"][1][name][:, :, :9])
    after = model.apply(model.params, TOKENS[:, :1], further.cache)
    assert_close(model.apply(model.params, TOKENS[index, :1], picked).logits, after.logits[index])
    back = purgen.replace(further.cache, cache_position=cache.cache_position)
    assert_same(model.apply(model.params, TOKENS, back).logits, further.logits)
    logits, stepped = [], cache
    for column in range(3):
        out = model.apply(model.params, TOKENS[:, column : column + 1], stepped)
        stepped = out.cache
        logits.append(out.logits)
    assert_close(torch.cat(logits, 1), further.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_and_growth(kind):
    model = model_of("gemma2", kind)
    cache = prefilled(model, room=5)
    implicit = model.apply(model.params, TOKENS, cache)
    for position in (torch.tensor(9), torch.tensor([9, 9, 9])):
        assert_same(model.apply(model.params, TOKENS, cache, cache_position=position), implicit)
    longer = model.apply(model.params, TOKENS, cache.layout.resized(cache, 30))
    assert_close(longer.logits, implicit.logits)
    assert implicit.cache.seen(0).tolist() == [12, 12, 12]
    assert implicit.cache.held(0).tolist() == [WINDOW] * 3
    assert implicit.cache.held(1).tolist() == [12, 12, 12]


@pytest.mark.parametrize("kind", ["ring", "int8", "sinks"])
def test_compiles_once_and_vmaps(kind):
    model = sinks_of("llama") if kind == "sinks" else model_of("gemma2", kind)
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.apply, backend=counter, fullgraph=True)
    first = cache = prefilled(model)
    for _ in range(8):
        out = compiled(model.params, TOKENS[:, :1], cache)
        assert_close(out.logits, model.apply(model.params, TOKENS[:, :1], cache).logits)
        cache = out.cache
    assert counter.frame_count == 1
    caches = tree_map(lambda *leaves: torch.stack(leaves), first, cache)
    out = torch.vmap(lambda cache: model.apply(model.params, TOKENS[:, :1], cache).logits)(caches)
    for lane, each in enumerate((first, cache)):
        assert_close(out[lane], model.apply(model.params, TOKENS[:, :1], each).logits)


SINKS, RECENT = 3, 5


@functools.cache
def sinks_of(name, **changes):
    kind = bridge.attention_sinks(sinks=SINKS, recent=RECENT)
    return bridge.load(tiny_module(name, **changes), cache=kind)


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "phi3", "gemma3_text"])
def test_sinks_are_what_the_held_tokens_give(name):
    """With one layer, keys depend on a token alone: the model, fed just what is held, is the oracle."""
    changes = {"phi3": {"sliding_window": None}, "gemma3_text": {"layer_types": ["full_attention"]}}
    module = tiny_module(name, num_hidden_layers=1, **changes.get(name, {}))
    kind = bridge.attention_sinks(sinks=SINKS, recent=RECENT)
    model = bridge.load(module, cache=kind)
    tokens, mask = ragged_prompt()
    text = (torch.arange(3 * 14).reshape(3, 14) * 11 + 3) % 128
    cache = model.init_cache(3, 40)
    out = model.prefill(model.params, tokens, cache, mask=mask)
    for step in range(14):
        out = model.apply(model.params, text[:, step : step + 1], out.cache)
        for row in range(3):
            whole = torch.cat([tokens[row][mask[row]], text[row, : step + 1]])
            held = whole
            if len(whole) > SINKS + RECENT:
                held = torch.cat([whole[:SINKS], whole[-RECENT:]])
            with torch.no_grad():
                expected = module(held[None]).logits[0, -1]
            assert_close(out.logits[row, 0], expected)
            assert int(out.cache.held(0)[row]) == len(held)
            assert int(out.cache.seen(0)[row]) == 9 + step + 1


def test_sinks_hold_everything_of_a_short_text(modules):
    model, tokens_mask = sinks_of("llama"), ragged_prompt()
    short = [part[:, -6:] for part in tokens_mask]
    got = greedy(model, *short, new_tokens=3)
    full = greedy(model_of("llama", "full"), *short, new_tokens=3)
    assert got.tolist() == full.tolist()


@pytest.mark.parametrize("loop", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_sinks_stream_past_the_window(loop):
    model = sinks_of("llama")
    tokens, mask = ragged_prompt()
    prompt = purgen.Prompt(tokens=tokens, mask=mask)
    decoder = purgen.greedy(model, stop=purgen.any_of())
    out = purgen.generate(decoder, model.params, prompt, max_new_tokens=30, loop=loop)
    assert out.new_tokens.tolist() == greedy(model, tokens, mask, new_tokens=30).tolist()
    assert out.state.cache.held(0).tolist() == [SINKS + RECENT] * 3
    for row in range(3):
        alone = tokens[row : row + 1, mask[row]], mask[row : row + 1, mask[row]]
        assert (
            greedy(model, *alone, new_tokens=30).tolist() == out.new_tokens[row : row + 1].tolist()
        )


@pytest.mark.parametrize("name", ["gpt2", "bloom", "opt", "llama4_text", "smollm3"])
def test_sinks_need_rotations(name):
    with pytest.raises(bridge.Unsupported, match="attention sinks need keys that move"):
        sinks_of(name)


def test_zeros_are_nothing_special():
    """Keys and values that are exactly zero count like any others."""
    module = tiny_module("llama")
    for layer in module.model.layers:
        for part in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.zeros_(part.weight)
    model = bridge.load(module)
    tokens, mask = ragged_prompt()
    assert greedy(model, tokens, mask).tolist() == generated(module, tokens, mask).tolist()
    cache = prefilled(model)
    assert not tree_leaves(cache.layers["layers"])[0].any()
    assert cache.seen().tolist() == [9, 9, 9]


def test_errors():
    with pytest.raises(ValueError, match="slack must be an int of at least 0, not -1"):
        bridge.ring_cache(slack=-1)
    with pytest.raises(ValueError, match="bits must be 8, not 3"):
        bridge.quantized_cache(bits=3)
    with pytest.raises(ValueError, match="recent must be an int of at least 1, not 0"):
        bridge.attention_sinks(recent=0)
    with pytest.raises(ValueError, match="layer must be 0 to 1, not 2"):
        prefilled(model_of("llama", "full")).seen(2)
