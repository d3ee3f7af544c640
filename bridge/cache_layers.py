"""Cache layers that a Hugging Face forward can write to without changing any tensor.

The forward calls `update(keys, values)` on a layer and attends over what comes back. A transformers
layer writes its buffers in place; these hold new values instead, and the caller reads them out.

A kind of layer is a spec (what an empty layer looks like) and two classes, one for the prefill and
one for a step. Both keep slot `t` of a row at index `t` of the buffer, so lowering the position
rewinds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

__all__ = ["AttentionSpec", "PrefillLayer", "StepLayer", "put"]


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """What one attention layer keeps for a slot.

    Attributes:
        key: tuple (H, D), key heads and their width.
        value: tuple (H, D), value heads and their width (they differ from the keys' in MLA).
        dtype: torch.dtype of both.
        device: torch.device of both.
        is_sliding: whether the layer attends within a window.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    is_sliding: bool = False

    def empty(self, batch_size: int, max_length: int) -> dict[str, Tensor]:
        """Returns `{"k": [B, H, T, D], "v": [B, H, T, D]}` of zeros.

        Zeros, and not uninitialised memory: a slot that is masked out still enters the attention
        with weight 0, and 0 times NaN is NaN.
        """
        heads, width = self.key
        value_heads, value_width = self.value
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        return {
            "k": torch.zeros(batch_size, heads, max_length, width, **options),
            "v": torch.zeros(batch_size, value_heads, max_length, value_width, **options),
        }


def put(buffer: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """Returns `buffer` with `new` written at a position of its own in each row.

    `aten.index_put`, because the compiler turns exactly this into a write in place where the loop
    owns the buffer. (Were all rows known to be at one slot, `[None, None, slots]` would be cheaper:
    a static flag that says so belongs here.)

    Args:
        buffer: floating [B, H, T, D].
        new: floating [B, H, q, D].
        position: int64 [B], the slot of the first of the `q`.

    Returns:
        Floating [B, H, T, D] with the strides of `buffer`.

    Example:
        >>> import torch
        >>> put(torch.zeros(2, 1, 3, 1), torch.ones(2, 1, 1, 1), torch.tensor([0, 2]))[:, 0, :, 0]
        tensor([[1., 0., 0.],
                [0., 0., 1.]])
    """
    rows = torch.arange(new.shape[0], device=new.device)[:, None]
    slots = position[:, None] + torch.arange(new.shape[2], device=new.device)
    # Two separate index dimensions go to the front: the values are [B, q, H, D].
    return torch.ops.aten.index_put(buffer, [rows, None, slots], new.transpose(1, 2))


class _Layer(CacheLayerMixin):
    """What transformers asks a layer for, besides `update`."""

    is_compileable = True

    def __init__(self, entry: dict[str, Tensor], position: Any, is_sliding: bool) -> None:
        super().__init__()
        self.keys, self.values = entry["k"], entry["v"]  # [B, H, T, D]
        self.position = position  # slots in the cache before this call: int64 [B], or 0
        self.is_sliding = is_sliding
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do: a layer is made from existing buffers."""

    def get_seq_length(self) -> Any:
        """Returns how many slots were filled before this call; it does not move during the call."""
        return self.position

    def get_max_length(self) -> int:
        """Returns the capacity T."""
        return self.keys.shape[2]

    def entry(self) -> dict[str, Tensor]:
        """Returns the layer's new part of the cache, `{"k": [B, H, T, D], "v": [B, H, T, D]}`."""
        return {"k": self.keys, "v": self.values}


class StepLayer(_Layer):
    """Writes at the row's position and attends over the whole buffer."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, q, D], returns all [B, H, T, D]."""
        self.keys = put(self.keys, key_states, self.position)
        self.values = put(self.values, value_states, self.position)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many slots are attended over, and the first of them."""
        return self.keys.shape[2], 0


class PrefillLayer(_Layer):
    """Writes the first slots of an empty cache and attends over the new tokens alone."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, P, D] and returns them."""
        width = key_states.shape[2]
        self.keys = torch.slice_scatter(self.keys, key_states, dim=2, start=0, end=width)
        self.values = torch.slice_scatter(self.values, value_states, dim=2, start=0, end=width)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many slots are attended over, and the first of them."""
        return query_length, 0
