"""Checks on what a bridged model is called with, before any work.

They are made where numbers can be read and cost nothing in a compiled program.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from purgen.cache import Cache
from purgen.concrete import is_concrete

__all__ = [
    "check_above_floor",
    "check_appended",
    "check_apply",
    "check_image_inputs",
    "check_inputs",
    "check_layout",
    "check_left_padded",
    "check_not_rewound",
    "check_packable",
    "check_params",
    "check_prefill",
]


def check_prefill(
    params: Any, tokens: Tensor, cache: Cache, mask: Tensor, *, reference: str, ids: int
) -> None:
    """Checks a call of `prefill`.

    Args:
        params: dict of tensors.
        tokens: what should be int64 [B, P], ids in `[0, ids)`.
        cache: what should be an empty cache of B rows and at least P slots.
        mask: what should be bool [B, P], or integers 0 and 1.
        reference: the name of the parameter whose dtype and device the cache should have.
        ids: how many token ids the embedding knows.

    Raises:
        ValueError: an argument is not so; the message names it and its value.
    """
    _check_tokens("prefill", params, tokens, cache, reference)
    capacity = cache.layers["valid"].shape[1]
    if tokens.shape[1] > capacity:
        raise ValueError(
            f"prefill: tokens have {tokens.shape[1]} slots, cache has {capacity}; "
            "make it longer (init_cache(batch_size, max_length))"
        )
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
        raise ValueError(f"prefill: mask must be [B, P] = {list(tokens.shape)}, not {_kind(mask)}")
    _check_mask("prefill", "mask", mask)
    _check_no_holes("prefill", "mask", mask)
    _check_ids("prefill", tokens, ids)
    if is_concrete(cache.cache_position) and cache.cache_position.any():
        raise ValueError(
            f"prefill: cache must be empty, its cache_position is {cache.cache_position.tolist()}; "
            "feed further tokens with apply"
        )


def check_apply(
    params: Any,
    tokens: Tensor,
    cache: Cache,
    cache_position: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    *,
    reference: str,
    ids: int,
) -> None:
    """Checks a call of `apply`.

    Args:
        params: dict of tensors.
        tokens: what should be int64 [B, q], ids in `[0, ids)`.
        cache: what should be a cache of B rows.
        cache_position: what should be int64 [B] or 0-d, with room for q slots.
        attention_mask: what should be None, or bool or integers 0 and 1 [B, up to T].
        position_ids: what should be None or int64 [B, q].
        reference: the name of the parameter whose dtype and device the cache should have.
        ids: how many token ids the embedding knows.

    Raises:
        ValueError: an argument is not so; the message names it and its value.
    """
    _check_tokens("apply", params, tokens, cache, reference)
    rows, width = tokens.shape
    capacity = cache.layers["valid"].shape[1]
    shape, form = ((), "[]") if _is_shared(cache_position) else ((rows,), "[B]")
    _check_int64("apply", "cache_position", cache_position, form, shape, tokens.device)
    if position_ids is not None:
        _check_int64("apply", "position_ids", position_ids, "[B, q]", (rows, width), tokens.device)
    if attention_mask is not None:
        given: tuple[int, ...] = ()
        if isinstance(attention_mask, Tensor):
            given = tuple(attention_mask.shape)
        packed = len(given) == 4
        form = "[B, 1, q, at most T]" if packed else "[B, at most T]"
        wanted = (rows, 1, width) if packed else (rows,)
        if given[:-1] != wanted or given[-1] > capacity:
            raise ValueError(
                f"apply: attention_mask must be {form} = "
                f"[{', '.join(map(str, wanted))}, at most {capacity}], not {_kind(attention_mask)}"
            )
        if packed and position_ids is None:
            raise ValueError(
                "apply: position_ids must be given with an attention_mask [B, 1, q, T], which does not "
                "say where a sequence begins"
            )
        _check_mask("apply", "attention_mask", attention_mask)
        if not packed and position_ids is None:
            _check_no_holes("apply", "attention_mask", attention_mask)
        if not packed and position_ids is not None:
            _check_position_ids(attention_mask, cache_position, position_ids)
    _check_ids("apply", tokens, ids)
    if is_concrete(cache_position):
        outside = (cache_position < 0) | (cache_position + width > capacity)
        if outside.any():
            row = int(outside.reshape(-1).nonzero()[0, 0])
            raise ValueError(
                f"apply: cache_position of row {row} is {int(cache_position.reshape(-1)[row])}: with "
                f"{width} token(s) it leaves the cache, which has the slots 0 to {capacity - 1}"
            )


def check_inputs(inputs: Any, main: str, tokens: Tensor) -> None:
    """Checks what an encoder is to read.

    Args:
        inputs: what should be a dict with `main`, and `attention_mask` where `main` is `input_ids`.
        main: the name of what the encoder reads.
        tokens: int64 [B, P], what the decoder reads.

    Raises:
        ValueError: an input is missing, unknown, or of other rows; the message names it.
    """
    known = {main, "attention_mask"} if main == "input_ids" else {main}
    if not isinstance(inputs, dict) or main not in inputs:
        raise ValueError(
            f"prefill: inputs must hold {main!r}, what the encoder reads, not "
            f"{sorted(inputs) if isinstance(inputs, dict) else inputs!r} (Prompt(…, inputs=…))"
        )
    for name, value in inputs.items():
        if name not in known:
            raise ValueError(f"prefill: inputs has {name!r}; this model knows {sorted(known)}")
        if not isinstance(value, Tensor) or value.shape[0] != tokens.shape[0]:
            raise ValueError(
                f"prefill: inputs[{name!r}] must have the {tokens.shape[0]} rows of tokens, "
                f"not {_kind(value)}"
            )
    mask = inputs.get("attention_mask")
    if mask is not None:
        if mask.shape != inputs[main].shape:
            raise ValueError(
                f"prefill: inputs['attention_mask'] must be {list(inputs[main].shape)} like "
                f"{main}, not {_kind(mask)}"
            )
        _check_mask("prefill", "inputs['attention_mask']", mask)


def check_image_inputs(
    inputs: Any,
    tokens: Tensor,
    mask: Tensor,
    *,
    known: Collection[str],
    image: int,
    video: int | None,
) -> None:
    """Checks that a prompt has pixels where, and only where, its tokens stand for some.

    Args:
        inputs: what should be None or a dict of tensors by the names in `known`.
        tokens: int64 [B, P].
        mask: bool, or integers 0 and 1, [B, P].
        known: the names of what the model reads.
        image: the id that stands for a feature of an image.
        video: that of a video, or None.

    Raises:
        ValueError: an input is unknown, or pixels or their tokens are missing; the message names it.
    """
    given = inputs or {}
    if not isinstance(given, dict):
        raise ValueError(f"prefill: inputs must be a dict of {sorted(known)}, not {_kind(inputs)}")
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"prefill: inputs has {name!r}; this model knows {sorted(known)}")
        if not isinstance(value, Tensor):
            raise ValueError(f"prefill: inputs[{name!r}] must be a tensor, not {_kind(value)}")
    if not isinstance(tokens, Tensor) or not isinstance(mask, Tensor) or mask.shape != tokens.shape:
        return  # refused by name where the others are
    if not is_concrete(tokens, mask):
        return
    for pixels, token in (("pixel_values", image), ("pixel_values_videos", video)):
        if token is None or (pixels not in known and pixels not in given):
            continue
        found = (tokens == token) & (mask != 0)
        if found.any() and pixels not in given:
            row, column = found.nonzero()[0].tolist()
            raise ValueError(
                f"prefill: tokens[{row}, {column}] is {token}, which stands for a part of an image or "
                f"a video, but inputs has no {pixels!r}"
            )
        if pixels in given and not found.any():
            raise ValueError(
                f"prefill: inputs has {pixels!r}, but no token is {token}, which stands for a part of "
                "them; the model's processor writes as many as there are"
            )


def check_left_padded(call: str, name: str, mask: Tensor) -> None:
    """Refuses pads after the text, for states that every token fed enters for good.

    Args:
        call: the function, for the message.
        name: the argument, for the message.
        mask: bool, or integers 0 and 1, [B, P].

    Raises:
        ValueError: a row has a pad after a real token.
    """
    if not is_concrete(mask):
        return
    real = mask != 0
    late = (real.cumsum(dim=1) > 0) & ~real
    if late.any():
        row, column = late.nonzero()[0].tolist()
        raise ValueError(
            f"{call}: {name}[{row}, {column}] is a pad after a real token; this model keeps a state "
            "that pads would enter: pad on the left"
        )


def check_not_rewound(cache: Cache, position: Tensor, rewind: int) -> None:
    """Refuses a position that lies further back than the layers can go.

    Args:
        cache: a cache with `layers["fed"]`.
        position: int64 [B] or 0-d, where the caller wants to go on.
        rewind: how many slots they can go back: 0 for recurrent states, the slack of a ring.

    Raises:
        ValueError: it lies before that.
    """
    fed = cache.layers["fed"]
    if is_concrete(fed, position):
        back = position.expand_as(fed) < fed - rewind
        if back.any():
            row = int(back.nonzero()[0, 0])
            raise ValueError(
                f"apply: cache_position of row {row} is {int(position.expand_as(fed)[row])}, and its "
                f"layers have been fed {int(fed[row])} slots: this cache can be rewound by {rewind} "
                "at most; keep the earlier cache, which is a value, and go on from that"
            )


def check_above_floor(cache: Cache, position: Tensor) -> None:
    """Refuses a position whose token would see what the cache never held.

    Args:
        cache: a cache with `layers["floor"]` (`bridge.from_hf_cache`).
        position: int64 [B] or 0-d, where the caller wants to go on.

    Raises:
        ValueError: it lies below.
    """
    floor = cache.layers["floor"]
    if is_concrete(floor, position):
        below = position.expand_as(floor) < floor
        if below.any():
            row = int(below.nonzero()[0, 0])
            raise ValueError(
                f"apply: cache_position of row {row} is {int(position.expand_as(floor)[row])}; what a "
                "token there sees, the transformers cache that this one was taken from had dropped: "
                f"{int(floor[row])} is the lowest that it can go back to"
            )


def check_packable(attention_mask: Tensor | None) -> None:
    """Refuses a mask that says who may attend to whom, for a cache that cannot heed it.

    A state mixes all that it was fed, a bounded cache may have dropped what a query is to see, and a
    row has one encoder's text.

    Args:
        attention_mask: bool [B, at most T] or None.

    Raises:
        ValueError: it is 4-dimensional.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        raise ValueError(
            f"apply: attention_mask is {_kind(attention_mask)}, but sequences cannot share a row "
            "here: that takes layers that keep every token, and no encoder; give [B, at most T], one "
            "sequence a row"
        )


