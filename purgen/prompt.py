"""What a generation starts from, and the checks that it passes before any work."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.pytree import pytree_dataclass

__all__ = ["Prompt", "right_align"]


@pytree_dataclass
class Prompt:
    """A batch of prompts, padded on either side.

    Attributes:
        tokens: int64 [B, P], token ids.
        mask: bool (or integers 0 and 1) [B, P], True at real tokens, without holes. None says that
            every token is real; it is refused where `tokens` hold the pad id, since no id can tell
            a pad from a token (the pad id is often the eos id).
        inputs: dict of the model's other inputs, by the name that its forward uses.

    Example:
        >>> import purgen
        >>> purgen.Prompt.from_lists([[5, 6, 7], [8]], pad_token_id=0)
        Prompt(tokens=int64[2, 3], mask=bool[2, 3], inputs={})
    """

    tokens: Tensor  # int64 [B, P]
    mask: Tensor | None = None  # bool [B, P]
    inputs: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_lists(
        cls,
        sequences: Sequence[Sequence[int]],
        *,
        pad_token_id: int,
        padding_side: str = "left",
        inputs: dict[str, Any] | None = None,
    ) -> Prompt:
        """Pads lists of token ids to one width.

        Args:
            sequences: B lists of ids.
            pad_token_id: the id to pad with; it may also be a real token.
            padding_side: "left" or "right".
            inputs: the model's other inputs.

        Returns:
            A `Prompt` with its mask.

        Raises:
            ValueError: no sequences, an empty one, or an unknown side.
        """
        if padding_side not in ("left", "right"):
            raise ValueError(
                f"Prompt: padding_side must be 'left' or 'right', not {padding_side!r}"
            )
        rows = [list(row) for row in sequences]
        if not rows:
            raise ValueError("Prompt: sequences is empty; at least one prompt is needed")
        for index, row in enumerate(rows):
            if not row:
                raise ValueError(f"Prompt: sequence {index} is empty; a prompt needs a token")
            wrong = [
                token for token in row if not isinstance(token, int) or isinstance(token, bool)
            ]
            if wrong:
                raise TypeError(f"Prompt: sequence {index} holds {wrong[0]!r}; token ids are ints")
        width = max(len(row) for row in rows)
        tokens = torch.full((len(rows), width), pad_token_id, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for index, row in enumerate(rows):
            place = (
                slice(0, len(row)) if padding_side == "right" else slice(width - len(row), width)
            )
            tokens[index, place] = torch.tensor(row, dtype=torch.int64)
            mask[index, place] = True
        return cls(tokens=tokens, mask=mask, inputs=inputs or {})


def right_align(
    prompt: Prompt, *, vocab_size: int, pad_token_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Checks a prompt and moves the real tokens of each row to the right end.

    Args:
        prompt: what the caller gave.
        vocab_size: V, ids lie in `[0, V)`.
        pad_token_id: the id to write where there is no token.

    Returns:
        `(tokens, start, offset)`: int64 [B, P], the rows right-aligned; int64 [B], the first real
        slot of each; int64 [B], the first real column in the prompt as given.

    Raises:
        TypeError: `prompt` is no `Prompt`, or a tensor in it has the wrong dtype.
        ValueError: wrong shape, a row without tokens, a hole in the mask, an id outside the
            vocabulary, or no mask where one is needed.
    """
    tokens, mask = _checked(prompt, pad_token_id)
    count = mask.sum(dim=1)
    width = tokens.shape[1]
    column = torch.arange(width, device=tokens.device)
    offset = mask.long().argmax(dim=1)
    if is_concrete(tokens, mask):
        _check_rows(tokens, mask, offset, vocab_size)

    start = width - count
    source = (column - start[:, None] + offset[:, None]).clamp(min=0)
    aligned = torch.where(column >= start[:, None], tokens.gather(1, source), pad_token_id)
    return aligned, start, offset


def _check_rows(tokens: Tensor, mask: Tensor, offset: Tensor, vocab_size: int) -> None:
    """Refuses rows without tokens, holes, and ids outside the vocabulary."""
    count, column = mask.sum(dim=1), torch.arange(tokens.shape[1], device=tokens.device)
    empty = (count == 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(f"prompt: row {empty[0]} has no real token; every row needs at least one")
    block = (column >= offset[:, None]) & (column < (offset + count)[:, None])
    holes = (block != mask).any(dim=1).nonzero()[:, 0].tolist()
    if holes:
        raise ValueError(
            f"prompt: mask of row {holes[0]} has a hole: {mask[holes[0]].int().tolist()}; "
            "the real tokens of a row must be contiguous"
        )
    outside = (mask & ((tokens < 0) | (tokens >= vocab_size))).nonzero().tolist()
    if outside:
        row, place = outside[0]
        raise ValueError(
            f"prompt: token {int(tokens[row, place])} at row {row}, column {place} is outside the "
            f"vocabulary [0, {vocab_size})"
        )


def _checked(prompt: Prompt, pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Returns tokens as int64 [B, P] and the mask as bool [B, P]."""
    if not isinstance(prompt, Prompt):
        raise TypeError(
            f"prompt must be a purgen.Prompt, not {type(prompt).__name__}; "
            "make one with Prompt(tokens=…, mask=…), Prompt.from_lists or model.encode"
        )
    tokens, mask = prompt.tokens, prompt.mask
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"prompt: tokens must be an int64 tensor [B, P], not {kind}")
    if tokens.ndim != 2 or tokens.shape[0] == 0 or tokens.shape[1] == 0:
        raise ValueError(
            f"prompt: tokens must be [B, P] with B, P at least 1, not {list(tokens.shape)}"
        )
    tokens = tokens.long()
    if mask is None:
        pads = (tokens == pad_token_id).any(dim=1).nonzero()[:, 0].tolist()
        if pads:
            raise ValueError(
                f"prompt: row {pads[0]} holds the pad id {pad_token_id} and mask is None: pad or "
                "token cannot be told apart by the id; pass mask=, True at real tokens"
            )
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.is_floating_point() or mask.is_complex():
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"prompt: mask must be a tensor of bools or integers 0 and 1, not {kind}")
    if mask.shape != tokens.shape:
        raise ValueError(
            f"prompt: mask has shape {list(mask.shape)}, tokens have {list(tokens.shape)}; "
            "they must agree"
        )
    if mask.dtype != torch.bool:
        others = mask[(mask != 0) & (mask != 1)]
        if others.numel():
            raise ValueError(f"prompt: mask holds {int(others[0])}; it must be 0 or 1")
    return tokens, mask.bool()
