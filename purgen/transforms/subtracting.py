"""What presence and frequency penalty share: subtracting from the logits of tokens that are there."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, per_row, setting, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.seen import change_logits, check_scope, count_tokens, in_scope, member_of
from purgen.view import TokenView

__all__ = ["subtract_from_seen"]


def subtract_from_seen(
    owner: str,
    penalty: float | Tensor,
    *,
    scope: str,
    exempt: int | Iterable[int] | Tensor,
    each_time: bool,
) -> LogitsTransform:
    """Makes a transform that subtracts `penalty` from the finite logits of the tokens seen.

    Args:
        owner: the factory's name, for messages.
        penalty: any finite number; a float, 0-d or [B] tensor.
        scope: which tokens count, one of `seen.SCOPES`.
        exempt: ids that are never penalised.
        each_time: whether for each time that the token occurs, or once.

    Returns:
        A `LogitsTransform`.

    Raises:
        TypeError: a setting of the wrong kind.
        ValueError: one out of its range.
    """
    largest = torch.finfo(torch.float32).max
    strength = setting(owner, "penalty", penalty, low=-largest, high=largest)
    spared = token_ids(owner, "exempt", exempt, empty=True)
    is_spared = member_of(spared)
    check_scope(owner, scope)

    def init(context: TokenView) -> Tensor:
        check_vocabulary(owner, "exempt", spared, context)
        return per_row(owner, "penalty", strength, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        counts = in_scope(view, scope) & ~is_spared(view.tokens)
        number = count_tokens(view.tokens, counts, logits.shape[-1]) if each_time else None

        def penalised(old: Tensor, tokens: Tensor) -> Tensor:
            times = 1.0 if number is None else number.gather(1, tokens)
            return torch.where(old.isfinite(), old.float() - tstate[:, None] * times, old)

        return change_logits(forbid_nan(logits), view.tokens, counts, penalised), tstate

    return LogitsTransform(init, apply)
