r"""Sequence bias: a token is made more or less likely where it completes a sequence.

$\ell_i \to \ell_i + \sum_s b_s$ over the sequences $s$ that end with token $i$ and whose other tokens
are the last ones of the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.sequences import check_sequences, sequence_of_ids, sequence_table
from purgen.view import TokenView

__all__ = ["sequence_bias"]


def sequence_bias(
    sequence_bias: Mapping[tuple[int, ...], float | Tensor] | Sequence[Sequence[Any]],
) -> LogitsTransform:
    """Adds a bias to the last token of a sequence where the tokens before it are there.

    A sequence of one token is always biased. One that reaches back before the start of a row is not.
    Biases of sequences with the same last token add up. What is forbidden stays so: a logit or a bias
    of -inf wins over everything, then +inf.

    Args:
        sequence_bias: `[[ids, bias], …]` or `{(id, …): bias, …}`, each sequence once; a bias is a
            float (±inf too), a 0-d or a [B] tensor.

    Returns:
        A `LogitsTransform`. Equal to `SequenceBiasLogitsProcessor` where that is not NaN, on rows
        without pads.

    Raises:
        TypeError: an id is no integer, a bias is no number.
        ValueError: no sequence, an empty one, one given twice, a NaN bias, an id outside the
            vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.sequence_bias([[[3], -1.0], [[1, 2], 5.0]])
        >>> view = purgen.testing.example_view([[0, 1], [1, 0]], vocab_size=4)
        >>> transform.apply(transform.init(view), torch.zeros(2, 4), view)[0]
        tensor([[ 0.,  0.,  5., -1.],
                [ 0.,  0.,  0., -1.]])
    """
    owner = "sequence_bias"
    biases: dict[tuple[int, ...], Tensor] = {}
    for ids, bias in _pairs(sequence_bias):
        sequence = sequence_of_ids(owner, owner, ids)
        if sequence in biases:
            raise ValueError(f"{owner}: sequence_bias holds {list(sequence)} twice")
        biases[sequence] = setting(owner, f"the bias of {list(sequence)}", bias, low=-torch.inf)
    if not biases:
        raise ValueError(f"{owner}: sequence_bias is empty; it must hold a sequence and its bias")
    table = sequence_table(list(biases))
    # Each last token once, so that a step touches only these logits.
    last, column = table.last.unique(return_inverse=True)

    def init(context: TokenView) -> Tensor:
        check_sequences(owner, owner, list(biases), context)
        rows = [
            per_row(owner, f"the bias of {list(ids)}", bias, context)
            for ids, bias in biases.items()
        ]
        return torch.stack(rows, dim=1)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        token, place = last.to(scores.device), column.to(scores.device)
        bias = torch.where(table.completed(view), tstate, 0.0)  # [B, S]
        total = _add_up(bias, place, len(token))
        old = scores.index_select(1, token).float()
        forbidden = (old == -torch.inf) | (total == -torch.inf)
        new = torch.where(forbidden, -torch.inf, old + total)
        return scores.index_copy(1, token, new.to(scores.dtype)), tstate

    return LogitsTransform(init, apply)


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return list(given.items())
    wanted = "sequence_bias: sequence_bias must be [[ids, bias], …] or {(id, …): bias, …}, not"
    if isinstance(given, str | Tensor) or not isinstance(given, Sequence):
        raise TypeError(f"{wanted} {given!r}")
    for pair in given:
        if isinstance(pair, str | Tensor) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"{wanted} {pair!r} in a list")
    return [(pair[0], pair[1]) for pair in given]


def _add_up(bias: Tensor, column: Tensor, columns: int) -> Tensor:
    """Adds [B, S] up to [B, columns]; -inf wins over +inf, and both over the finite."""
    finite = torch.where(bias.isfinite(), bias, 0.0)
    zeros = torch.zeros(len(bias), columns, device=bias.device)
    total = zeros.index_add(1, column, finite)
    index = column.expand(bias.shape)
    least = zeros.scatter_reduce(1, index, bias, "amin")
    most = zeros.scatter_reduce(1, index, bias, "amax")
    total = torch.where(most == torch.inf, most, total)
    return torch.where(least == -torch.inf, least, total)
