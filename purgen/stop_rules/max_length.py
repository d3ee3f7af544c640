"""Stops a row at a number of tokens, prompt included."""

from __future__ import annotations

from torch import Tensor

from purgen.concrete import is_concrete
from purgen.settings import per_row, setting
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView

__all__ = ["max_length"]


def max_length(max_length: int | Tensor) -> StopRule:
    """Stops a row that has `max_length` tokens, prompt and new ones together.

    Pads do not count, so a row stops at the same token alone and in a batch. (`MaxLengthCriteria`
    counts columns, left pads among them.)

    Args:
        max_length: at least 1; an int, 0-d or [B] int64 tensor.

    Returns:
        A `StopRule` with `StopReason.MAX_LENGTH`.

    Raises:
        ValueError: below 1, or, when a generation begins, not above the length of a prompt.

    Example:
        >>> import torch, purgen
        >>> rule = purgen.max_length(torch.tensor([4, 5]))
        >>> before, after = (purgen.testing.example_view([[1] * n, [1] * n]) for n in (3, 4))
        >>> rule.check(rule.init(before), after)[0]
        tensor([ True, False])
    """
    limit = setting("max_length", "max_length", max_length, low=1, integer=True)

    def init(context: TokenView) -> Tensor:
        limits = per_row("max_length", "max_length", limit, context)
        count = context.prompt_length - context.start
        if is_concrete(limits, count) and bool((count >= limits).any()):
            row = int((count >= limits).nonzero()[0])
            raise ValueError(
                f"max_length: {int(limits[row])} leaves no room for a new token in row {row}, whose "
                f"prompt has {int(count[row])}"
            )
        return limits

    def check(sstate: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        return view.length - view.start >= sstate, sstate

    return StopRule(init, check, code=StopReason.MAX_LENGTH)
