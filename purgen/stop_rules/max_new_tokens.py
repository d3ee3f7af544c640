"""Stops a row at a number of new tokens."""

from __future__ import annotations

from torch import Tensor

from purgen.settings import per_row, setting
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView

__all__ = ["max_new_tokens"]


def max_new_tokens(max_new_tokens: int | Tensor) -> StopRule:
    """Stops a row that has `max_new_tokens` new tokens: a budget a row.

    The budget of the whole call, `purgen.generate(..., max_new_tokens=…)`, holds besides.

    Args:
        max_new_tokens: at least 1; an int, 0-d or [B] int64 tensor.

    Returns:
        A `StopRule` with `StopReason.MAX_NEW_TOKENS`.

    Raises:
        ValueError: below 1.

    Example:
        >>> import torch, purgen
        >>> rule = purgen.max_new_tokens(torch.tensor([1, 2]))
        >>> view = purgen.testing.example_view([[4, 5, 6], [7, 8, 9]], num_new_tokens=1)
        >>> rule.check(rule.init(view), view)[0]
        tensor([ True, False])
    """
    limit = setting("max_new_tokens", "max_new_tokens", max_new_tokens, low=1, integer=True)

    def init(context: TokenView) -> Tensor:
        return per_row("max_new_tokens", "max_new_tokens", limit, context)

    def check(sstate: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        return view.num_new_tokens >= sstate, sstate

    return StopRule(init, check, code=StopReason.MAX_NEW_TOKENS)
