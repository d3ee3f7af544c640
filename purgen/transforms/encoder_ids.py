"""The tokens that an encoder was given, as transforms take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.transforms.ngrams import NO_TOKEN
from purgen.view import TokenView

__all__ = ["EncoderIds", "encoder_ids", "encoder_rows"]

EncoderIds = Tensor | Sequence[int] | Sequence[Sequence[int]]


def encoder_ids(owner: str, ids: EncoderIds, mask: Tensor | None) -> Tensor:
    """Checks encoder inputs at the place where they are given.

    Args:
        owner: the factory's name, for messages.
        ids: integers [R, S] or [S]; or lists of ids, which may differ in length.
        mask: for a tensor: bool or 0/1 of the same shape, True at real tokens; None where all are.

    Returns:
        int64 [R, S], the real tokens of each row side by side, `NO_TOKEN` after them.

    Raises:
        TypeError: not integers.
        ValueError: an empty input, a negative id, another shape, a mask that does not fit.
    """
    if not isinstance(ids, Tensor):
        if mask is not None:
            raise ValueError(
                f"{owner}: encoder_attention_mask goes with a tensor; lists hold real tokens only"
            )
        ids, mask = _from_lists(owner, ids)
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{owner}: encoder_input_ids must hold integers, not {ids.dtype}")
    if ids.ndim not in (1, 2) or not ids.numel():
        raise ValueError(
            f"{owner}: encoder_input_ids must be [R, S] or [S] and not empty, not {list(ids.shape)}"
        )
    if mask is not None and mask.shape != ids.shape:
        raise ValueError(
            f"{owner}: encoder_attention_mask is {list(mask.shape)} and encoder_input_ids "
            f"{list(ids.shape)}; they must be the same"
        )
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(ids.device) != 0
    ids, real = ids.long().reshape(-1, ids.shape[-1]), real.reshape(-1, ids.shape[-1])
    if is_concrete(ids, real) and bool(((ids < 0) & real).any()):
        bad = int(ids[(ids < 0) & real][0])
        raise ValueError(f"{owner}: encoder_input_ids holds {bad}; a token id is at least 0")
    order = (~real).int().argsort(dim=1, stable=True)
    return torch.where(real, ids, NO_TOKEN).gather(1, order)


def encoder_rows(owner: str, ids: Tensor, context: TokenView) -> Tensor:
    """Lays encoder inputs out a row each.

    Args:
        owner: the factory's name, for messages.
        ids: int64 [R, S], as `encoder_ids` returns them.
        context: the view a generation begins with, of B rows.

    Returns:
        int64 [B, S] on the device of the tokens. Where B is a multiple of R, each of the R stands
        for B / R neighbouring rows.

    Raises:
        ValueError: B is no multiple of R.
    """
    rows = context.tokens.shape[0]
    if rows % len(ids):
        raise ValueError(
            f"{owner}: encoder_input_ids has {len(ids)} rows, and the batch has {rows} rows"
        )
    return ids.to(context.tokens.device).repeat_interleave(rows // len(ids), dim=0)


def _from_lists(
    owner: str, ids: Sequence[int] | Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor | None]:
    rows = [[row] if isinstance(row, int) else list(row) for row in ids]
    if all(isinstance(row, int) for row in ids):
        rows = [[token for row in rows for token in row]]
    for token in (token for row in rows for token in row):
        if not isinstance(token, int) or isinstance(token, bool):
            raise TypeError(f"{owner}: encoder_input_ids must hold ints, not {token!r}")
    width = max((len(row) for row in rows), default=0)
    padded = [[*row, *[0] * (width - len(row))] for row in rows]
    real = [[place < len(row) for place in range(width)] for row in rows]
    return torch.tensor(padded, dtype=torch.int64), torch.tensor(real, dtype=torch.bool)
