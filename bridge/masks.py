"""Who attends to whom, as explicit additive masks.

transformers takes a 4-dimensional mask as it is. Built here from slots alone, such a mask is right
for rows at different positions, traces into one graph and has no data-dependent branch. `0` allows
and a very low number forbids, so a query that may see nothing (a pad) gives something finite.

`rank` is the number of real tokens before a slot: what the position would be in a row without pads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bridge.layers.base import Call, Keys

__all__ = ["MASKS", "additive", "rank_at", "real_slots"]


def real_slots(
    valid: Tensor, position: Tensor, width: int, attention_mask: Tensor | None = None
) -> Tensor:
    """Returns which slots hold real tokens once `width` more are written.

    What lies beyond them (left from before a rewind) counts as nothing.

    Args:
        valid: bool [B, T], the same before the call.
        position: int64 [B] or 0-d, first slot that is written.
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
    below_end = slots < position[..., None] + width
    if attention_mask is not None:
        return attention_mask & below_end
    return (valid | (slots >= position[..., None])) & below_end


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


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns bool [B, q, K] as floating [B, 1, q, K]: 0 where allowed, else a very low number.

    Half the lowest, because a negative score added to the lowest number is -inf in float16, and a
    query that may see nothing would then be NaN.
    """
    mask = torch.zeros_like(allowed, dtype=dtype)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min / 2)[:, None]


def _full(call: Call, keys: Keys, reach: int | None) -> Tensor:
    if call.allowed is not None:
        return call.allowed[..., : keys.slots.shape[0]]
    slots = keys.slots if keys.slots.ndim == 1 else keys.slots[:, None, :]
    seen = slots <= call.slots[..., None]
    if call.blocks is not None:
        seen = seen | _same_block(call.blocks, call.slots, keys.slots)
    return seen & keys.valid[:, None, :]


def _same_block(blocks: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Returns bool [B, q, K], whether a query and a key belong to one block."""
    last = blocks.shape[1] - 1
    query = blocks.gather(1, queries)[..., None]
    key = blocks.gather(1, keys.clamp(0, last).expand(blocks.shape[0], -1))[:, None]
    return (query == key) & (query >= 0)


def _sliding(call: Call, keys: Keys, reach: int | None) -> Tensor:
    # Distance in real tokens, not in slots: a hole in a row does not shorten what it can see.
    allowed = _full(call, keys, None)
    if reach is None:
        return allowed
    query, key = _ranks(call, keys)
    return allowed & (query - key < reach)


def _chunked(call: Call, keys: Keys, reach: int | None) -> Tensor:
    # Chunks of a row begin with its first real token.
    assert reach is not None
    query, key = _ranks(call, keys)
    return _full(call, keys, None) & (query // reach == key // reach)


def _ranks(call: Call, keys: Keys) -> tuple[Tensor, Tensor]:
    """Returns the ranks of the queries, int64 [B, q, 1], and of the keys, int64 [B, 1 or q, K].

    Where the caller says who may attend to whom, a query counts what it may see: its own sequence,
    whatever else lies in between.
    """
    if call.allowed is not None:
        within = call.allowed.cumsum(dim=2) - call.allowed.to(torch.int64)  # [B, q, T]
        return within.gather(2, call.slots[..., None]), within[..., : keys.slots.shape[0]]
    rank = call.valid.cumsum(dim=1) - call.valid.to(torch.int64)  # [B, T]
    if keys.slots.ndim == 1:  # slots from 0 on
        key = rank[:, : keys.slots.shape[0]]
    else:
        key = rank.gather(1, keys.slots.clamp(0, rank.shape[1] - 1))
    return rank_at(call.valid, call.slots)[..., None], key[:, None, :]


# A kind of attention layer is one function `(call, keys, reach) -> bool [B, q, K]` and one row.
# `reach` is the window of a sliding layer, the length of a chunk, None elsewhere.
# (A plain dict: dynamo takes no mapping proxy inside a program of several steps.)
MASKS: Mapping[str, Callable[[Call, Keys, int | None], Tensor]] = {
    "full_attention": _full,
    "sliding_attention": _sliding,
    "chunked_attention": _chunked,
}
