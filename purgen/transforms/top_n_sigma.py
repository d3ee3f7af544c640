r"""Top-nσ: only tokens within n standard deviations of the best logit.

$\ell_i \ge \max_j \ell_j - n\,\sigma(\ell)$.

Tang, Liu, Xu and Huang, "Top-nσ: not all logits are you need", ACL 2025, arXiv:2411.07641.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_at_least, keep_only
from purgen.view import TokenView

__all__ = ["top_n_sigma"]


def top_n_sigma(
    n: float | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids tokens whose logit is more than `n` standard deviations below the best.

    Dividing the logits by a temperature first changes nothing. The deviation is that of all finite
    logits (the mean square, not the unbiased estimate), as in llama.cpp, so tokens that an earlier
    transform has forbidden do not count. At 0 only the best stay; +inf is above all that is finite.

    Args:
        n: at least 0, in the paper 1; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: `n` negative, infinite or NaN, `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.top_n_sigma(1.0)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> logits = torch.tensor([[6.0, 5.0, 1.0, 0.0]])  # mean 3, deviation 2.55
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[6., 5., -inf, -inf]])
    """
    check_min_tokens("top_n_sigma", min_tokens_to_keep)
    largest = torch.finfo(torch.float32).max
    reach = setting("top_n_sigma", "n", n, low=0.0, high=largest)

    def init(context: TokenView) -> Tensor:
        return per_row("top_n_sigma", "n", reach, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        values = scores.float()
        best = values.amax(dim=-1, keepdim=True)
        threshold = best - tstate[:, None] * _deviation(values)
        threshold = torch.where(best.isinf(), best, threshold)
        keep = values >= threshold
        if min_tokens_to_keep > 1:
            keep = keep_at_least(keep, scores, min_tokens_to_keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)


def _deviation(values: Tensor) -> Tensor:
    """Standard deviation of the finite entries, float32 [B, V] -> [B, 1], without overflow."""
    finite = values.isfinite()
    count = finite.sum(dim=-1, keepdim=True).clamp(min=1)
    values = torch.where(finite, values, 0.0)
    size = values.abs().amax(dim=-1, keepdim=True)
    values = values / torch.where(size > 0, size, 1.0)
    mean = values.sum(dim=-1, keepdim=True) / count
    square = torch.where(finite, values - mean, 0.0).square().sum(dim=-1, keepdim=True) / count
    return size * square.sqrt()
