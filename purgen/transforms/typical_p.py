r"""Typical: only tokens that are about as surprising as the distribution is on average.

$|{-\log p_i} - H(p)|$ is how untypical token i is; the most typical ones that hold probability
`mass` stay. The likeliest token may be among those that go.

Meister, Pimentel, Wiher and Cotterell, "Locally typical sampling", TACL 2023, arXiv:2202.00666.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import entropy_of, forbid_nan, log_softmax
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["typical_p"]


def typical_p(
    mass: float | Tensor = 0.9,
    *,
    filter_value: float = float("-inf"),
    min_tokens_to_keep: int = 1,
) -> LogitsTransform:
    """Forbids all but the most typical tokens that hold probability `mass` together.

    The set ends with the token that reaches `mass`; those exactly as typical as it stay too. At 0
    the most typical token stays, at 1 all do.

    Args:
        mass: in [0, 1]; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many, the most typical first.

    Returns:
        A `LogitsTransform`. Equal to `TypicalLogitsWarper`, which allows neither 0 nor 1, but for
        the rounding of float32 sums within 1e-6 of `mass`.

    Raises:
        ValueError: `mass` outside [0, 1], `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.typical_p(0.25)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> logits = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()  # -log 0.31 on average
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.0000, 0.3000, 0.0000, 0.0000]])
    """
    check_min_tokens("typical_p", min_tokens_to_keep)
    share = setting("typical_p", "mass", mass, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("typical_p", "mass", share, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        mass = tstate[:, None]
        logprobs = log_softmax(scores)
        untypical = (-logprobs - entropy_of(logprobs)[:, None]).abs()
        ordered, order = untypical.sort(dim=-1, stable=True)
        reached = logprobs.gather(-1, order).exp().cumsum(dim=-1)
        last = (reached < mass).sum(dim=-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
        rank = torch.arange(scores.shape[-1], device=scores.device)
        # At 1 everything stays, also what rounding puts beyond a sum of 1.
        keep = (ordered <= ordered.gather(-1, last)) | (rank < min_tokens_to_keep) | (mass >= 1)
        keep = torch.zeros_like(keep).scatter(-1, order, keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
