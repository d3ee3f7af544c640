"""The seam of cache layers: what a call is about, what a spec knows, what a forward writes to."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

__all__ = ["Call", "Entry", "Keys", "Layer", "LayerSpec"]

Entry = dict[str, Tensor]  # one layer's part of a cache; every leaf has rows first


@dataclasses.dataclass(frozen=True, eq=False)
class Keys:
    """What the queries of a call may attend to, one column an index of what `update` returns.

    Attributes:
        slots: int64 [K] or [B, K], the slot that lies there.
        valid: bool [B, K], whether it holds a real token.
    """

    slots: Tensor
    valid: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of `prefill` or `apply`.

    Attributes:
        position: int64 [B], or 0-d where all rows are at one slot: the slot of the first token fed.
        slots: int64 [B, q], the slots of the tokens fed.
        valid: bool [B, T], which slots hold real tokens once these are written.
        first: bool, whether this is the prefill of an empty cache (static).
        zero: floating [], 0 with the batch dimensions of `torch.vmap` that parameters and tokens have:
            what a module writes in place must have them too.
        allowed: bool [B, q, T] or None, who may attend to whom, where the caller says so: then neither
            the order of the slots nor `valid` does. Every layer then keeps every slot.
        blocks: int64 [B, T] or None: slots of a row with the same number from 0 on attend to each other
            in either direction (the tokens of an image); -1 elsewhere.
    """

    position: Tensor
    slots: Tensor
    valid: Tensor
    first: bool
    zero: Tensor
    allowed: Tensor | None = None
    blocks: Tensor | None = None

    @property
    def width(self) -> int:
        """q, how many tokens of each row are fed."""
        return self.slots.shape[1]


class LayerSpec(Protocol):
    """What one layer keeps, without the numbers."""

    @property
    def kind(self) -> str:
        """The kind of mask that its attention wants: a key of `bridge.masks.MASKS`."""
        ...

    @property
    def attention(self) -> Any:
        """The `AttentionSpec` of its attention, or None where it keeps no keys and values."""
        ...

    @property
    def slot_addressed(self) -> bool:
        """Whether feeding a token again at its slot changes nothing, so that it can be rewound."""
        ...

    @property
    def rewind(self) -> int | None:
        """How many slots lowering the position may go back; None: as many as there are."""
        ...

    def empty(self, batch_size: int, max_length: int) -> Entry:
        """Returns the entry of an empty cache."""
        ...

    def layer(self, entry: Entry, call: Call) -> Layer:
        """Returns what the forward writes to in one call."""
        ...

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns what lies where in the keys that the layer's `update` returns."""
        ...

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns an entry for `max_length` slots with the same content."""
        ...

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns `after` in rows where `moves` (bool [B]) holds, what `before` means elsewhere."""
        ...

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B], how many of the slots seen it can still attend to."""
        ...

    def num_bytes(self, max_length: int) -> int:
        """Returns the bytes of a row of `max_length` slots."""
        ...


class Layer(CacheLayerMixin):
    """What transformers asks a layer for, besides `update`.

    Args:
        position: slots in the cache before this call: int64 [B] or 0-d, or 0 in a prefill.
        num_keys: int, how many keys `update` returns.
        is_sliding: whether the layer attends within a window.
    """

    is_compileable = True

    def __init__(self, position: Any, num_keys: int, *, is_sliding: bool) -> None:
        super().__init__()
        self.position = self.seen = position
        self.num_keys = num_keys
        self.is_sliding = is_sliding
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do: a layer is made from existing buffers."""

    def get_seq_length(self) -> Any:
        """Returns what a module counts its positions from; it does not move during the call."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many slots are attended over, and the first of them."""
        return self.num_keys, 0

    def get_max_length(self) -> int:
        """Returns how many slots are attended over."""
        return self.num_keys

    def entry(self) -> Entry:
        """Returns the layer's new part of the cache."""
        raise NotImplementedError


def lengthened(buffer: Tensor, max_length: int, dim: int) -> Tensor:
    """Returns a tensor with `dim` made `max_length` long by zeros at its end, or cut to it."""
    size = buffer.shape[dim]
    if max_length <= size:
        return buffer.narrow(dim, 0, max_length).contiguous()
    shape = [*buffer.shape]
    shape[dim] = max_length
    longer = buffer.new_zeros(shape)
    return torch.slice_scatter(longer, buffer, dim=dim, start=0, end=size)
