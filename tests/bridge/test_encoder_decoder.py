"""Encoder-decoder models: greedy tokens are those of transformers, and caches are values."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
import transformers
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_map
from transformers.modeling_outputs import BaseModelOutput

import bridge
import purgen
from tests.bridge.families import BATCHING, NEW_TOKENS, assert_close, assert_same
from tests.bridge.families_seq2seq import (
    SEQ2SEQ,
    generated_seq2seq,
    seq2seq_prompt,
    tiny_seq2seq,
)

pytestmark = pytest.mark.filterwarnings(BATCHING)

TOKENS = torch.tensor([[5, 90, 17], [44, 3, 120], [61, 61, 8]])
module_of = functools.cache(tiny_seq2seq)
model_of = functools.cache(lambda name: bridge.load(module_of(name)))


@pytest.fixture(params=SEQ2SEQ)
def name(request):
    return request.param


def greedy_tokens(model, prompt, **options):
    decoder = purgen.greedy(model, stop=purgen.any_of())
    return purgen.generate(
        decoder, model.params, prompt, max_new_tokens=NEW_TOKENS, **options
    ).new_tokens


def prefilled(name, *, room=12):
    """Returns the model and its cache after the encoder and three decoder tokens, ragged."""
    model, prompt = model_of(name), seq2seq_prompt(name)
    mask = torch.arange(3) >= torch.tensor([[0], [2], [1]])
    out = model.prefill(
        model.params, TOKENS, model.init_cache(3, 3 + room), mask=mask, inputs=prompt.inputs
    )
    return model, out.cache


def test_greedy_equals_generate(name):
    module, model, prompt = module_of(name), model_of(name), seq2seq_prompt(name)
    got = greedy_tokens(model, prompt)
    assert got.tolist() == generated_seq2seq(module, prompt).tolist()
    assert len(set(got.flatten().tolist())) >= 12, "tokens must vary for this to say anything"
    for row in range(3):
        one = tree_map(lambda leaf, row=row: leaf[row : row + 1], prompt)
        if "attention_mask" in prompt.inputs:  # alone, a row has no pads
            width = int(one.inputs["attention_mask"].sum())
            one = purgen.replace(one, inputs={k: v[:, :width] for k, v in one.inputs.items()})
        assert greedy_tokens(model, one).tolist() == got[row : row + 1].tolist()
        assert generated_seq2seq(module, one).tolist() == got[row : row + 1].tolist()


def test_the_encoder_matters(name):
    """Other inputs give other tokens, or the tests here would not see a lost encoder."""
    model, prompt = model_of(name), seq2seq_prompt(name)
    flipped = {key: value.flip(0) for key, value in prompt.inputs.items()}
    other = greedy_tokens(model, purgen.replace(prompt, inputs=flipped))
    assert other.tolist() != greedy_tokens(model, prompt).tolist()


def test_ragged_decoder_prompts(name):
    """A decoder prompt with pads before it gives the logits it gives without."""
    model, cache = prefilled(name)
    prompt = seq2seq_prompt(name)
    out = model.apply(model.params, TOKENS[:, :2], cache)
    for row, pads in enumerate((0, 2, 1)):
        one = {key: value[row : row + 1] for key, value in prompt.inputs.items()}
        tokens = TOKENS[row : row + 1, pads:]
        alone = model.prefill(
            model.params,
            tokens,
            model.init_cache(1, 8),
            mask=torch.ones_like(tokens, dtype=torch.bool),
            inputs=one,
        )
        alone = model.apply(model.params, TOKENS[row : row + 1, :2], alone.cache)
        assert_close(out.logits[row : row + 1], alone.logits)


def test_positions(name):
    """Given or left out, one for all or one a row: the same; rows anywhere give what each does."""
    model, cache = prefilled(name)
    implicit = model.apply(model.params, TOKENS[:, :1], cache)
    for position in (torch.tensor(3), torch.tensor([3, 3, 3])):
        assert_same(
            model.apply(model.params, TOKENS[:, :1], cache, cache_position=position), implicit
        )
    further = model.apply(model.params, TOKENS, cache).cache
    ragged = purgen.replace(further, cache_position=torch.tensor([6, 4, 5]))
    out = model.apply(model.params, TOKENS[:, :2], ragged)
    for row in range(3):
        one = purgen.select_rows(ragged, torch.tensor([row]))
        alone = model.apply(model.params, TOKENS[row : row + 1, :2], one)
        assert_close(out.logits[row : row + 1], alone.logits)


def test_rewind_and_block(name):
    model, cache = prefilled(name)
    clean = model.apply(model.params, TOKENS, cache)
    further = model.apply(model.params, TOKENS.flip(1), cache).cache
    back = purgen.replace(further, cache_position=cache.cache_position)
    assert_same(model.apply(model.params, TOKENS, back).logits, clean.logits)
    logits = []
    for column in range(3):
        out = model.apply(model.params, TOKENS[:, column : column + 1], cache)
        cache = out.cache
        logits.append(out.logits)
    assert_close(torch.cat(logits, 1), clean.logits)
    assert cache.layers["cross"][0]["k"] is back.layers["cross"][0]["k"], "no step changes them"


def test_rows(name):
    """Rows picked and repeated go on with their own encoder."""
    model, cache = prefilled(name)
    out = model.apply(model.params, TOKENS[:, :1], cache)
    index = torch.tensor([2, 0])
    picked = model.apply(model.params, TOKENS[index, :1], purgen.select_rows(cache, index))
    assert_close(picked.logits, out.logits[index])
    twice = model.apply(
        model.params, TOKENS[:, :1].repeat_interleave(2, 0), purgen.repeat_rows(cache, 2)
    )
    assert_close(twice.logits[::2], out.logits)
    longer = cache.layout.resized(cache, 30)
    assert_close(model.apply(model.params, TOKENS[:, :1], longer).logits, out.logits)


def test_compiles_once(name):
    model, cache = prefilled(name)
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.apply, backend=counter, fullgraph=True)
    other = cache
    for step in range(5):
        tokens = (TOKENS[:, :1] * (step + 1)) % 128
        out, expected = (
            compiled(model.params, tokens, cache),
            model.apply(model.params, tokens, other),
        )
        assert_close(out.logits, expected.logits)
        cache, other = out.cache, expected.cache
    assert counter.frame_count == 1


def test_vmap(name):
    """Over states at different positions, and over parameters."""
    model, first = prefilled(name)
    second = model.apply(model.params, TOKENS[:, :1], first).cache
    caches = tree_map(lambda *leaves: torch.stack(leaves), first, second)
    tokens = TOKENS[:, :1]
    out = torch.vmap(lambda cache: model.apply(model.params, tokens, cache).logits)(caches)
    for lane, cache in enumerate((first, second)):
        assert_close(out[lane], model.apply(model.params, tokens, cache).logits)
    stacked = {key: torch.stack([value, value * 1.1]) for key, value in model.params.items()}
    out = torch.vmap(lambda params: model.apply(params, tokens, first).logits)(stacked)
    for lane in range(2):
        params = {key: value[lane] for key, value in stacked.items()}
        assert_close(out[lane], model.apply(params, tokens, first).logits)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "while"])
@pytest.mark.parametrize("which", ["bart", "t5", "whisper"])
def test_loops(which, loop):
    model, prompt = model_of(which), seq2seq_prompt(which)
    assert torch.equal(greedy_tokens(model, prompt, loop=loop), greedy_tokens(model, prompt))


def half_way(module, prompt):
    """Returns the sequences and the cache of transformers after nine tokens."""
    inputs = {k: v.long() if v.dtype == torch.bool else v for k, v in prompt.inputs.items()}
    out = transformers.GenerationMixin.generate(
        module,
        **inputs,
        decoder_input_ids=prompt.tokens,
        do_sample=False,
        num_beams=1,
        min_new_tokens=9,
        max_new_tokens=9,
        return_dict_in_generate=True,
    )
    held = getattr(out, "cache", None)
    return out.sequences, held if held is not None else out.past_key_values


def test_a_live_cache_goes_on(name):
    module, model, prompt = module_of(name), model_of(name), seq2seq_prompt(name)
    sequences, held = half_way(module, prompt)
    cache = bridge.from_hf_cache(
        model,
        held,
        max_length=40,
        encoder_attention_mask=prompt.inputs.get("attention_mask"),
    )
    token, rest = sequences[:, -1], []
    for _ in range(NEW_TOKENS - 9):
        out = model.apply(model.params, token[:, None], cache)
        cache, token = out.cache, out.logits[:, -1].argmax(-1)
        rest.append(token)
    assert torch.equal(torch.stack(rest, dim=1), greedy_tokens(model, prompt)[:, 9:])


def test_transformers_goes_on(name):
    """Its module continues on a cache of ours, and what it leaves goes on with us."""
    module, model, prompt = module_of(name), model_of(name), seq2seq_prompt(name)
    cache = model.init_cache(3, 24)
    out = model.prefill(model.params, prompt.tokens, cache, mask=prompt.mask, inputs=prompt.inputs)
    kept = tree_map(torch.clone, out.cache)
    view = bridge.as_hf_cache(out.cache)
    token = out.logits[:, -1].argmax(-1)
    found = [token]
    valid = out.cache.layers["encoder_valid"]
    states = BaseModelOutput(last_hidden_state=torch.zeros(*valid.shape, 32))
    accepted = inspect.signature(type(module).forward).parameters
    argument = next(n for n in ("cache", "past_key_values") if n in accepted)
    mask = {"attention_mask": valid.long()} if "attention_mask" in prompt.inputs else {}
    with torch.no_grad():
        for count in range(4):
            assert view.get_seq_length() == 1 + count
            logits = module(
                encoder_outputs=states, decoder_input_ids=token[:, None], **mask, **{argument: view}
            ).logits
            token = logits[:, -1].argmax(-1)
            found.append(token)
    assert_same(out.cache, kept)
    after = view.value
    assert after.cache_position.tolist() == [5] * 3
    out = model.apply(model.params, token[:, None], after)
    found.append(out.logits[:, -1].argmax(-1))
    assert torch.equal(torch.stack(found, dim=1), greedy_tokens(model, prompt)[:, :6])


def test_crossing_errors():
    model, prompt = model_of("t5"), seq2seq_prompt("t5")
    _, held = half_way(module_of("t5"), prompt)
    with pytest.raises(ValueError, match="a model with an encoder, and no other"):
        bridge.from_hf_cache(model, held.self_attention_cache)
    with pytest.raises(ValueError, match=r"encoder_attention_mask must be .* = \[3, 7\]"):
        bridge.from_hf_cache(model, held, encoder_attention_mask=torch.ones(3, 2).bool())
    nothing = transformers.EncoderDecoderCache(
        held.self_attention_cache, transformers.DynamicCache()
    )
    with pytest.raises(ValueError, match="layer 0 of hf_cache holds nothing of an encoder"):
        bridge.from_hf_cache(model, nothing)
    with pytest.raises(ValueError, match="the encoder has not been read"):
        bridge.as_hf_cache(model.init_cache(3, 4))


def test_bytes():
    _, cache = prefilled("t5")
    rows = cache.layout.bytes_per_row(15) + cache.layout.cross_bytes(7)
    leaves = [leaf for entry in cache.layers["layers"] for leaf in entry.values()]
    leaves += [leaf for entry in cache.layers["cross"] for leaf in entry.values()]
    assert 3 * rows == sum(leaf.nbytes for leaf in leaves)


def test_errors():
    model, prompt = model_of("t5"), seq2seq_prompt("t5")
    decoder = purgen.greedy(model)

    def run(**changes):
        purgen.generate(decoder, model.params, purgen.replace(prompt, **changes), max_new_tokens=2)

    with pytest.raises(ValueError, match="inputs must hold 'input_ids'"):
        run(inputs={})
    with pytest.raises(ValueError, match="inputs has 'pixel_values'"):
        run(inputs={**prompt.inputs, "pixel_values": torch.zeros(3, 1)})
    with pytest.raises(ValueError, match="attention_mask"):
        run(inputs={**prompt.inputs, "attention_mask": torch.ones(3, 2)})
    with pytest.raises(ValueError, match="knows nothing of the encoder"):
        model.apply(model.params, TOKENS[:, :1], model.init_cache(3, 4))
