"""Layers that keep nothing: they attend to what another layer keeps, or do not attend at all."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from bridge.layers.base import Call, Entry, Keys, Layer

__all__ = ["SharedSpec"]


@dataclasses.dataclass(frozen=True)
class SharedSpec:
    """A layer without a part of its own in the cache.

    Attributes:
        kind: the kind of mask that its attention wants.
    """

    kind: str = "full_attention"

    slot_addressed = True
    rewind = None
    attention = None

    def empty(self, batch_size: int, max_length: int) -> Entry:
        """Returns an entry without leaves."""
        return {}

    def layer(self, entry: Entry, call: Call) -> Layer:
        """Returns the layer of one call (see `LayerSpec`)."""
        return _SharedLayer(call.position, call.valid.shape[1], is_sliding=False)

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns all slots, as a layer of its own would have them."""
        count = call.width if call.first else call.valid.shape[1]
        slots = torch.arange(count, device=call.valid.device)
        return Keys(slots=slots, valid=call.valid[:, :count])

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns an entry without leaves."""
        return {}

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns an entry without leaves."""
        return {}

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B], what the layer that it shares with holds."""
        return seen

    def num_bytes(self, max_length: int) -> int:
        """Returns 0."""
        return 0


class _SharedLayer(Layer):
    is_dummy = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Refuses: such a layer has no keys of its own."""
        raise NotImplementedError("a layer without a part of its own in the cache was written to")

    def entry(self) -> Entry:
        """Returns an entry without leaves."""
        return {}
