"""What the transforms share that forbid tokens."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["among_best", "check_min_tokens", "keep_at_least", "keep_only"]


def check_min_tokens(owner: str, min_tokens_to_keep: int) -> None:
    """Raises ValueError unless `min_tokens_to_keep` is an int of at least 1."""
    wrong_kind = not isinstance(min_tokens_to_keep, int) or isinstance(min_tokens_to_keep, bool)
    if wrong_kind or min_tokens_to_keep < 1:
        raise ValueError(
            f"{owner}: min_tokens_to_keep must be an int of at least 1, not {min_tokens_to_keep!r}"
        )


def among_best(scores: Tensor, count: int) -> Tensor:
    """Tells which tokens are among the `count` best of their row, or tied with the last of these.

    Args:
        scores: floating [B, V] without NaN.
        count: at least 1; more than V means all.

    Returns:
        bool [B, V].
    """
    return scores >= scores.topk(min(count, scores.shape[-1]), dim=-1).values[:, -1:]


def keep_at_least(keep: Tensor, logits: Tensor, count: int) -> Tensor:
    """Adds the `count` best tokens of each row to those kept.

    Args:
        keep: bool [B, V].
        logits: floating [B, V] without NaN.
        count: at least 1; more than V means all.

    Returns:
        bool [B, V].
    """
    best = logits.topk(min(count, logits.shape[-1]), dim=-1).indices
    return keep.scatter(-1, best, True)


def keep_only(logits: Tensor, keep: Tensor, filter_value: float) -> Tensor:
    """Gives every token not kept the logit `filter_value`.

    Args:
        logits: floating [B, V].
        keep: bool [B, V].
        filter_value: usually -inf.

    Returns:
        The same shape and dtype as `logits`.
    """
    return torch.where(keep, logits, filter_value)
