r"""Quadratic smoothing: logits fall off with the square of their distance from the best.

With $d_i = \ell_i - \max_j \ell_j$, factor f and curve c:
$\ell_i \to \max_j \ell_j - f\,\frac{3 - c}{2}\, d_i^2 + f\,\frac{c - 1}{2}\, d_i^3$.

kalomaze, "Smooth sampling / quadratic sampling", 2024,
https://github.com/oobabooga/text-generation-webui/pull/5403 (curve: pull 5551).
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.view import TokenView

__all__ = ["quadratic"]


def quadratic(
    smoothing_factor: float | Tensor, *, smoothing_curve: float | Tensor = 1.0
) -> LogitsTransform:
    """Brings good tokens closer to the best and pushes bad ones away from it.

    Tokens nearer than 1 / factor gain, others lose. The best logit stays as it is, and the order of
    tokens too, up to a curve of 3; beyond it tokens just below the best overtake it.

    Args:
        smoothing_factor: above 0, smaller is flatter; a float, 0-d or [B] tensor.
        smoothing_curve: at least 1; above it a cubic part punishes bad tokens more. Likewise.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: a number out of range, infinite or NaN.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.quadratic(0.5)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> transform.apply(transform.init(view), torch.tensor([[5.0, 4.0, 1.0]]), view)[0]
        tensor([[ 5.0000,  4.5000, -3.0000]])
    """
    largest = torch.finfo(torch.float32).max
    factor = setting("quadratic", "smoothing_factor", smoothing_factor, above=0.0, high=largest)
    curve = setting("quadratic", "smoothing_curve", smoothing_curve, low=1.0, high=largest)

    def init(context: TokenView) -> dict[str, Tensor]:
        return {
            "factor": per_row("quadratic", "smoothing_factor", factor, context),
            "curve": per_row("quadratic", "smoothing_curve", curve, context),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        factor, curve = tstate["factor"][:, None], tstate["curve"][:, None]
        scores = forbid_nan(logits).float()
        best = scores.amax(dim=-1, keepdim=True)
        below = scores - best
        fall = factor * below.square() * ((curve - 1) / 2 * below - (3 - curve) / 2)
        # Where the best is infinite, so are the others: it stays, and nothing else does.
        fall = torch.where(below.isfinite() & ~fall.isnan(), fall, -torch.inf)
        smoothed = torch.where(scores == best, best, best + fall)
        smoothed = torch.where(best.isinf() & (scores < best), -torch.inf, smoothed)
        return smoothed.to(logits.dtype), tstate

    return LogitsTransform(init, apply)
