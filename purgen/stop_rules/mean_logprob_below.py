"""Stops a row whose text has become improbable on the whole.

The average log-probability by which Whisper tells a transcription that failed: Radford et al.,
"Robust speech recognition via large-scale weak supervision", 2022, arXiv:2212.04356.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.settings import per_row, setting
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView

__all__ = ["mean_logprob_below"]


def mean_logprob_below(threshold: float | Tensor) -> StopRule:
    """Stops a row when the mean log-probability of its new tokens is below a threshold.

    `1/n Σ log p(token)` over the n new tokens: minus the logarithm of their perplexity. The mean of
    few tokens varies much; `all_of(mean_logprob_below(-1.0), max_new_tokens(8))` looks at no less than
    eight. A bound for the newest token alone is `confidence`.

    Args:
        threshold: at most 0, in nats (Whisper has -1.0); a float, 0-d or [B] tensor.

    Returns:
        A `StopRule` with `StopReason.LOGPROB`.

    Raises:
        ValueError: above 0.

    Example:
        >>> import torch, purgen
        >>> rule = purgen.mean_logprob_below(-1.0)
        >>> state = rule.init(purgen.testing.example_view(batch_size=1))
        >>> for count, logprob in enumerate((-0.5, -1.4, -1.6), start=1):
        ...     view = purgen.testing.example_view(batch_size=1, num_new_tokens=count)
        ...     stop, state = rule.check(
        ...         state, purgen.replace(view, logprob=torch.tensor([logprob]))
        ...     )
        ...     bool(stop)
        False
        False
        True
    """
    least = setting("mean_logprob_below", "threshold", threshold, high=0.0)

    def init(context: TokenView) -> dict[str, Tensor]:
        threshold = per_row("mean_logprob_below", "threshold", least, context)
        return {
            "threshold": threshold,  # float32 [B]
            "sum": torch.zeros_like(threshold),  # float32 [B]
            "count": torch.zeros_like(context.length),  # int64 [B]
        }

    def check(sstate: dict[str, Tensor], view: TokenView) -> tuple[Tensor, dict[str, Tensor]]:
        total, count = sstate["sum"] + view.logprob, sstate["count"] + 1
        return total < sstate["threshold"] * count, {**sstate, "sum": total, "count": count}

    return StopRule(init, check, code=StopReason.LOGPROB)
