r"""Temperature: $\ell_i \to \ell_i / t$.

Ackley, Hinton and Sejnowski, "A learning algorithm for Boltzmann machines", 1985.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.view import TokenView

__all__ = ["divide", "temperature"]


def temperature(temperature: float | Tensor) -> LogitsTransform:
    """Divides logits by a temperature: below 1 colder (surer), above 1 warmer.

    Towards 0 the result is the argmax: where the quotients leave the range of the dtype, and at
    exactly 0, logits are first shifted so that the best is 0, which changes no probability. Tokens
    tied for the best stay tied.

    Args:
        temperature: at least 0; a float, 0-d or [B] tensor.

    Returns:
        A `LogitsTransform`. Equal to `TemperatureLogitsWarper` where that is finite.

    Raises:
        ValueError: negative, infinite or NaN.

    Example:
        >>> import torch, purgen
        >>> cold = purgen.temperature(torch.tensor([0.5, 0.0]))  # a setting a row
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=3)
        >>> logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
        >>> cold.apply(cold.init(view), logits, view)[0]
        tensor([[2., 4., 6.],
                [-inf, -inf, 0.]])
    """
    largest = torch.finfo(torch.float32).max
    heat = setting("temperature", "temperature", temperature, low=0.0, high=largest)

    def init(context: TokenView) -> Tensor:
        return per_row("temperature", "temperature", heat, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        return divide(logits, tstate), tstate

    return LogitsTransform(init, apply)


def divide(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divides the logits of each row by a temperature; towards 0 the result is the argmax.

    Args:
        logits: floating [B, V].
        temperature: float32 [B], at least 0.

    Returns:
        The same shape and dtype as `logits`, without NaN.
    """
    heat = temperature[:, None]
    scores = forbid_nan(logits).float()
    plain = scores / heat

    def fits(best: Tensor) -> Tensor:
        """Whether the quotient of the best logit [B, 1] is a number that the dtype has."""
        small = best.abs() / heat <= torch.finfo(logits.dtype).max
        return (small & (heat > 0)) | (best == -torch.inf)

    best = scores.amax(dim=-1, keepdim=True)
    if is_concrete(best, heat) and bool(fits(best).all()):
        return plain.to(logits.dtype)
    best = torch.where(scores < torch.inf, scores, -torch.inf).amax(dim=-1, keepdim=True)
    below = scores - torch.where(best.isfinite(), best, 0.0)
    coldest = torch.where(below == 0, 0.0, torch.where(below > 0, torch.inf, -torch.inf))
    shifted = torch.where(heat < torch.finfo(torch.float32).tiny, coldest, below / heat)
    return torch.where(fits(best), plain, shifted).to(logits.dtype)
