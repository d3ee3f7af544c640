"""Keys moved along the positions of a rotary embedding, by the model's own tables."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from bridge.errors import Unsupported
from bridge.layers.sinks import Rotate
from bridge.skeleton import Skeleton

__all__ = ["rotation_of"]

_TOLERANCE = 1e-3
_SHIFT = 5


def rotation_of(skeleton: Skeleton, params: dict[str, Tensor], kind: str) -> Rotate:
    """Returns a function that moves the keys of a layer on by some positions.

    It is checked against the model: the keys of a text that begins at a later position must be those
    of the same text moved on, in every layer, or every layer of the kind where kinds differ.

    Args:
        skeleton: the model's structure.
        params: its parameters.
        kind: the kind of layer, for a model with a table a kind.

    Returns:
        `rotate(keys [B, H, S, D], positions int64 [B]) -> keys`.

    Raises:
        Unsupported: positions are not rotations of all keys of the model.
    """
    decoder: Any = skeleton.module.get_decoder()
    table = getattr(decoder, "rotary_emb", None)
    apply = vars(sys.modules[type(decoder).__module__]).get("apply_rotary_pos_emb")
    refusal = (
        f"model type {skeleton.config.model_type!r}: attention sinks need keys that move along with "
        "their positions, which those of this model do not"
    )
    if table is None or apply is None:
        raise Unsupported(refusal)
    kinds = getattr(skeleton.config, "layer_types", None) or ()
    by_kind = "layer_type" in inspect.signature(table.forward).parameters
    options = {"layer_type": kind} if by_kind else {}
    scale = getattr(table, f"{kind}_attention_scaling" if by_kind else "attention_scaling", 1.0)

    def rotate(keys: Tensor, positions: Tensor) -> Tensor:
        cosines, sines = table(keys, positions[:, None], **options)
        width = cosines.shape[-1]  # of a key, where the rest is not rotated
        turned = apply(keys[..., :width], keys[..., :width], cosines / scale, sines / scale)[1]
        return torch.cat([turned, keys[..., width:]], dim=-1)

    try:
        error = _error(skeleton, params, rotate, lambda i: not by_kind or kinds[i] == kind)
    except (RuntimeError, TypeError, ValueError) as problem:
        raise Unsupported(refusal) from problem
    if not error < _TOLERANCE:
        raise Unsupported(f"{refusal} (relative error {error:.1e})")
    return rotate


@torch.no_grad()
def _error(
    skeleton: Skeleton, params: dict[str, Tensor], rotate: Rotate, moves: Callable[[int], bool]
) -> float:
    """Returns the largest relative error of a text moved on, over the layers that it holds for."""
    device = params[skeleton.embedding].device
    tokens = (torch.arange(3, device=device) * 31 + 7)[None] % skeleton.num_ids
    places = torch.arange(3, device=device)[None]
    caches = [DynamicCache(config=skeleton.config) for _ in range(2)]
    for cache, shift in zip(caches, (0, _SHIFT), strict=True):
        skeleton(params, tokens, position_ids=places + shift, cache=cache)
    positions = torch.full((1,), _SHIFT, device=device)
    errors = [0.0]
    for index, (before, after) in enumerate(zip(caches[0].layers, caches[1].layers, strict=True)):
        if not moves(index) or getattr(before, "keys", None) is None or not before.keys.numel():
            continue
        moved = rotate(before.keys, positions).double()
        wanted = after.keys.double()
        errors.append(
            float((moved - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
        )
    return max(errors)
