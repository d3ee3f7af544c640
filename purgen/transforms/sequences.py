"""Sets of token sequences as tables, and which of them the next token may complete."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from purgen.transforms.ngrams import recent_tokens
from purgen.view import TokenView

__all__ = ["SequenceTable", "check_sequences", "is_id", "sequence_of_ids", "sequence_table"]

ANYTHING = -3  # left of a shorter sequence: whatever stands there


@dataclasses.dataclass(frozen=True)
class SequenceTable:
    """S sequences of at most k + 1 tokens, the same for all rows.

    Attributes:
        before: all but the last token of each, right-aligned after `ANYTHING`.
        last: the last token of each.
    """

    before: Tensor  # int64 [S, k]
    last: Tensor  # int64 [S]

    def completed(self, view: TokenView) -> Tensor:
        """Tells which sequences would be complete if the next token were their last one.

        Args:
            view: tokens [B, T] with their bounds; a sequence that reaches back before the start of a
                row does not count.

        Returns:
            bool [B, S]; always True for a sequence of one token.
        """
        before = self.before.to(view.tokens.device)
        recent = recent_tokens(view, before.shape[1])[:, None, :]  # [B, 1, k]
        return ((before == recent) | (before == ANYTHING)).all(dim=-1)


def is_id(value: Any) -> bool:
    """Tells whether a value can be a token id: an int, one of numpy's, or a tensor of one integer."""
    shape: Any = getattr(value, "shape", ())
    if isinstance(value, bool) or shape:
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def sequence_of_ids(owner: str, name: str, value: Any) -> tuple[int, ...]:
    """Checks a sequence of token ids at the place where it is given.

    Args:
        owner: the factory's name, for messages.
        name: the argument's name.
        value: a list, tuple or 1-d tensor of at least one id.

    Returns:
        The ids.

    Raises:
        TypeError: something else than integers.
        ValueError: a negative id, or none.
    """
    given = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{owner}: {name} must hold sequences of token ids, not {given!r}")
    ids = []
    for item in given:
        if not is_id(item):
            raise TypeError(f"{owner}: {name} must hold ints, not {item!r}")
        ids.append(operator.index(item))
        if ids[-1] < 0:
            raise ValueError(f"{owner}: {name} holds {ids[-1]}; a token id is at least 0")
    if not ids:
        raise ValueError(f"{owner}: {name} holds an empty sequence; it must have a token id")
    return tuple(ids)


def sequence_table(sequences: Sequence[Sequence[int]]) -> SequenceTable:
    """Lays sequences out as a table.

    Args:
        sequences: at least one, none empty.

    Returns:
        A `SequenceTable`.
    """
    size = max(len(ids) for ids in sequences) - 1
    before = [[ANYTHING] * (size - len(ids) + 1) + list(ids[:-1]) for ids in sequences]
    return SequenceTable(
        before=torch.tensor(before, dtype=torch.int64).reshape(len(sequences), size),
        last=torch.tensor([ids[-1] for ids in sequences], dtype=torch.int64),
    )


def check_sequences(
    owner: str, name: str, sequences: Sequence[Sequence[int]], context: TokenView
) -> None:
    """Raises ValueError if an id of one of the sequences lies outside the context's vocabulary."""
    largest = max(max(ids) for ids in sequences)
    if context.vocab_size and largest >= context.vocab_size:
        raise ValueError(
            f"{owner}: {name} holds {largest}, outside the vocabulary [0, {context.vocab_size})"
        )