def check_appended(
    cache: Cache, position: Tensor, attention_mask: Tensor | None, width: int
) -> None:
    """Refuses pads among new tokens of a row that has real ones, for recurrent states.

    Args:
        cache: the cache.
        position: int64 [B] or 0-d.
        attention_mask: None, or bool or integers 0 and 1 [B, up to T].
        width: q.

    Raises:
        ValueError: a row has such a pad.
    """
    if attention_mask is None or not is_concrete(attention_mask, position):
        return
    slot = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    end = position[..., None] + width
    check_left_padded("apply", "attention_mask", (attention_mask != 0) | (slot >= end))


def check_params(params: Any, names: Collection[str]) -> None:
    """Checks that `params` are those of this model.

    Args:
        params: what should be a dict with exactly these names.
        names: names of the parameters.

    Raises:
        ValueError: it is not; the message names a missing or unknown parameter.
    """
    if not isinstance(params, dict):
        raise ValueError(f"params must be a dict like model.params, not {type(params).__name__}")
    for name in names:
        if name not in params:
            raise ValueError(
                f"params: {name!r} is missing; take model.params and change what you will"
            )
    if len(params) != len(names):
        unknown = next(name for name in params if name not in names)
        raise ValueError(f"params: {unknown!r} is not a parameter of this model")


