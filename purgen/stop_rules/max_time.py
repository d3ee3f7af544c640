"""Stops a row when its time is up."""

from __future__ import annotations

from torch import Tensor

from purgen.settings import per_row, setting
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView

__all__ = ["max_time"]


def max_time(max_time: float | Tensor) -> StopRule:
    """Stops a row at its first token after `max_time` seconds.

    The rule reads no clock. The loop stamps the time since the generation began (`view.elapsed`; the
    prefill, and pauses between two calls, do not count) before each step, or before each chunk of
    steps where it runs several as one program. So a row goes on for at most the step, or chunk, in
    which its time runs out, and one more; what is emitted by then stays in the output. Where the
    steps fall depends on the machine: such a generation is not reproducible.

    Args:
        max_time: at least 0, in seconds; 0 stops at the first new token. A float, 0-d or [B] tensor.

    Returns:
        A `StopRule` with `StopReason.MAX_TIME`. `MaxTimeCriteria` reads the clock at each token.

    Raises:
        ValueError: below 0.

    Example:
        >>> import torch, purgen
        >>> rule = purgen.max_time(torch.tensor([0.5, 2.0]))
        >>> view = purgen.testing.example_view(num_new_tokens=1)
        >>> view = purgen.replace(view, elapsed=torch.tensor([1.0, 1.0]))
        >>> rule.check(rule.init(view), view)[0]
        tensor([ True, False])
    """
    limit = setting("max_time", "max_time", max_time, low=0.0)

    def init(context: TokenView) -> Tensor:
        return per_row("max_time", "max_time", limit, context)

    def check(sstate: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        return view.elapsed >= sstate, sstate

    return StopRule(init, check, code=StopReason.MAX_TIME)
