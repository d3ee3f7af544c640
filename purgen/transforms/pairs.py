"""What the transforms share that read rows in pairs: conditional rows first, then unconditional."""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.view import TokenView

__all__ = ["both_halves", "check_pairs", "combine", "halves"]


def check_pairs(owner: str, context: TokenView) -> None:
    """Raises ValueError if the rows of a batch cannot be paired."""
    rows = context.tokens.shape[0]
    if rows % 2:
        raise ValueError(
            f"{owner}: the batch has {rows} rows; it must have an even number, the conditional rows "
            "in the first half and the unconditional ones in the second"
        )


def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Splits [2B, ...] into the conditional rows [B, ...] and the unconditional ones."""
    middle = rows.shape[0] // 2
    return rows[:middle], rows[middle:]


def both_halves(rows: Tensor) -> Tensor:
    """Gives both rows of each pair the same: [B, ...] to [2B, ...]."""
    return torch.cat([rows, rows])


def combine(
    base: Tensor, conditional: Tensor, unconditional: Tensor, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Moves `base` along the direction that the condition gives.

    Where one of a pair is infinite there is no direction: the conditional logit stands. So what the
    condition forbids stays forbidden, and nothing becomes NaN.

    Args:
        base: float32 [B, V].
        conditional: float32 [B, V], without NaN.
        unconditional: float32 [B, V], without NaN.
        scale: float32 [B, 1].
        dtype: of the result, whose range ends what is moved.

    Returns:
        `dtype` [B, V].
    """
    moved = base + (conditional - unconditional) * scale
    largest = torch.finfo(dtype).max
    moved = moved.clamp(-largest, largest)
    finite = conditional.isfinite() & unconditional.isfinite()
    return torch.where(finite, moved, conditional).to(dtype)
