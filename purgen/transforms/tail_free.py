r"""Tail-free: only tokens before the curve of sorted probabilities becomes flat.

With probabilities in descending order and $w_i = |p_i - 2p_{i+1} + p_{i+2}| / \sum_j |\dots|$, the
token of rank i > 1 stays if $\sum_{j < i} w_j \le z$.

Bricken, "Tail free sampling", 2019, https://www.trentonbricken.com/Tail-Free-Sampling/, as KoboldAI
and text-generation-webui place the cut; llama.cpp cut one token earlier.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["tail_free"]


def tail_free(
    z: float | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids tokens beyond the part of the sorted probabilities that holds `z` of their curvature.

    Below 1 the last token goes too. At 0 the best token stays, also of several tied (the lower id
    comes first), at 1 all do. Where there is no curvature, as in a uniform distribution or with two
    tokens, there is no tail: all stay.

    Args:
        z: in [0, 1]; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: `z` outside [0, 1], `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.tail_free(0.5)  # curvature 0.1, 0.2, 0 of the first three
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=5)
        >>> logits = torch.tensor([[0.45, 0.35, 0.15, 0.05, 0.0]]).log()
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.4500, 0.3500, 0.0000, 0.0000, 0.0000]])
    """
    check_min_tokens("tail_free", min_tokens_to_keep)
    share = setting("tail_free", "z", z, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("tail_free", "z", share, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        share = tstate[:, None]
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        curvature = log_softmax(ordered).exp().diff(n=2, dim=-1).abs()
        total = curvature.sum(dim=-1, keepdim=True)
        before = (curvature / torch.where(total > 0, total, 1.0)).cumsum(dim=-1)
        before = torch.nn.functional.pad(before, (1, 0))  # nothing before the first
        before = torch.nn.functional.pad(before, (0, 1), value=1.0)[:, : scores.shape[-1]]
        rank = torch.arange(scores.shape[-1], device=scores.device)
        keep = (before <= share) | (rank < min_tokens_to_keep) | (share >= 1) | (total == 0)
        keep = torch.zeros_like(keep).scatter(-1, order, keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
