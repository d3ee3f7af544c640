r"""p-less: only tokens at least as likely as a random guess is right, without a setting.

$p_i \ge \sum_j p_j^2$, the probability that two draws agree; normalised,
$p_i \ge (V \sum_j p_j^2 - 1) / (V - 1)$.

Tan, Wu and Howard, "p-less sampling: a robust hyperparameter-free approach for LLM decoding", ICLR
2026, arXiv:2509.23234.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_at_least, keep_only
from purgen.view import TokenView

__all__ = ["p_less"]


def p_less(
    *,
    normalize: bool = False,
    filter_value: float = float("-inf"),
    min_tokens_to_keep: int = 1,
) -> LogitsTransform:
    """Forbids tokens less likely than two draws from the distribution are to agree.

    The best token always stays, and of a uniform distribution all do. The comparison is made
    without dividing, so that rounding cannot take a tied token away.

    Args:
        normalize: whether the chance of a wrong guess is taken off (p-less-norm): a lower threshold,
            for diversity.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`.

    Raises:
        TypeError: `normalize` is no bool.
        ValueError: `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.p_less()  # from 0.36 + 0.09 + 0.01 up
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.6000, 0.0000, 0.0000]])
    """
    check_min_tokens("p_less", min_tokens_to_keep)
    if not isinstance(normalize, bool):
        raise TypeError(f"p_less: normalize must be True or False, not {normalize!r}")

    def init(context: TokenView) -> tuple[()]:
        return ()

    def apply(tstate: tuple[()], logits: Tensor, view: TokenView) -> tuple[Tensor, tuple[()]]:
        scores = forbid_nan(logits)
        logprobs = log_softmax(scores)
        best = logprobs.amax(dim=-1, keepdim=True)
        # Relative to the best: with w = p / max p, p_i >= Σp² reads w_i · Σw >= Σw².
        weight = torch.where(best > -torch.inf, logprobs - best, best).exp()
        total = weight.sum(dim=-1, keepdim=True)
        agree = weight.square().sum(dim=-1, keepdim=True)
        if normalize:
            size = scores.shape[-1]
            keep = weight * total * (size - 1) >= size * agree - total.square()
        else:
            keep = weight * total >= agree
        keep = keep | (scores == scores.amax(dim=-1, keepdim=True))
        if min_tokens_to_keep > 1:
            keep = keep_at_least(keep, scores, min_tokens_to_keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
