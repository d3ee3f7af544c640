"""What a decoder remembers of its encoder: keys and values that no step changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from bridge.layers.base import Entry, Layer

__all__ = ["CrossLayer", "CrossSpec"]


@dataclasses.dataclass(frozen=True)
class CrossSpec:
    """What one layer keeps for a position of the encoder.

    Attributes:
        key: tuple (H, D), key heads and their width.
        value: tuple (H, D), value heads and their width.
        dtype: torch.dtype of both.
        device: torch.device of both.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    def empty(self, batch_size: int) -> Entry:
        """Returns `{"k": [B, H, 0, D], "v": [B, H, 0, D]}`: the encoder has not run yet."""
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        return {
            "k": torch.zeros(batch_size, self.key[0], 0, self.key[1], **options),
            "v": torch.zeros(batch_size, self.value[0], 0, self.value[1], **options),
        }

    def num_bytes(self, positions: int) -> int:
        """Returns the bytes of a row whose encoder has read so many positions."""
        numbers = self.key[0] * self.key[1] + self.value[0] * self.value[1]
        return positions * numbers * self.dtype.itemsize


class CrossLayer(Layer):
    """Takes what the prefill computes of the encoder; later gives it back."""

    def __init__(self, entry: Entry | None) -> None:
        super().__init__(0, 0, is_sliding=False)
        self.keys: Any = None if entry is None else entry["k"]
        self.values: Any = None if entry is None else entry["v"]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes keys and values [B, H, S, D] and returns them."""
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Returns S, or 0 before the prefill: from it transformers sees whether they are there."""
        return 0 if self.keys is None else int(self.keys.shape[2])

    def entry(self) -> Entry:
        """Returns `{"k": [B, H, S, D], "v": [B, H, S, D]}`."""
        return {"k": self.keys.contiguous(), "v": self.values.contiguous()}
