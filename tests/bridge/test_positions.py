"""Prompts in pieces, prefixes used again, several sequences in a row."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map

import bridge
import purgen
from tests.bridge.families import BATCHING, assert_close, assert_same, ragged_prompt, tiny_module

FAMILIES = ("llama", "mistral", "gemma2", "gpt2", "deepseek_v3", "bloom", "mamba2", "qwen3_next")


@pytest.mark.parametrize("name", [*FAMILIES, "mamba", "llama4_text"])
@pytest.mark.parametrize("size", [1, 4, 20])
def test_prefill_in_pieces(name, size, models):
    """The same logits and cache as in one piece, pads among them."""
    model = models(name)
    tokens, mask = ragged_prompt()
    pieces = purgen.chunked_prefill(model, size=size)
    cache = model.init_cache(3, 12)
    whole = model.prefill(model.params, tokens, cache, mask=mask)
    out = pieces.prefill(model.params, tokens, cache, mask=mask)
    assert_close(out.logits[mask], whole.logits[mask])
    assert torch.equal(out.cache.layers["valid"], whole.cache.layers["valid"])
    following = tokens[:, -1:]
    assert_close(
        model.apply(model.params, following, out.cache).logits,
        model.apply(model.params, following, whole.cache).logits,
    )
    short = pieces.prefill(model.params, tokens, cache, mask=mask, logits=False)
    assert_same(short.cache, out.cache)
    decoders = [purgen.greedy(each, stop=purgen.any_of()) for each in (model, pieces)]
    prompt = purgen.Prompt(tokens=tokens, mask=mask)
    runs = [purgen.generate(each, model.params, prompt, max_new_tokens=6) for each in decoders]
    assert torch.equal(runs[0].new_tokens, runs[1].new_tokens)


def test_pieces_bound_the_memory(models):
    """No tensor of a prefill in pieces is as large as a mask over the whole prompt."""
    model, largest = models("llama"), []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes():
                largest.append(out.untyped_storage().nbytes())
            return out

    tokens = torch.arange(100)[None] % 128
    mask = torch.ones_like(tokens, dtype=torch.bool)
    peaks = []
    for each in (model, purgen.chunked_prefill(model, size=10)):
        cache = model.init_cache(1, 100)
        largest.clear()
        with Watch():
            each.prefill(model.params, tokens, cache, mask=mask, logits=False)
        peaks.append(max(largest))
    kept = max(leaf.nbytes for leaf in cache.layers["layers"][0].values())
    assert peaks[0] >= 4 * 100 * 100
    assert peaks[1] <= max(kept, peaks[0] // 2)


def test_sizes_are_checked(models):
    with pytest.raises(ValueError, match="size must be an int of at least 1, not 0"):
        purgen.chunked_prefill(models("llama"), size=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prefix_is_read_once(name, models):
    """One prefill, repeated, goes on with other suffixes as each whole text does."""
    model = models(name)
    prefix, suffixes = torch.tensor([[7, 99, 23, 42]]), torch.tensor([[5, 61], [44, 3], [5, 90]])
    ones = torch.ones_like(prefix, dtype=torch.bool)
    once = model.prefill(model.params, prefix, model.init_cache(1, 10), mask=ones).cache
    cache = purgen.repeat_rows(once, 3)
    for column in range(2):
        out = model.apply(model.params, suffixes[:, column : column + 1], cache)
        cache = out.cache
    texts = torch.cat([prefix.expand(3, -1), suffixes], dim=1)
    whole = model.prefill(
        model.params,
        texts,
        model.init_cache(3, 10),
        mask=torch.ones_like(texts, dtype=torch.bool),
    )
    assert_close(out.logits[:, 0], whole.logits[:, -1])
    assert once.cache_position.tolist() == [4], "the prefix is as it was"


PACKED = (
    "llama mistral gemma2 gemma3_text gpt2 deepseek_v3 bloom falcon_alibi llama4_text gpt_oss "
    "gemma3n_text"
)


@pytest.mark.parametrize("name", PACKED.split())
def test_packing(name, models):
    """Sequences of one row, told apart by a mask, give what each gives alone.

    They do so in a first call, and when one goes on at the end of the row, others in between: windows,
    chunks and distances count a sequence's own tokens.
    """
    model = models(name)
    parts = [torch.arange(n) * 5 + 3 + n for n in (9, 4, 8)]
    row = torch.cat(parts)[None]
    which = torch.cat([torch.full((len(part),), index) for index, part in enumerate(parts)])
    causal = torch.ones(len(which), len(which), dtype=torch.bool).tril()
    mask = (which[:, None] == which[None, :]) & causal
    positions = torch.cat([torch.arange(len(part)) for part in parts])[None]
    empty = model.init_cache(1, 40)
    out = model.apply(
        model.params,
        row,
        empty,
        attention_mask=mask[None, None],
        position_ids=positions,
    )
    for index, part in enumerate(parts):
        alone = model.prefill(
            model.params,
            part[None],
            model.init_cache(1, 40),
            mask=torch.ones(1, len(part), dtype=torch.bool),
        )
        assert_close(out.logits[:, which == index], alone.logits)
        own = (which == index)[None, None, None].expand(1, 1, 2, -1)
        new = torch.ones(2, 2, dtype=torch.bool).tril()[None, None]
        further = model.apply(
            model.params,
            torch.tensor([[17, 90]]),
            out.cache,
            attention_mask=torch.cat([own, new], dim=3),
            position_ids=len(part) + torch.arange(2)[None],
        )
        expected = model.apply(model.params, torch.tensor([[17, 90]]), alone.cache)
        assert_close(further.logits, expected.logits)


@pytest.mark.filterwarnings(BATCHING)
@pytest.mark.parametrize("name", ["gemma2", "bloom"])
def test_packing_compiles_and_vmaps(name, models):
    model = models(name)
    tokens = torch.tensor([[5, 6, 7, 5]])
    mask = torch.block_diag(torch.ones(2, 2).tril(), torch.ones(2, 2).tril()).bool()[None, None]
    places = torch.tensor([[0, 1, 0, 1]])

    def logits(params, cache):
        options = {"attention_mask": mask, "position_ids": places}
        return model.apply(params, tokens, cache, **options).logits

    cache = model.init_cache(1, 8)
    expected = logits(model.params, cache)
    torch.compiler.reset()
    compiled = torch.compile(logits, backend="aot_eager", fullgraph=True)
    assert_close(compiled(model.params, cache), expected)
    stacked = tree_map(lambda leaf: torch.stack([leaf, leaf]), cache)
    lanes = torch.vmap(logits, in_dims=(None, 0))(model.params, stacked)
    assert_close(lanes, torch.stack([expected, expected]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mamba", None),
        ("mamba2", None),
        ("qwen3_next", None),
        ("mistral", bridge.ring_cache()),
        ("llama", bridge.attention_sinks(sinks=2, recent=6)),
    ],
)
def test_rows_that_cannot_be_shared(name, kind):
    """States, rings and sinks do not keep every token apart: refused, never wrong."""
    model = bridge.load(tiny_module(name), cache=kind)
    with pytest.raises(ValueError, match=r"bool \[1, 1, 3, 3\], but sequences cannot share a row"):
        model.apply(
            model.params,
            torch.tensor([[5, 6, 7]]),
            model.init_cache(1, 8),
            attention_mask=torch.ones(1, 1, 3, 3, dtype=torch.bool).tril(),
            position_ids=torch.arange(3)[None],
        )


def test_packing_is_checked(models):
    model = models("llama")
    tokens, cache = torch.tensor([[5, 6]]), model.init_cache(1, 4)
    mask = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="position_ids must be given with an attention_mask"):
        model.apply(model.params, tokens, cache, attention_mask=mask)
    with pytest.raises(ValueError, match=r"\[1, 1, 2, at most 4\], not bool \[1, 1, 1, 2\]"):
        model.apply(
            model.params,
            tokens,
            cache,
            attention_mask=mask[:, :, :1],
            position_ids=torch.tensor([[0, 1]]),
        )
