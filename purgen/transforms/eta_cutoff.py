r"""Eta: only tokens of at least a probability that falls with the entropy.

$\eta = \min(\epsilon, \sqrt\epsilon\, e^{-H(p)})$.

Hewitt, Manning and Liang, "Truncation sampling as language model desmoothing", Findings of EMNLP
2022, arXiv:2210.15191.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import entropy_of, forbid_nan, log_softmax
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import among_best, check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["eta_cutoff"]


def eta_cutoff(
    epsilon: float | Tensor,
    *,
    filter_value: float = float("-inf"),
    min_tokens_to_keep: int = 1,
) -> LogitsTransform:
    """Forbids tokens less likely than both `epsilon` and `sqrt(epsilon) · exp(-entropy)`.

    The second bound spares tokens of a flat distribution, each of which is unlikely. At 0 all stay.
    The likeliest token always stays, and those tied with it.

    Args:
        epsilon: in [0, 1], in the paper 3e-4 to 4e-3; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many, the likeliest, and those tied with the last.

    Returns:
        A `LogitsTransform`. Equal to `EtaLogitsWarper`, which allows neither 0 nor 1 and raises on a
        row without a token; here such a row stays as it is.

    Raises:
        ValueError: `epsilon` outside [0, 1], `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.eta_cutoff(0.2)  # the entropy is 0.90, so eta is 0.18
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.6000, 0.3000, 0.0000]])
    """
    check_min_tokens("eta_cutoff", min_tokens_to_keep)
    cutoff = setting("eta_cutoff", "epsilon", epsilon, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("eta_cutoff", "epsilon", cutoff, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        logprobs = log_softmax(scores)
        eta = torch.minimum(tstate, tstate.sqrt() * (-entropy_of(logprobs)).exp())
        keep = (logprobs.exp() >= eta[:, None]) | among_best(scores, min_tokens_to_keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
