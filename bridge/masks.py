"""Who attends to whom, as explicit additive masks.

transformers takes a 4-dimensional mask as it is. Built here from slots alone, such a mask is right
for rows at different positions, traces into one graph and has no data-dependent branch. `0` allows
and a very low number forbids, so a query that may see nothing (a pad) gives something finite.

`rank` is the number of real tokens before a slot: what the position would be in a row without pads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

__all__ = ["MASKS", "additive", "build", "rank_at", "real_slots"]


def real_slots(
    valid: Tensor, position: Tensor, width: int, attention_mask: Tensor | None = None
) -> Tensor:
    """Returns which slots hold real tokens once `width` more are written.

    What lies beyond them (left from before a rewind) counts as nothing.

    Args:
        valid: bool [B, T], the same before the call.
        position: int64 [B], first slot that is written.
        width: int, how many are written, all real unless `attention_mask` says otherwise.
        attention_mask: bool [B, T], takes the place of `valid` where the caller gives one.

    Returns:
        bool [B, T].

    Example:
        >>> import torch
        >>> real_slots(torch.tensor([[False, True, False, True]]), torch.tensor([2]), 1)
        tensor([[False,  True,  True, False]])
    """
    slots = torch.arange(valid.shape[1], device=valid.device)
    below_end = slots < position[:, None] + width
    if attention_mask is not None:
        return attention_mask & below_end
    return (valid | (slots >= position[:, None])) & below_end


def rank_at(valid: Tensor, slots: Tensor) -> Tensor:
    """Returns how many real tokens lie before each of some slots: their position ids.

    Args:
        valid: bool [B, T].
        slots: int64 [B, q].

    Returns:
        int64 [B, q], at least 0.

    Example:
        >>> import torch
        >>> rank_at(torch.tensor([[False, True, True]]), torch.tensor([[1, 2]]))
        tensor([[0, 1]])
    """
    before = torch.arange(valid.shape[1], device=valid.device) < slots[..., None]  # [B, q, T]
    return (before & valid[:, None, :]).sum(dim=-1)


def build(
    kinds: Mapping[str, int | None], valid: Tensor, slots: Tensor, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Returns the additive mask of every kind of attention layer that a model has.

    Args:
        kinds: dict from the kind (a key of `MASKS`) to its window, or None where it has none.
        valid: bool [B, T], which slots hold real tokens.
        slots: int64 [B, q], where the queries are.
        dtype: floating dtype of the attention scores.

    Returns:
        dict from the kind to a floating [B, 1, q, T].
    """
    return {
        kind: additive(MASKS[kind](valid, slots, window), dtype) for kind, window in kinds.items()
    }


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns bool [B, q, T] as floating [B, 1, q, T]: 0 where allowed, else a very low number.

    Half the lowest, because a negative score added to the lowest number is -inf in float16, and a
    query that may see nothing would then be NaN.
    """
    mask = torch.zeros_like(allowed, dtype=dtype)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min / 2)[:, None]


def _full(valid: Tensor, slots: Tensor, window: Any) -> Tensor:
    causal = torch.arange(valid.shape[1], device=valid.device) <= slots[..., None]
    return causal & valid[:, None, :]


def _sliding(valid: Tensor, slots: Tensor, window: Any) -> Tensor:
    # Distance in real tokens, not in slots: a hole in a row does not shorten what it can see.
    rank = valid.cumsum(dim=1) - valid.to(torch.int64)  # [B, T]
    distance = rank_at(valid, slots)[..., None] - rank[:, None, :]  # [B, q, T]
    return _full(valid, slots, None) & (distance < window)


# A kind of attention layer is one function `(valid, slots, window) -> bool [B, q, T]` and one row.
MASKS: Mapping[str, Callable[[Tensor, Tensor, Any], Tensor]] = MappingProxyType(
    {"full_attention": _full, "sliding_attention": _sliding}
)
