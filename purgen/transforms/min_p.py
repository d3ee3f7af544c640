"""Min-p: only tokens with at least a share of the best token's probability.

Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs",
ICLR 2025, arXiv:2407.01082.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_at_least, keep_only
from purgen.view import TokenView

__all__ = ["min_p"]


def min_p(
    min_p: float | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids tokens less likely than `min_p` times the likeliest.

    The rule is read off the logits, `logit >= best + log(min_p)`, without a softmax. At 0 all stay,
    at 1 only the best and those tied with it.

    Args:
        min_p: in [0, 1]; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`. Equal to `MinPLogitsWarper`.

    Raises:
        ValueError: `min_p` outside [0, 1], `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.min_p(0.25)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> transform.apply(transform.init(view), torch.tensor([[0.6, 0.3, 0.1]]).log(), view)[
        ...     0
        ... ].exp()
        tensor([[0.6000, 0.3000, 0.0000]])
    """
    check_min_tokens("min_p", min_tokens_to_keep)
    share = setting("min_p", "min_p", min_p, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("min_p", "min_p", share, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        share = tstate[:, None]
        best = scores.float().amax(dim=-1, keepdim=True)
        threshold = torch.where(share > 0, best + share.log(), -torch.inf)
        keep = scores.float() >= threshold
        if min_tokens_to_keep > 1:
            keep = keep_at_least(keep, scores, min_tokens_to_keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
