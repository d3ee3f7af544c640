"""Stops a row where the model does not know how to go on."""

from __future__ import annotations

from torch import Tensor

from purgen.settings import per_row, setting
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView

__all__ = ["entropy_above"]


def entropy_above(threshold: float | Tensor) -> StopRule:
    """Stops a row when its newest token was chosen from a distribution of high entropy.

    Args:
        threshold: at least 0, in nats (log V is the most there can be); a float, 0-d or [B] tensor.

    Returns:
        A `StopRule` with `StopReason.ENTROPY`.

    Raises:
        ValueError: below 0.

    Example:
        >>> import torch, purgen
        >>> rule = purgen.entropy_above(torch.tensor([1.0, 2.0]))
        >>> view = purgen.testing.example_view(num_new_tokens=1)
        >>> view = purgen.replace(view, entropy=torch.tensor([1.5, 1.5]))
        >>> rule.check(rule.init(view), view)[0]
        tensor([ True, False])
    """
    most = setting("entropy_above", "threshold", threshold, low=0.0)

    def init(context: TokenView) -> Tensor:
        return per_row("entropy_above", "threshold", most, context)

    def check(sstate: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        return view.entropy > sstate, sstate

    return StopRule(init, check, code=StopReason.ENTROPY)
