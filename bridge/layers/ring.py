"""A sliding window as a ring: memory that does not grow with the length of a sequence.

Slot `t` of a row lies at index `t % R`, where R is the window and some slack. Lowering the position
rewinds by up to the slack; further back, tokens that are needed again have been overwritten.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from bridge.layers.attention import AttentionSpec
from bridge.layers.base import Call, Entry, Keys, Layer
from purgen.pytree import where_rows

__all__ = ["RingSpec"]


@dataclasses.dataclass(frozen=True)
class RingSpec:
    """What a sliding layer keeps of the last tokens.

    Attributes:
        attention: the layer, with its window.
        slack: int, how many slots it can be rewound by, and fed at once without a copy of the ring.
    """

    attention: AttentionSpec
    slack: int

    slot_addressed = True

    @property
    def window(self) -> int | None:
        """How many tokens back it sees, or None."""
        return self.attention.window

    @property
    def kind(self) -> str:
        """The kind of mask."""
        return self.attention.kind

    @property
    def rewind(self) -> int:
        """How many slots it can be rewound by."""
        return self.slack

    @property
    def size(self) -> int:
        """R, how many slots it holds."""
        assert self.attention.window is not None
        return self.attention.window + self.slack

    def empty(self, batch_size: int, max_length: int) -> Entry:
        """Returns `{"k": [B, H, R, D], "v": [B, H, R, D]}`, whatever `max_length` is."""
        return self.attention.empty(batch_size, self.size)

    def layer(self, entry: Entry, call: Call) -> Layer:
        """Returns the layer of one call (see `LayerSpec`)."""
        return _RingLayer(entry, call, whole=self._whole(call))

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns what lies in the ring, after the new tokens or before them and then these."""
        if call.first:
            return Keys(slots=call.slots, valid=call.valid[:, : call.width])
        end = call.slots[:, :1] + (call.width if self._whole(call) else 0)  # [B, 1]
        index = torch.arange(self.size, device=end.device)
        slots = end - 1 - (end - 1 - index) % self.size  # the newest slot below `end` at each index
        if not self._whole(call):
            slots = torch.cat([slots, call.slots], dim=1)
        there = call.valid.gather(1, slots.clamp(0, call.valid.shape[1] - 1))
        return Keys(slots=slots, valid=there & (slots >= 0))

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns a copy: a ring does not grow."""
        return {name: buffer.clone() for name, buffer in entry.items()}

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns the old ring in rows that have not moved: a write overwrites what was held."""
        return where_rows(moves, after, before)

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B], the slots within reach of the next token."""
        return self.attention.held(entry, seen)

    def num_bytes(self, max_length: int) -> int:
        """Returns the bytes of a row, whatever its length."""
        return self.attention.num_bytes(self.size)

    def _whole(self, call: Call) -> bool:
        """Whether the ring holds, after the new tokens, all that the first of them may see."""
        return not call.first and call.width <= self.slack + 1


class _RingLayer(Layer):
    """Writes each new token over the one R slots before it."""

    def __init__(self, entry: Entry, call: Call, *, whole: bool) -> None:
        size = entry["k"].shape[2]
        attended = call.width if call.first else size + (0 if whole else call.width)
        super().__init__(0 if call.first else call.position, attended, is_sliding=True)
        self.ring, self.call, self.whole = entry, call, whole

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, q, D]; returns what the queries attend over."""
        before, new = self.ring, {"k": key_states, "v": value_states}
        self.ring = {name: self._put(before[name], new[name]) for name in before}
        if self.whole:
            return self.ring["k"], self.ring["v"]
        if self.call.first:
            return key_states, value_states
        return tuple(torch.cat([before[name], new[name]], dim=2) for name in ("k", "v"))

    def _put(self, buffer: Tensor, new: Tensor) -> Tensor:
        # Not in place, even where the loop owns the ring: rows that have stopped want the old one.
        size = buffer.shape[2]
        index = self.call.slots[:, -size:] % size
        rows = torch.arange(index.shape[0], device=index.device)[:, None]
        return torch.ops.aten.index_put(
            buffer, [rows, None, index], new[:, :, -size:].transpose(1, 2)
        )

    def entry(self) -> Entry:
        """Returns `{"k": [B, H, R, D], "v": [B, H, R, D]}`."""
        return self.ring