def _check_tokens(call: str, params: Any, tokens: Any, cache: Any, reference: str) -> None:
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 2:
        raise ValueError(f"{call}: tokens must be int64 [B, q], not {_kind(tokens)}")
    if tokens.shape[1] == 0:
        raise ValueError(f"{call}: tokens must have at least one slot, not {_kind(tokens)}")
    if not isinstance(cache, Cache) or not isinstance(cache.layers, dict):
        raise ValueError(f"{call}: cache must come from init_cache, not {type(cache).__name__}")
    rows = cache.layers["valid"].shape[0]
    if tokens.shape[0] != rows:
        raise ValueError(f"{call}: tokens have {tokens.shape[0]} rows, cache has {rows}")
    expected = params[reference]
    buffer = next(leaf for leaf in tree_leaves(cache.layers) if leaf.is_floating_point())
    if buffer.dtype != expected.dtype:
        raise ValueError(
            f"{call}: cache is {buffer.dtype}, params are {expected.dtype}; "
            "convert the floating leaves of either"
        )
    for name, device in (("cache", buffer.device), ("tokens", tokens.device)):
        if device != expected.device:
            raise ValueError(f"{call}: {name} lie on {device}, params on {expected.device}")


def _check_int64(
    call: str, name: str, value: Any, form: str, shape: tuple[int, ...], device: torch.device
) -> None:
    if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.shape != shape:
        raise ValueError(f"{call}: {name} must be int64 {form} = {list(shape)}, not {_kind(value)}")
    if value.device != device:
        raise ValueError(f"{call}: {name} lies on {value.device}, tokens on {device}")


