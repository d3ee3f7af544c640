"""Stops a row whose newest token was chosen with too little probability.

The rule by which a draft model hands over to its target in dynamic speculation: Mamou et al.,
"Dynamic speculation lookahead accelerates speculative decoding of large language models", 2024,
arXiv:2405.04304.
"""

from __future__ import annotations

from torch import Tensor

from purgen.settings import per_row, setting
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView

__all__ = ["confidence"]


def confidence(assistant_confidence_threshold: float | Tensor) -> StopRule:
    """Stops a row when the probability of its newest token is below a threshold.

    The probability is that under the distribution which the token was chosen from, transforms
    included. The token stays in the output.

    Args:
        assistant_confidence_threshold: in [0, 1]; a float, 0-d or [B] tensor.

    Returns:
        A `StopRule` with `StopReason.CONFIDENCE`. Equal to `ConfidenceCriteria`, which looks at the
        first row only.

    Raises:
        ValueError: outside [0, 1].

    Example:
        >>> import torch, purgen
        >>> rule = purgen.confidence(0.4)
        >>> view = purgen.testing.example_view(num_new_tokens=1)
        >>> view = purgen.replace(view, logprob=torch.tensor([0.3, 0.5]).log())
        >>> rule.check(rule.init(view), view)[0]
        tensor([ True, False])
    """
    name = "assistant_confidence_threshold"
    least = setting("confidence", name, assistant_confidence_threshold, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("confidence", name, least, context)

    def check(sstate: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        return view.logprob.exp() < sstate, sstate

    return StopRule(init, check, code=StopReason.CONFIDENCE)
