"""Full attention: slot `t` of a row is index `t` of its buffers, in windowed layers too.

Any row may be anywhere, and lowering the position rewinds. The forward calls `update(keys, values)`
and attends over what comes back. A transformers layer writes its buffers in place; these hold new
values instead, and the caller reads them out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from bridge.layers.base import Call, Entry, Keys, Layer, lengthened
from purgen.donation import write

__all__ = ["AttentionSpec", "put"]


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """What one attention layer keeps for a slot.

    Attributes:
        key: tuple (H, D), key heads and their width.
        value: tuple (H, D), value heads and their width (they differ from the keys' in MLA).
        dtype: torch.dtype of both.
        device: torch.device of both.
        kind: the kind of mask.
        window: int or None, how many tokens back it sees.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    kind: str = "full_attention"
    window: int | None = None

    slot_addressed = True
    rewind = None

    @property
    def attention(self) -> AttentionSpec:
        """The layer's attention: itself."""
        return self

    def empty(self, batch_size: int, max_length: int) -> Entry:
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

    def layer(self, entry: Entry, call: Call) -> Layer:
        """Returns the layer of one call (see `LayerSpec`)."""
        kind = _PrefillLayer if call.first else _StepLayer
        return kind(entry, call, is_sliding=self.window is not None)

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns all slots in a step, the new ones in a prefill."""
        count = call.width if call.first else entry["k"].shape[2]
        slots = torch.arange(count, device=call.valid.device)
        return Keys(slots=slots, valid=call.valid[:, :count])

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns an entry for `max_length` slots with the same content."""
        return {name: lengthened(buffer, max_length, dim=2) for name, buffer in entry.items()}

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns `after`: beyond the position of a row that has not moved, nothing means anything."""
        return after

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B], the slots within reach of the next token."""
        return seen if self.window is None else seen.clamp(max=self.window)

    def num_bytes(self, max_length: int) -> int:
        """Returns the bytes of a row of `max_length` slots."""
        numbers = self.key[0] * self.key[1] + self.value[0] * self.value[1]
        return max_length * numbers * self.dtype.itemsize


def put(buffer: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """Returns `buffer` with `new` written at a position of its own in each row, or at one for all.

    Args:
        buffer: floating [B, H, T, D].
        new: floating [B, H, q, D].
        position: int64 [B], the slot of the first of the `q`; or 0-d, where rows move together, which
            costs a third less in a compiled program at 32 rows.

    Returns:
        Floating [B, H, T, D] with the strides of `buffer`; `buffer` itself where it is donated.

    Example:
        >>> import torch
        >>> put(torch.zeros(2, 1, 3, 1), torch.ones(2, 1, 1, 1), torch.tensor([0, 2]))[:, 0, :, 0]
        tensor([[1., 0., 0.],
                [0., 0., 1.]])
        >>> put(torch.zeros(2, 1, 3, 1), torch.ones(2, 1, 1, 1), torch.tensor(1))[:, 0, :, 0]
        tensor([[0., 1., 0.],
                [0., 1., 0.]])
    """
    slots = position[..., None] + torch.arange(new.shape[2], device=new.device)
    if position.ndim == 0:
        return write(buffer, [None, None, slots], new)
    rows = torch.arange(new.shape[0], device=new.device)[:, None]
    # Two separate index dimensions go to the front: the values are [B, q, H, D].
    return write(buffer, [rows, None, slots], new.transpose(1, 2))


class _StepLayer(Layer):
    """Writes at the row's position and attends over the whole buffer."""

    def __init__(self, entry: Entry, call: Call, *, is_sliding: bool) -> None:
        super().__init__(call.position, entry["k"].shape[2], is_sliding=is_sliding)
        self.keys, self.values = entry["k"], entry["v"]  # [B, H, T, D]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, q, D], returns all [B, H, T, D]."""
        self.keys = put(self.keys, key_states, self.position)
        self.values = put(self.values, value_states, self.position)
        return self.keys, self.values

    def entry(self) -> Entry:
        """Returns `{"k": [B, H, T, D], "v": [B, H, T, D]}`."""
        return {"k": self.keys, "v": self.values}


class _PrefillLayer(Layer):
    """Writes the first slots of an empty cache and attends over the new tokens alone."""

    def __init__(self, entry: Entry, call: Call, *, is_sliding: bool) -> None:
        super().__init__(0, call.width, is_sliding=is_sliding)
        self.keys, self.values = entry["k"], entry["v"]  # [B, H, T, D]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, P, D] and returns them."""
        slots = torch.arange(key_states.shape[2], device=key_states.device)
        self.keys = write(self.keys, [None, None, slots], key_states)
        self.values = write(self.values, [None, None, slots], value_states)
        return key_states, value_states

    def entry(self) -> Entry:
        """Returns `{"k": [B, H, T, D], "v": [B, H, T, D]}`."""
        return {"k": self.keys, "v": self.values}
