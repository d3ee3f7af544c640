"""Top-p (nucleus): only the smallest set of tokens that holds probability p.

Holtzman et al., "The curious case of neural text degeneration", ICLR 2020, arXiv:1904.09751.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["top_p"]


def top_p(
    top_p: float | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids all but the smallest set of best tokens whose probabilities add up to p.

    A token stays if those before it, in order of probability, hold less than p together. So the set
    ends with the token that reaches p, also when it reaches p exactly; of tied tokens the lower id
    comes first. At p = 0 the best token stays, at p = 1 all do.

    Args:
        top_p: in [0, 1]; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`. Equal to `TopPLogitsWarper`, but for the order in which float32
        probabilities are added, which may move the edge by a token where they reach p within 1e-6.

    Raises:
        ValueError: `top_p` outside [0, 1], `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.top_p(0.75)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> probabilities = torch.tensor([[0.125, 0.5, 0.25, 0.125]])
        >>> transform.apply(transform.init(view), probabilities.log(), view)[0].exp()
        tensor([[0.0000, 0.5000, 0.2500, 0.0000]])
    """
    check_min_tokens("top_p", min_tokens_to_keep)
    mass = setting("top_p", "top_p", top_p, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("top_p", "top_p", mass, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        probability = log_softmax(ordered).exp()
        before = torch.nn.functional.pad(probability.cumsum(dim=-1)[:, :-1], (1, 0))
        rank = torch.arange(scores.shape[-1], device=scores.device)
        # At p = 1 everything stays, also the tail that rounding puts beyond a sum of 1.
        p = tstate[:, None]
        keep = (before < p) | (rank < min_tokens_to_keep) | (p >= 1)
        keep = torch.zeros_like(keep).scatter(-1, order, keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
