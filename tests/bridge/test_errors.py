"""What a caller gets wrong is said before any work: the argument, and its value."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import bridge
from tests.bridge.families import BATCHING, prefilled, ragged_prompt, tiny_module

TOKENS = torch.tensor([[5], [44], [61]])
BOOL = torch.bool


@pytest.fixture
def model(models):
    return models("llama")


APPLY = {
    "dtype": ({"tokens": TOKENS.int()}, r"tokens must be int64 \[B, q\], not int32 \[3, 1\]"),
    "shape": ({"tokens": TOKENS[:, 0]}, r"tokens must be int64 \[B, q\], not int64 \[3\]"),
    "no slot": ({"tokens": TOKENS[:, :0]}, r"at least one slot, not int64 \[3, 0\]"),
    "rows": ({"tokens": TOKENS[:2]}, "tokens have 2 rows, cache has 3"),
    "id": ({"tokens": TOKENS + 80}, r"tokens\[2, 0\] is 141, outside the vocabulary \[0, 128\)"),
    "negative id": ({"tokens": TOKENS - 9}, r"tokens\[0, 0\] is -4"),
    "capacity": (
        {"cache_position": torch.tensor([9, 21, 9])},
        r"cache_position of row 1 is 21: with 1 token\(s\) .* slots 0 to 20",
    ),
    "negative": ({"cache_position": torch.tensor([9, 9, -1])}, "row 2 is -1"),
    "position dtype": (
        {"cache_position": torch.tensor([9, 9, 9]).int()},
        r"cache_position must be int64 \[B\] = \[3\], not int32 \[3\]",
    ),
    "position shape": ({"cache_position": torch.full((1, 3), 9)}, r"not int64 \[1, 3\]"),
    "position type": ({"cache_position": 9}, "not int"),
    "mask dtype": (
        {"attention_mask": torch.ones(3, 10)},
        r"attention_mask must be bool, or integers 0 and 1, not float32 \[3, 10\]",
    ),
    "mask width": (
        {"attention_mask": torch.ones(3, 22, dtype=BOOL)},
        r"attention_mask must be \[B, at most T\] = \[3, at most 21\], not bool \[3, 22\]",
    ),
    "mask rows": ({"attention_mask": torch.ones(2, 10, dtype=BOOL)}, r"not bool \[2, 10\]"),
    "mask value": ({"attention_mask": torch.full((3, 10), 2)}, "it holds 2"),
    "ids shape": (
        {"position_ids": TOKENS[:, 0]},
        r"position_ids must be int64 \[B, q\] = \[3, 1\]",
    ),
}


@pytest.mark.parametrize("case", APPLY)
def test_apply(case, model):
    changes, message = APPLY[case]
    arguments = {"tokens": TOKENS, "cache": prefilled(model), **changes}
    with pytest.raises(ValueError, match=f"^apply: .*{message}"):
        model.apply(model.params, **arguments)


def test_full_cache(model):
    """The cache's own position counts too, and rows that have room do not help."""
    cache = prefilled(model, room=1)
    cache = model.apply(model.params, TOKENS, cache).cache
    with pytest.raises(ValueError, match=r"cache_position of row 0 is 10: with 1 token"):
        model.apply(model.params, TOKENS, cache)


PREFILL = {
    "capacity": ({"tokens": torch.ones(3, 22, dtype=torch.int64)}, "22 slots, cache has 21"),
    "mask shape": ({"mask": torch.ones(3, 8, dtype=BOOL)}, r"\[3, 9\], not bool \[3, 8\]"),
    "mask dtype": ({"mask": torch.ones(3, 9)}, r"mask must be bool, or integers .* float32"),
    "mask value": ({"mask": torch.full((3, 9), -1)}, "it holds -1"),
    "no mask": ({"mask": None}, r"mask must be \[B, P\] = \[3, 9\], not NoneType"),
    "inputs": ({"inputs": {"pixel_values": TOKENS}}, r"takes no inputs, not \['pixel_values'\]"),
    "id": ({"tokens": torch.full((3, 9), 128)}, r"tokens\[0, 0\] is 128"),
}


@pytest.mark.parametrize("case", PREFILL)
def test_prefill(case, model):
    changes, message = PREFILL[case]
    tokens, mask = ragged_prompt()
    arguments = {"tokens": tokens, "mask": mask, "cache": model.init_cache(3, 21), **changes}
    with pytest.raises(ValueError, match=f"^prefill: .*{message}"):
        model.prefill(model.params, **arguments)


