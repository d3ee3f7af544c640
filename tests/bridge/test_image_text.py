"""Models that read images: greedy tokens are those of transformers, images are read once."""

from __future__ import annotations

import functools

import pytest
import torch
import transformers
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_map

import bridge
import purgen
from tests.bridge.families import BATCHING, NEW_TOKENS, assert_close, assert_same
from tests.bridge.families_images import (
    IMAGE,
    IMAGE_TEXT,
    generated_images,
    image_prompt,
    tiny_image_text,
)

pytestmark = pytest.mark.filterwarnings(BATCHING)

TOKENS = torch.tensor([[5, 90, 17], [44, 3, 110], [61, 61, 8]])
module_of = functools.cache(tiny_image_text)
model_of = functools.cache(lambda name: bridge.load(module_of(name)))


@pytest.fixture(params=IMAGE_TEXT)
def name(request):
    return request.param


def greedy_tokens(model, prompt, **options):
    decoder = purgen.greedy(model, stop=purgen.any_of())
    return purgen.generate(
        decoder, model.params, prompt, max_new_tokens=NEW_TOKENS, **options
    ).new_tokens


def prefilled(name, *, room=12):
    model, prompt = model_of(name), image_prompt(name)
    rows, width = prompt.tokens.shape
    cache = model.init_cache(rows, width + room)
    out = model.prefill(model.params, prompt.tokens, cache, mask=prompt.mask, inputs=prompt.inputs)
    return model, out.cache


def row_alone(prompt, row):
    """Returns a row without its pads, with the images that it speaks of."""
    real = prompt.mask[row]
    tokens = prompt.tokens[row, real][None]
    begin, count = {0: (0, 1), 1: (1, 2), 2: (3, 0)}[row]
    inputs = dict(prompt.inputs)
    if "image_grid_thw" in inputs:
        sizes = inputs["image_grid_thw"].prod(dim=1)
        edges = [0, *sizes.cumsum(0).tolist()]
        inputs["pixel_values"] = inputs["pixel_values"][edges[begin] : edges[begin + count]]
        inputs["image_grid_thw"] = inputs["image_grid_thw"][begin : begin + count]
    else:
        inputs["pixel_values"] = inputs["pixel_values"][begin : begin + count]
    return purgen.Prompt(
        tokens=tokens,
        mask=torch.ones_like(tokens, dtype=torch.bool),
        inputs=inputs if count else {},
    )


def test_greedy_equals_generate(name):
    module, model, prompt = module_of(name), model_of(name), image_prompt(name)
    got = greedy_tokens(model, prompt)
    assert got.tolist() == generated_images(module, prompt).tolist()
    assert len(set(got.flatten().tolist())) >= 12, "tokens must vary for this to say anything"
    for row in range(3):
        assert greedy_tokens(model, row_alone(prompt, row)).tolist() == got[row : row + 1].tolist()


def test_the_picture_matters(name):
    model, prompt = model_of(name), image_prompt(name)
    other = {**prompt.inputs, "pixel_values": prompt.inputs["pixel_values"].flip(-1)}
    first, second = (
        greedy_tokens(model, each) for each in (prompt, purgen.replace(prompt, inputs=other))
    )
    assert not torch.equal(first[:2], second[:2])
    assert torch.equal(first[2], second[2])  # the row without one


def test_one_graph_for_all_steps(name):
    model, cache = prefilled(name)
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.apply, backend=counter, fullgraph=True)
    other = cache
    for step in range(4):
        tokens = (TOKENS[:, :1] * (step + 1)) % 118
        out, expected = (
            compiled(model.params, tokens, cache),
            model.apply(model.params, tokens, other),
        )
        assert_close(out.logits, expected.logits)
        cache, other = out.cache, expected.cache
    assert counter.frame_count == 1


def test_a_block_is_its_tokens(name):
    model, cache = prefilled(name)
    block = model.apply(model.params, TOKENS, cache)
    singles = []
    for column in range(3):
        out = model.apply(model.params, TOKENS[:, column : column + 1], cache)
        singles.append(out.logits)
        cache = out.cache
    assert_close(block.logits, torch.cat(singles, dim=1))
    assert_close(block.cache, cache)


def test_rewound_repeated_selected(name):
    model, cache = prefilled(name)
    wanted = model.apply(model.params, TOKENS[:, :1], cache)
    ahead = model.apply(model.params, TOKENS, cache).cache
    back = purgen.replace(ahead, cache_position=cache.cache_position)
    assert_close(model.apply(model.params, TOKENS[:, :1], back).logits, wanted.logits)
    twice = model.apply(
        model.params, TOKENS[:, :1].repeat_interleave(2, 0), purgen.repeat_rows(cache, 2)
    )
    assert_close(twice.logits, wanted.logits.repeat_interleave(2, 0))
    order = torch.tensor([2, 0])
    some = model.apply(model.params, TOKENS[order, :1], purgen.select_rows(cache, order))
    assert_close(some.logits, wanted.logits[order])


def test_vmap(name):
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


def test_the_loop_leaves_the_prompt_alone(name):
    prompt = image_prompt(name)
    greedy_tokens(model_of(name), prompt)
    assert_same(prompt, image_prompt(name))


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "while"])
def test_loops(name, loop):
    model, prompt = model_of(name), image_prompt(name)
    got = greedy_tokens(model, prompt, loop=loop, backend="aot_eager")
    assert torch.equal(got, greedy_tokens(model, prompt))


