"""Top-p (nucleus): only the smallest set of tokens that holds probability p.

Holtzman et al., "The curious case of neural text degeneration", ICLR 2020, arXiv:1904.09751.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.control import branch
from purgen.logits import forbid_nan, tame
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["top_p"]

ROUNDING = 1e-6  # of sums of float32 probabilities
# How many of the best tokens are looked at first, and next, before all are sorted: for 32 rows of 49152
# that takes five times as long as finding the best 4096.
FEW, MORE = 256, 4096


def top_p(
    top_p: float | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids all but the smallest set of best tokens whose probabilities add up to p.

    A token stays if those before it, in order of probability, hold less than p together. So the set
    ends with the token that reaches p, also when it reaches p exactly (within 1e-6, since float32
    probabilities of 0.5 and 0.3 seldom add up to 0.8); of tied tokens the lower id comes first. At
    p = 0 the best token stays, at p = 1 all do.

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
        ranked = tame(scores)
        edge, size, whole_ties = _nucleus(ranked, tstate, min_tokens_to_keep)
        keep = ranked >= edge
        if not (is_concrete(whole_ties) and bool(whole_ties.all())):
            tied = ranked == edge  # with the last, of which only the first few are in
            room = size - (keep & ~tied).sum(dim=-1, keepdim=True)
            keep = keep & (~tied | (tied.cumsum(dim=-1) <= room))
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)


def _nucleus(
    scores: Tensor, mass: Tensor, min_tokens_to_keep: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds where the nucleus ends, looking at the best few tokens where these hold its mass.

    Args:
        scores: floating [B, V], tame.
        mass: float32 [B].
        min_tokens_to_keep: the least size of the nucleus.

    Returns:
        Float [B, 1], the least logit in the nucleus; int64 [B, 1], how many tokens are in it; bool
        [B, 1], whether it is clear that every token with that logit is.
    """
    vocab_size = scores.shape[-1]
    few = min(max(FEW, min_tokens_to_keep), vocab_size)
    best = scores.topk(few, dim=-1).values
    # Where the best few are all there is, the sum over these is the sum over all.
    total = best.float().logsumexp(dim=-1, keepdim=True)
    whole = best[:, -1:] == -torch.inf
    if not (is_concrete(whole) and bool(whole.all())):
        total = torch.where(whole, total, scores.float().logsumexp(dim=-1, keepdim=True))
    reach = (mass - ROUNDING)[:, None]

    def find(best: Tensor) -> Tensor:
        """From logits [B, n] in descending order, edge and size as float64 [B, 2]."""
        reached = (best.float() - total).exp().cumsum(dim=-1)
        before = torch.nn.functional.pad(reached[:, :-1], (1, 0))
        rank = torch.arange(best.shape[-1], device=best.device)
        size = ((before < reach) | (rank < min_tokens_to_keep)).sum(dim=-1, keepdim=True)
        return torch.cat([best.gather(-1, size - 1).double(), size.double()], dim=-1)

    def holds_enough(best: Tensor) -> Tensor:
        """Tells whether the best n of each row suffice, bool []."""
        # Sums are taken in order, so those of the best few are the same within all tokens.
        enough = (best.float() - total).exp().cumsum(dim=-1)[:, -1:] >= reach
        return (enough | (mass[:, None] >= 1) | (total == -torch.inf)).all()

    def search(best: Tensor, wider: tuple[int, ...]) -> Tensor:
        def widened(best: Tensor, scores: Tensor) -> Tensor:
            if not wider:
                return find(scores.sort(dim=-1, descending=True).values)
            return search(scores.topk(wider[0], dim=-1).values, wider[1:])

        return branch(holds_enough(best), lambda best, scores: find(best), widened, (best, scores))

    found = search(best, (MORE,) if few < MORE < vocab_size else ())
    # At p = 1 everything stays, also the tail that rounding puts beyond a sum of 1.
    everything = (mass >= 1)[:, None]
    edge = torch.where(everything, -torch.inf, found[:, :1]).to(scores.dtype)
    size = torch.where(everything, vocab_size, found[:, 1:]).long()
    seen = (best[:, -1:] < edge) | (few == vocab_size)  # all that are tied with the last
    whole_ties = seen & ((best >= edge).sum(dim=-1, keepdim=True) <= size)
    return edge, size, whole_ties | everything
