r"""Dynamic temperature: colder where the model is sure, warmer where it is not.

$t = t_{low} + (t_{high} - t_{low})\,(H(p) / \log n)^{\gamma}$, n being the number of tokens allowed.

kalomaze, "Dynamic temperature sampling", 2023, in koboldcpp, text-generation-webui and llama.cpp,
https://github.com/LostRuins/koboldcpp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import entropy, forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.temperature import divide
from purgen.view import TokenView

__all__ = ["dynamic_temperature"]


def dynamic_temperature(
    low: float | Tensor, high: float | Tensor, *, exponent: float | Tensor = 1.0
) -> LogitsTransform:
    """Divides logits by a temperature between `low` and `high` that grows with the entropy.

    A row that leaves no choice gets `low`, a uniform one `high`. With `high` below `low` it is the
    unsure rows that are cooled. The division is that of `temperature`.

    Args:
        low: temperature at entropy 0, at least 0; a float, 0-d or [B] tensor.
        high: temperature at the greatest entropy, at least 0; likewise.
        exponent: above 0; above 1 the temperature stays low for longer. Likewise.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: a number out of range, infinite or NaN.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.dynamic_temperature(0.5, 2.0)
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=2)
        >>> logits = torch.tensor([[4.0, 4.0], [4.0, -100.0]])
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[   2.,    2.],
                [   8., -200.]])
    """
    owner, largest = "dynamic_temperature", torch.finfo(torch.float32).max
    coldest = setting(owner, "low", low, low=0.0, high=largest)
    warmest = setting(owner, "high", high, low=0.0, high=largest)
    power = setting(owner, "exponent", exponent, above=0.0, high=largest)

    def init(context: TokenView) -> dict[str, Tensor]:
        return {
            "low": per_row(owner, "low", coldest, context),
            "high": per_row(owner, "high", warmest, context),
            "exponent": per_row(owner, "exponent", power, context),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        allowed = (forbid_nan(logits) > -torch.inf).sum(dim=-1)
        greatest = allowed.clamp(min=2).float().log()  # of a single token the entropy is 0
        share = (entropy(logits) / greatest).clamp(0.0, 1.0) ** tstate["exponent"]
        # Not low + (high - low) · share, which at a share of 1 may round to another number.
        heat = tstate["low"] * (1 - share) + tstate["high"] * share
        return divide(logits, heat), tstate

    return LogitsTransform(init, apply)
