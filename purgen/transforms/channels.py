"""What the transforms share that read rows as the channels of sequences, channels side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.view import TokenView

__all__ = ["channel_per_row", "check_channels"]


def check_channels(owner: str, num_channels: int) -> int:
    """Returns `num_channels`, or raises if it is no int of at least 1."""
    if not isinstance(num_channels, int) or isinstance(num_channels, bool):
        kind = type(num_channels).__name__
        raise TypeError(f"{owner}: num_channels must be an int, not {kind} {num_channels!r}")
    if num_channels < 1:
        raise ValueError(f"{owner}: num_channels must be at least 1, not {num_channels}")
    return num_channels


def channel_per_row(owner: str, num_channels: int, context: TokenView) -> Tensor:
    """Lays out the channel of each row.

    Args:
        owner: the factory's name, for messages.
        num_channels: C.
        context: the view a generation begins with.

    Returns:
        int64 [B * C], 0 … C - 1 for each sequence.

    Raises:
        ValueError: the number of rows is no multiple of C.
    """
    rows = context.tokens.shape[0]
    if rows % num_channels:
        raise ValueError(
            f"{owner}: the batch has {rows} rows, which is no multiple of {num_channels} channels"
        )
    return torch.arange(rows, device=context.tokens.device) % num_channels
