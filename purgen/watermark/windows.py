"""Windows of a text: the n-grams that a detector scores."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_text", "p_value", "spread", "windows"]


def check_text(owner: str, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Checks a text and its mask.

    Args:
        owner: the detector's name, for messages.
        tokens: int64 [B, L].
        mask: bool or 0/1 [B, L], or None where every token counts.

    Returns:
        `(tokens, mask)`, the mask as bool [B, L].

    Raises:
        TypeError: `tokens` is no int64 tensor.
        ValueError: a wrong shape.
    """
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64:
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"{owner}: tokens must be an int64 tensor [B, L], not {kind}")
    if tokens.ndim != 2:
        raise ValueError(f"{owner}: tokens must be [B, L], not {list(tokens.shape)}")
    if mask is None:
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    if mask.shape != tokens.shape:
        raise ValueError(
            f"{owner}: mask must be {list(tokens.shape)}, like tokens, not {list(mask.shape)}"
        )
    return tokens, mask.bool()


def spread(owner: str, name: str, value: Tensor, tokens: Tensor) -> Tensor:
    """Lays a setting, 0-d or [B], out as one number a row of `tokens` [B, L].

    Raises:
        ValueError: a tensor [n] where the batch has another number of rows.
    """
    rows = tokens.shape[0]
    if value.ndim == 1 and value.shape[0] != rows:
        raise ValueError(
            f"{owner}: {name} has {value.shape[0]} numbers, one a row, and the batch has {rows} rows"
        )
    return value.to(tokens.device).expand(rows)


def windows(tokens: Tensor, mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Lays out all runs of `size` tokens.

    Args:
        tokens: int64 [B, L].
        mask: bool [B, L], False at pads, which lie on either side.
        size: n.

    Returns:
        `(windows, counts)`: int64 [B, M, n] with M = L - n + 1, and bool [B, M], whether a window
        holds no pad. M is 0 where the text is too short.
    """
    if tokens.shape[1] < size:
        empty = tokens.new_zeros(tokens.shape[0], 0, size)
        return empty, empty.any(dim=-1)
    return tokens.unfold(1, size, 1), mask.unfold(1, size, 1).all(dim=-1)


def p_value(z_score: Tensor) -> Tensor:
    """Returns the probability that a standard normal number is above `z_score`, elementwise."""
    return 0.5 * torch.special.erfc(z_score / 2**0.5)
