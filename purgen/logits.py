"""Functions of logits that are defined for every input: NaN, infinities, rows without a token.

A NaN logit counts as forbidden (-inf). In a row with +inf, the tokens at +inf share all probability.
A row in which every token is forbidden is dead: it has no distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.concrete import is_concrete

__all__ = ["entropy", "entropy_of", "forbid_nan", "is_dead", "log_softmax", "tame"]

NEGATIVE_INFINITY = float("-inf")
POSITIVE_INFINITY = float("inf")


def forbid_nan(logits: Tensor) -> Tensor:
    """Replaces NaN by -inf, so that a token without a number cannot be chosen.

    Args:
        logits: floating [..., V].

    Returns:
        The same shape and dtype.

    Example:
        >>> import torch
        >>> forbid_nan(torch.tensor([1.0, float("nan")]))
        tensor([1., -inf])
    """
    if not logits.numel():
        return logits
    # The greatest of a row is NaN if one of it is: a glance where numbers can be read.
    best = logits.amax(dim=-1)
    if is_concrete(best) and not bool(best.isnan().any()):
        return logits
    return torch.nan_to_num(
        logits, nan=NEGATIVE_INFINITY, posinf=POSITIVE_INFINITY, neginf=NEGATIVE_INFINITY
    )


def is_dead(logits: Tensor) -> Tensor:
    """Tells which rows have no token left.

    Args:
        logits: floating [..., V].

    Returns:
        bool [...], True where every logit is -inf or NaN.

    Example:
        >>> import torch
        >>> is_dead(torch.tensor([[0.0, -torch.inf], [-torch.inf, torch.nan]]))
        tensor([False,  True])
    """
    return ~(logits > NEGATIVE_INFINITY).any(dim=-1)


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities in float32, without a NaN.

    Args:
        logits: floating [..., V].

    Returns:
        float32 [..., V], in nats. A dead row stays -inf.

    Example:
        >>> import torch
        >>> log_softmax(torch.tensor([[0.0, 0.0], [torch.inf, 0.0], [-torch.inf, -torch.inf]]))
        tensor([[-0.6931, -0.6931],
                [ 0.0000,    -inf],
                [   -inf,    -inf]])
    """
    scores = tame(logits.float())
    dead = scores.amax(dim=-1, keepdim=True) == NEGATIVE_INFINITY
    return torch.where(dead, NEGATIVE_INFINITY, torch.log_softmax(scores, dim=-1))


def tame(logits: Tensor) -> Tensor:
    """Gives rows with NaN or +inf logits the finite ones that mean the same.

    Args:
        logits: floating [..., V].

    Returns:
        The same shape and dtype. NaN became -inf; in a row with +inf, +inf became 0 and all else -inf.

    Example:
        >>> import torch
        >>> tame(torch.tensor([[1.0, torch.nan], [torch.inf, 3.0]]))
        tensor([[1., -inf],
                [0., -inf]])
    """
    best = logits.amax(dim=-1, keepdim=True)
    if is_concrete(best) and bool((best < POSITIVE_INFINITY).all()):  # False for NaN too
        return logits
    scores = forbid_nan(logits)
    infinite = scores.amax(dim=-1, keepdim=True) == POSITIVE_INFINITY
    at_infinity = torch.where(scores == POSITIVE_INFINITY, 0.0, NEGATIVE_INFINITY)
    return torch.where(infinite, at_infinity, scores)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distribution that `logits` define.

    Args:
        logits: floating [..., V].

    Returns:
        float32 [...], in nats, between 0 and log V; 0 for a dead row.

    Example:
        >>> import torch, purgen
        >>> purgen.entropy(torch.zeros(1, 4)).exp()
        tensor([4.])
    """
    return entropy_of(log_softmax(logits))


def entropy_of(logprobs: Tensor) -> Tensor:
    """Entropy of a distribution given by its log-probabilities.

    Args:
        logprobs: float32 [..., V], as `log_softmax` returns them.

    Returns:
        float32 [...], in nats.
    """
    # 0 · log 0 is 0: with a finite logarithm the product is that.
    finite = logprobs.clamp(min=torch.finfo(logprobs.dtype).min)
    return -(logprobs.exp() * finite).sum(dim=-1) + 0.0