def test_prefill_wants_an_empty_cache(model):
    tokens, mask = ragged_prompt()
    with pytest.raises(ValueError, match=r"cache must be empty, .* is \[9, 9, 9\]"):
        model.prefill(model.params, tokens, prefilled(model), mask=mask)


@pytest.mark.parametrize(("batch_size", "max_length"), [(0, 8), (2, 0), (-1, 8)])
def test_init_cache(model, batch_size, max_length):
    with pytest.raises(ValueError, match=r"init_cache: \w+ must be at least 1, not (0|-1)"):
        model.init_cache(batch_size, max_length)


def test_dtypes_must_agree(model):
    cache = prefilled(model)
    params = {name: value.bfloat16() for name, value in model.params.items()}
    with pytest.raises(ValueError, match=r"cache is torch.float32, params are torch.bfloat16"):
        model.apply(params, TOKENS, cache)
    halved = tree_map(lambda leaf: leaf.bfloat16() if leaf.is_floating_point() else leaf, cache)
    assert model.apply(params, TOKENS, halved).logits.dtype == torch.bfloat16


def test_devices_must_agree(model):
    params = {name: value.to("meta") for name, value in model.params.items()}
    with pytest.raises(ValueError, match="cache lie on cpu, params on meta"):
        model.apply(params, TOKENS, prefilled(model))


def test_params_must_be_whole(model):
    cache = prefilled(model)
    params = dict(model.params)
    gone = params.pop("model.norm.weight")
    with pytest.raises(ValueError, match=r"params: 'model.norm.weight' is missing"):
        model.apply(params, TOKENS, cache)
    with pytest.raises(ValueError, match=r"params: 'model.nrom.weight' is not a parameter"):
        model.apply({**model.params, "model.nrom.weight": gone}, TOKENS, cache)
    with pytest.raises(ValueError, match=r"params must be a dict like model\.params, not list"):
        model.apply(list(params.values()), TOKENS, cache)


@pytest.mark.filterwarnings(BATCHING)
def test_checks_vanish(model):
    """Where numbers cannot be read, nothing asks for them: under vmap and in fake tensors."""
    cache = prefilled(model)
    positions = torch.tensor([[9, 9, 9], [8, 9, 7]])
    out = torch.vmap(
        lambda position: model.apply(model.params, TOKENS, cache, cache_position=position).logits
    )(positions)
    assert out.shape == (2, 3, 1, 128)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = tree_map(mode.from_tensor, (model.params, TOKENS, cache))
        assert model.apply(*fake).logits.shape == (3, 1, 128)


def test_cache_of_another_model(models):
    """Refused although the shapes agree: what the slots hold means something else there."""
    model, other = models("llama"), models("gemma2")
    with pytest.raises(ValueError, match="apply: cache was made by another model"):
        model.apply(model.params, TOKENS, prefilled(other))
    ringed = bridge.load(tiny_module("mistral"), cache=bridge.ring_cache())
    plain = models("mistral")
    with pytest.raises(ValueError, match="prefill: cache was made by another model"):
        plain.prefill(
            plain.params,
            TOKENS,
            ringed.init_cache(3, 4),
            mask=torch.ones_like(TOKENS, dtype=torch.bool),
        )


def test_holes_and_positions(models):
    """A mask with a hole needs positions; positions that a mask contradicts are refused."""
    model = models("llama")
    cache = prefilled(model)
    width = TOKENS.shape[1]
    mask = torch.ones(3, 9 + width, dtype=torch.bool)
    holed = mask.clone()
    holed[1, 4] = False
    with pytest.raises(ValueError, match=r"attention_mask\[1, 4\] is a hole"):
        model.apply(model.params, TOKENS, cache, attention_mask=holed)
    positions = torch.arange(9, 9 + width).expand(3, -1)
    model.apply(model.params, TOKENS, cache, attention_mask=holed, position_ids=positions)
    model.apply(model.params, TOKENS, cache, attention_mask=mask, position_ids=positions)
    with pytest.raises(ValueError, match=r"position_ids\[0, 0\] is 8, but .* that 9 real tokens"):
        model.apply(model.params, TOKENS, cache, attention_mask=mask, position_ids=positions - 1)
    with pytest.raises(ValueError, match=r"prefill: mask\[0, 1\] is a hole"):
        model.prefill(
            model.params,
            TOKENS.expand(3, 3).contiguous(),
            model.init_cache(3, 4),
            mask=torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1]]),
        )
