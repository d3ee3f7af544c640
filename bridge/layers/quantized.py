"""Keys and values in 8 bits, with a scale for each token and head.

A token is quantised once, when it is written, and never again: reordering, repeating and rewinding
are exact on what is held, and a block of tokens gives what single steps give.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from bridge.layers.attention import AttentionSpec, put
from bridge.layers.base import Call, Entry, Keys, Layer, lengthened

__all__ = ["QuantizedSpec"]

_LARGEST = 127


@dataclasses.dataclass(frozen=True)
class QuantizedSpec:
    """What a layer keeps for a slot, in int8.

    Attributes:
        attention: the layer.
    """

    attention: AttentionSpec

    slot_addressed = True
    rewind = None

    @property
    def window(self) -> int | None:
        """How many tokens back it sees, or None."""
        return self.attention.window

    @property
    def kind(self) -> str:
        """The kind of mask."""
        return self.attention.kind

    def empty(self, batch_size: int, max_length: int) -> Entry:
        """Returns `"k"` and `"v"`, int8 [B, H, T, D], and `"k_scale"` and `"v_scale"` [B, H, T, 1]."""
        entry = {}
        for name, buffer in self.attention.empty(batch_size, max_length).items():
            entry[name] = torch.zeros_like(buffer, dtype=torch.int8)
            entry[f"{name}_scale"] = torch.zeros_like(buffer[..., :1])
        return entry

    def layer(self, entry: Entry, call: Call) -> Layer:
        """Returns the layer of one call (see `LayerSpec`)."""
        return _QuantizedLayer(entry, call, is_sliding=self.attention.window is not None)

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns all slots in a step, the new ones in a prefill."""
        return self.attention.keys(entry, call)

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns an entry for `max_length` slots with the same content."""
        return {name: lengthened(buffer, max_length, dim=2) for name, buffer in entry.items()}

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns `after`: beyond the position of a row that has not moved, nothing means anything."""
        return after

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B], the slots within reach of the next token."""
        return self.attention.held(entry, seen)

    def num_bytes(self, max_length: int) -> int:
        """Returns the bytes of a row of `max_length` slots."""
        heads = self.attention.key[0] + self.attention.value[0]
        itemsize = self.attention.dtype.itemsize
        numbers = self.attention.num_bytes(max_length) // itemsize
        return numbers + max_length * heads * itemsize


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int8 [..., D] and scales [..., 1], whose product is within half a scale of `values`.

    Args:
        values: floating [..., D].

    Example:
        >>> import torch
        >>> whole, scale = quantize(torch.tensor([[1.0, -2.0, 0.5]]))
        >>> whole
        tensor([[ 64, -127,   32]], dtype=torch.int8)
    """
    scale = values.abs().amax(dim=-1, keepdim=True) / _LARGEST
    whole = (values / scale.clamp(min=torch.finfo(values.dtype).tiny)).round()
    return whole.clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


class _QuantizedLayer(Layer):
    def __init__(self, entry: Entry, call: Call, *, is_sliding: bool) -> None:
        capacity = entry["k"].shape[2]
        count = call.width if call.first else capacity
        super().__init__(0 if call.first else call.position, count, is_sliding=is_sliding)
        self.stored, self.call = entry, call

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, q, D]; returns what is held of all, or of these."""
        stored, attended = dict(self.stored), []
        for name, new in (("k", key_states), ("v", value_states)):
            whole, scale = quantize(new)
            stored[name] = put(stored[name], whole, self.call.position)
            stored[f"{name}_scale"] = put(stored[f"{name}_scale"], scale, self.call.position)
            if not self.call.first:
                whole, scale = stored[name], stored[f"{name}_scale"]
            attended.append(whole.to(new.dtype) * scale)
        self.stored = stored
        return tuple(attended)

    def entry(self) -> Entry:
        """Returns the entry with the new tokens in it."""
        return self.stored