def test_generate_many_shares_rows(name):
    model, prompt = model_of(name), image_prompt(name)
    prompts = [row_alone(prompt, row) for row in (0, 1)]
    decoder = purgen.greedy(model, stop=purgen.any_of())
    found = {
        done.index: done.output.new_tokens
        for done in purgen.generate_many(
            decoder, model.params, prompts, batch_size=2, max_new_tokens=NEW_TOKENS
        )
    }
    together = greedy_tokens(model, prompt)
    assert [found[row].flatten().tolist() for row in (0, 1)] == together[:2].tolist()


@pytest.mark.parametrize("which", ["llava", "qwen2_vl"])
def test_a_live_cache_goes_on(which):
    module, model, prompt = module_of(which), model_of(which), image_prompt(which)
    kinds = {"mm_token_type_ids": (prompt.tokens == IMAGE).long()} if which != "llava" else {}
    out = module.generate(
        prompt.tokens,
        attention_mask=prompt.mask.long(),
        **prompt.inputs,
        **kinds,
        do_sample=False,
        min_new_tokens=5,
        max_new_tokens=5,
        return_dict_in_generate=True,
    )
    held = getattr(out, "cache", None) or out.past_key_values
    mask = torch.nn.functional.pad(prompt.mask, (0, 4), value=True)
    options = {"attention_mask": mask, "max_length": 60}
    if which != "llava":
        with pytest.raises(ValueError, match="rope_delta is needed"):
            bridge.from_hf_cache(model, held, **options)
        with pytest.raises(ValueError, match=r"rope_delta must be int64 \[B\] = \[3\]"):
            bridge.from_hf_cache(model, held, **options, rope_delta=torch.zeros(3))
        options["rope_delta"] = module.model.rope_deltas
    else:
        with pytest.raises(ValueError, match="images move no positions"):
            bridge.from_hf_cache(model, held, **options, rope_delta=torch.zeros(3).long())
    cache = bridge.from_hf_cache(model, held, **options)
    token, rest = out.sequences[:, -1], []
    for _ in range(NEW_TOKENS - 5):
        step = model.apply(model.params, token[:, None], cache)
        cache, token = step.cache, step.logits[:, -1].argmax(-1)
        rest.append(token)
    assert torch.equal(torch.stack(rest, dim=1), greedy_tokens(model, prompt)[:, 5:])


def test_what_a_processor_made():
    model, prompt = model_of("qwen2_vl"), image_prompt("qwen2_vl")
    right = purgen.Prompt.from_lists(
        [row[mask].tolist() for row, mask in zip(prompt.tokens, prompt.mask, strict=True)],
        pad_token_id=0,
        padding_side="right",
    )
    made = transformers.BatchFeature(
        {
            "input_ids": right.tokens,
            "attention_mask": right.mask.long(),
            "mm_token_type_ids": (right.tokens == IMAGE).long(),
            **prompt.inputs,
        }
    )
    got = greedy_tokens(model, model.encode(made))
    assert torch.equal(got, greedy_tokens(model, prompt))
    with pytest.raises(ValueError, match="no 'input_ids'"):
        model.encode({"pixel_values": torch.zeros(1)})
    with pytest.raises(ValueError, match="'input_ids' is a list"):
        model.encode({"input_ids": [[1, 2]]})


def test_errors():
    model, prompt = model_of("qwen2_vl"), image_prompt("qwen2_vl")

    def run(prompt, **changes):
        greedy_tokens(model, purgen.replace(prompt, **changes))

    with pytest.raises(
        ValueError, match="stands for a part of an image or a video, but inputs has"
    ):
        run(prompt, inputs={})
    with pytest.raises(ValueError, match="inputs has 'input_features'"):
        run(prompt, inputs={**prompt.inputs, "input_features": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"inputs\['image_grid_thw'\] must be a tensor"):
        run(prompt, inputs={**prompt.inputs, "image_grid_thw": [[1, 4, 4]]})
    with pytest.raises(ValueError, match="no token is 2"):
        run(prompt, tokens=torch.where(prompt.tokens == IMAGE, 7, prompt.tokens))
    with pytest.raises(ValueError, match="do not match"):  # transformers' own words
        run(prompt, tokens=prompt.tokens.masked_fill(prompt.tokens == prompt.tokens[0, -2], IMAGE))
    with pytest.raises(bridge.Unsupported, match="images move the positions"):
        bridge.as_hf_cache(prefilled("qwen2_vl")[1])


def test_kinds_of_cache():
    module, prompt = module_of("gemma3"), image_prompt("gemma3")
    full = greedy_tokens(model_of("gemma3"), prompt)
    ring = bridge.load(module, cache=bridge.ring_cache())
    assert torch.equal(greedy_tokens(ring, prompt), full)
    held = bridge.load(module_of("llava"), cache=bridge.attention_sinks(sinks=2, recent=6))
    with pytest.raises(ValueError, match="this kind of cache reads 8 at once"):
        greedy_tokens(held, image_prompt("llava"))


def test_a_wrong_mask_is_noticed(monkeypatch):
    """The check at load sees whether the parts of an image see each other."""
    monkeypatch.setattr("bridge.image_text._runs", lambda member: torch.full(member.shape, -1))
    with pytest.raises(bridge.Unsupported, match="'gemma3'.*other logits"):
        bridge.load(module_of("gemma3"))
