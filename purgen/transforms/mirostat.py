r"""Mirostat: truncation whose strength is steered so that text has a given surprise.

A token of probability p has surprise $-\log_2 p$. After each token, $\mu \leftarrow \mu - \eta\,(S -
\tau)$, where S is the surprise of that token; $\mu$ begins at $2\tau$ and bounds the surprise of the
next one. Version 2 does so directly, $-\log_2 p_i \le \mu$. Version 1 keeps the k likeliest tokens
with $k = (\hat\epsilon\, 2^\mu / (1 - V^{-\hat\epsilon}))^{1 / \hat s}$, $\hat\epsilon = \hat s - 1$,
$\hat s$ being the exponent of Zipf's law fitted to the m likeliest.

Basu, Ramachandran, Keskar and Varshney, "Mirostat: a neural text decoding algorithm that directly
controls perplexity", ICLR 2021, arXiv:2007.14966; version 1 rounds as the authors' code does,
https://github.com/basusourya/mirostat.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.pytree import pytree_dataclass, replace
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import keep_only
from purgen.view import TokenView, last_token

__all__ = ["MirostatState", "mirostat"]

NEVER = -2  # no number of new tokens comes after it


@pytree_dataclass
class MirostatState:
    """State of `mirostat`.

    Attributes:
        mu: float32 [B], the bound on the surprise of the next token, in bits.
        surprise: float32 [B, V], of every token at the latest step, in bits.
        num_new_tokens: int64 [B], how many new tokens there were at that step.
        tau: float32 [B], the target, in bits.
        learning_rate: float32 [B].
    """

    mu: Tensor  # float32 [B]
    surprise: Tensor  # float32 [B, V]
    num_new_tokens: Tensor  # int64 [B]
    tau: Tensor  # float32 [B]
    learning_rate: Tensor  # float32 [B]


def mirostat(
    tau: float | Tensor,
    *,
    learning_rate: float | Tensor = 0.1,
    version: int = 2,
    m: int = 100,
) -> LogitsTransform:
    """Forbids surprising tokens, so that the mean surprise of the text goes to `tau` bits.

    A token's surprise is read off the distribution that comes in, before truncation, as in the paper
    (llama.cpp reads it off what is left after). It counts at the next step, if exactly one token was
    added since: the first step, and a token that had no probability, change nothing. The likeliest
    token always stays, and in version 1 those tied with the last that stays.

    Args:
        tau: target surprise in bits, the logarithm to base 2 of the perplexity, at least 0; a float,
            0-d or [B] tensor.
        learning_rate: how far the bound moves for a bit of error, at least 0; likewise.
        version: 1 or 2.
        m: how many tokens version 1 fits the exponent to, at least 2.

    Returns:
        A `LogitsTransform` with a `MirostatState`.

    Raises:
        ValueError: a negative, infinite or NaN number, another `version`, `m` below 2.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.mirostat(0.5)  # at first, surprise up to 1 bit
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.5000, 0.0000, 0.0000]])
    """
    largest = torch.finfo(torch.float32).max
    target = setting("mirostat", "tau", tau, low=0.0, high=largest)
    rate = setting("mirostat", "learning_rate", learning_rate, low=0.0, high=largest)
    if isinstance(version, bool) or version not in (1, 2):
        raise ValueError(f"mirostat: version must be 1 or 2, not {version!r}")
    if not isinstance(m, int) or isinstance(m, bool) or m < 2:
        raise ValueError(f"mirostat: m must be an int of at least 2, not {m!r}")

    def init(context: TokenView) -> MirostatState:
        goal = per_row("mirostat", "tau", target, context)
        return MirostatState(
            mu=2 * goal,
            surprise=goal.new_zeros(len(goal), context.vocab_size),
            num_new_tokens=torch.full_like(context.num_new_tokens, NEVER),
            tau=goal,
            learning_rate=per_row("mirostat", "learning_rate", rate, context),
        )

    def apply(
        tstate: MirostatState, logits: Tensor, view: TokenView
    ) -> tuple[Tensor, MirostatState]:
        mu = _steer(tstate, view)
        scores = forbid_nan(logits)
        surprise = log_softmax(scores) / -math.log(2)
        if version == 2:
            keep = (surprise <= mu[:, None]) | (scores == scores.amax(dim=-1, keepdim=True))
        else:
            ordered = surprise.sort(dim=-1).values
            count = _zipf_count(ordered[:, :m], mu, scores.shape[-1])
            keep = surprise <= ordered.gather(-1, count[:, None] - 1)
        after = replace(
            tstate, mu=mu, surprise=surprise, num_new_tokens=view.num_new_tokens.clone()
        )
        return keep_only(scores, keep, -torch.inf), after

    return LogitsTransform(init, apply)


def _steer(tstate: MirostatState, view: TokenView) -> Tensor:
    """The bound [B] after the newest token."""
    newest = last_token(view).clamp(0, tstate.surprise.shape[-1] - 1)
    observed = tstate.surprise.gather(-1, newest[:, None])[:, 0]
    counts = (view.num_new_tokens == tstate.num_new_tokens + 1) & observed.isfinite()
    moved = tstate.mu - tstate.learning_rate * (observed - tstate.tau)
    return torch.where(counts, moved, tstate.mu)


def _zipf_count(ordered: Tensor, mu: Tensor, vocab_size: int) -> Tensor:
    """How many tokens version 1 keeps.

    Args:
        ordered: float32 [B, m], surprise of the likeliest tokens, ascending, in bits.
        mu: float32 [B].
        vocab_size: V.

    Returns:
        int64 [B], from 1 to V.
    """
    ordered = ordered.double()
    rank = torch.arange(1, ordered.shape[-1], device=mu.device).double()
    step = (1 / rank).log1p()  # log of the ratio of neighbouring ranks
    fall = ordered.diff(dim=-1) * math.log(2)  # and of their probabilities
    known = fall.isfinite()
    exponent = torch.where(known, step * fall, 0.0).sum(dim=-1)
    exponent = exponent / torch.where(known, step.square(), 0.0).sum(dim=-1)
    excess = exponent - 1
    spread = -torch.expm1(-excess * math.log(vocab_size)) / excess  # at an excess of 0: log V
    spread = torch.where(excess == 0, math.log(vocab_size), spread)
    count = ((mu.double() - spread.log2()) / exponent).exp2().round() + 1
    # NaN where there is nothing to fit to: a single token, or none.
    return torch.nan_to_num(count, nan=vocab_size).clamp(1, vocab_size).long()
