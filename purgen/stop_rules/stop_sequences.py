"""Stops a row whose newest tokens are a given sequence of ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from purgen.settings import check_vocabulary, token_ids
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView

__all__ = ["stop_sequences"]


def stop_sequences(sequences: Sequence[int] | Iterable[Sequence[int] | Tensor]) -> StopRule:
    """Stops a row whose newest tokens, all of them new, are one of several sequences.

    Ids are compared, not text: a text that is tokenised otherwise does not stop the row (see
    `stop_strings`). The sequence stays in the output.

    Args:
        sequences: a sequence of ids, or several; none empty.

    Returns:
        A `StopRule` with `StopReason.STOP_SEQUENCE`.

    Raises:
        TypeError: something else than integers.
        ValueError: no sequence, an empty one, or an id outside the vocabulary.

    Example:
        >>> import purgen
        >>> rule = purgen.stop_sequences([[5, 6], [7]])
        >>> view = purgen.testing.example_view([[1, 5, 6], [5, 6, 4], [1, 1, 7]], num_new_tokens=2)
        >>> rule.check(rule.init(view), view)[0]
        tensor([ True, False,  True])
    """
    rows = _checked(sequences)
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), -1)  # int64 [n, K], right-aligned
    for index, row in enumerate(rows):
        ids[index, longest - len(row) :] = torch.tensor(row)
    sizes = torch.tensor([len(row) for row in rows])  # int64 [n]
    place = torch.arange(longest)  # int64 [K]
    used = torch.unique(ids[ids >= 0])

    def init(context: TokenView) -> tuple[()]:
        check_vocabulary("stop_sequences", "sequences", used, context)
        return ()

    def check(sstate: tuple[()], view: TokenView) -> tuple[Tensor, tuple[()]]:
        device = view.tokens.device
        wanted, size = ids.to(device), sizes.to(device)
        slot = view.length[:, None] - longest + place.to(device)  # [B, K]
        newest = view.tokens.gather(1, slot.clamp(min=0))
        same = ((newest[:, None] == wanted) | (wanted < 0)).all(dim=-1)  # [B, n]
        return (same & (size <= view.num_new_tokens[:, None])).any(dim=-1), sstate

    return StopRule(init, check, code=StopReason.STOP_SEQUENCE)


def _checked(sequences: Iterable[int | Sequence[int] | Tensor]) -> list[list[int]]:
    if isinstance(sequences, Tensor):
        sequences = sequences.tolist()
    if isinstance(sequences, str | int):
        raise TypeError(f"stop_sequences: sequences must be lists of ids, not {sequences!r}")
    rows = list(sequences)
    if rows and all(isinstance(row, int) for row in rows):
        rows = [rows]
    checked = []
    for index, row in enumerate(rows):
        ids = row.tolist() if isinstance(row, Tensor) else row
        if not isinstance(ids, list | tuple):
            raise TypeError(
                f"stop_sequences: sequences[{index}] must be a list of ids, not {row!r}"
            )
        token_ids("stop_sequences", f"sequences[{index}]", ids)
        checked.append(list(ids))
    if not checked:
        raise ValueError("stop_sequences: sequences is empty; it must hold a sequence")
    return checked