def _is_shared(position: Any) -> bool:
    return isinstance(position, Tensor) and position.ndim == 0


def _check_mask(call: str, name: str, mask: Tensor) -> None:
    if mask.is_floating_point() or mask.is_complex():
        raise ValueError(f"{call}: {name} must be bool, or integers 0 and 1, not {_kind(mask)}")
    if mask.dtype != torch.bool and is_concrete(mask):
        others = mask[(mask != 0) & (mask != 1)]
        if others.numel():
            raise ValueError(f"{call}: {name} must be bool, or 0 and 1; it holds {int(others[0])}")


def _check_no_holes(call: str, name: str, mask: Tensor) -> None:
    """Refuses a pad between two real tokens: does it count as a position or not?"""
    if not is_concrete(mask):
        return
    real = mask != 0
    later = real.flip(1).cumsum(dim=1).flip(1) > 0
    hole = ~real & later & (real.cumsum(dim=1) > 0)
    if hole.any():
        row, column = hole.nonzero()[0].tolist()
        advice = "; give position_ids besides" if call == "apply" else ""
        raise ValueError(
            f"{call}: {name}[{row}, {column}] is a hole, a pad between real tokens{advice}"
        )


def _check_position_ids(mask: Tensor, cache_position: Tensor, position_ids: Tensor) -> None:
    """Refuses positions that a mask without holes contradicts."""
    if not is_concrete(mask, cache_position, position_ids):
        return
    real = mask != 0
    hole = ~real & (real.flip(1).cumsum(dim=1).flip(1) > 0) & (real.cumsum(dim=1) > 0)
    slots = cache_position[..., None] + torch.arange(position_ids.shape[1], device=mask.device)
    slots = slots.expand_as(position_ids)
    inside = slots < mask.shape[1]
    rank = (real.cumsum(dim=1) - real.long()).gather(1, slots.clamp(max=mask.shape[1] - 1))
    fed = real.gather(1, slots.clamp(max=mask.shape[1] - 1)) & inside
    wrong = fed & (rank != position_ids) & ~hole.any(dim=1, keepdim=True)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"apply: position_ids[{row}, {column}] is {int(position_ids[row, column])}, but "
            f"attention_mask says that {int(rank[row, column])} real tokens lie before it; leave one "
            "of them out"
        )


def check_layout(call: str, cache: Cache, specs: tuple[Any, ...]) -> None:
    """Refuses a cache that another model made, or a model with another kind of cache.

    Args:
        call: the function, for the message.
        cache: the cache.
        specs: what the layers of this model keep.

    Raises:
        ValueError: it is of another form.
    """
    made = getattr(cache.layout, "specs", None)
    if made is not None and made is not specs and made != specs:
        raise ValueError(
            f"{call}: cache was made by another model, or with another cache kind: its layers are not "
            "those of this one; use this model's init_cache"
        )


def _check_ids(call: str, tokens: Tensor, ids: int) -> None:
    if is_concrete(tokens):
        outside = (tokens < 0) | (tokens >= ids)
        if outside.any():
            row, column = outside.nonzero()[0].tolist()
            raise ValueError(
                f"{call}: tokens[{row}, {column}] is {int(tokens[row, column])}, outside the "
                f"vocabulary [0, {ids})"
            )


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
