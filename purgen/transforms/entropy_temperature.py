r"""Entropy temperature: one temperature where the model is sure, another where it is not.

$t = t_{high}$ if $H(p) > \theta$, else $t_{low}$.

The two-level rule of Zhu et al., "Hot or cold? Adaptive temperature sampling for code generation with
large language models", AAAI 2024, arXiv:2309.02772, with an entropy threshold, as in entropix
(https://github.com/xjdr-alt/entropix), to tell hard tokens from easy ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import entropy
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.temperature import divide
from purgen.view import TokenView

__all__ = ["entropy_temperature"]


def entropy_temperature(
    threshold: float | Tensor, *, low: float | Tensor = 0.3, high: float | Tensor = 1.2
) -> LogitsTransform:
    """Divides logits by `high` where their entropy exceeds `threshold`, elsewhere by `low`.

    `dynamic_temperature` moves between its two temperatures gradually. The division is that of
    `temperature`.

    Args:
        threshold: in nats, at least 0; a float, 0-d or [B] tensor.
        low: temperature of the rows that are sure, at least 0; likewise.
        high: temperature of the others, at least 0; likewise.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: a number that is negative, infinite or NaN.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.entropy_temperature(0.5, low=0.5, high=2.0)
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=2)
        >>> logits = torch.tensor([[4.0, 4.0], [4.0, 0.0]])  # of entropy 0.69 and 0.09
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[2., 2.],
                [8., 0.]])
    """
    owner, largest = "entropy_temperature", torch.finfo(torch.float32).max
    bound = setting(owner, "threshold", threshold, low=0.0, high=largest)
    coldest = setting(owner, "low", low, low=0.0, high=largest)
    warmest = setting(owner, "high", high, low=0.0, high=largest)

    def init(context: TokenView) -> dict[str, Tensor]:
        return {
            "threshold": per_row(owner, "threshold", bound, context),
            "low": per_row(owner, "low", coldest, context),
            "high": per_row(owner, "high", warmest, context),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        unsure = entropy(logits) > tstate["threshold"]
        heat = torch.where(unsure, tstate["high"], tstate["low"])
        return divide(logits, heat), tstate

    return LogitsTransform(init, apply)
