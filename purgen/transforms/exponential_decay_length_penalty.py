r"""Exponential length penalty: eos gains ever more beyond a number of new tokens.

$\ell_\mathrm{eos} \to \ell_\mathrm{eos} + |\ell_\mathrm{eos}| (f^{\,n - s} - 1)$ for $n > s$ new
tokens, with start $s$ and factor $f$. From transformers (2022), which names no paper.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, per_row, setting, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import is_one_of
from purgen.view import TokenView

__all__ = ["exponential_decay_length_penalty"]

OWNER = "exponential_decay_length_penalty"
Penalty = tuple[int | Tensor, float | Tensor]


def exponential_decay_length_penalty(
    exponential_decay_length_penalty: Penalty, *, eos_token_id: int | Iterable[int] | Tensor
) -> LogitsTransform:
    """Raises the logit of every eos token, more with each new token after the first `start`.

    With a factor of at least 1 a logit never falls, whatever its sign, and never falls from one step
    to the next: what grows is its size, upwards. So 0 and infinities stay as they are, and growth
    ends at the largest number of the dtype. (transformers gives NaN and infinities there.) A factor
    below 1 lowers eos instead, towards `logit - |logit|`.

    Args:
        exponential_decay_length_penalty: `(start, factor)`: how many new tokens come before the
            penalty, at least 0, and the factor by which it grows, above 0. Each a number, a 0-d or a
            [B] tensor.
        eos_token_id: an id or several.

    Returns:
        A `LogitsTransform`. Equal to `ExponentialDecayLengthPenalty`, which must be told the length of
        the prompt.

    Raises:
        TypeError: no pair, or not numbers.
        ValueError: a number out of range; no id, or one outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.exponential_decay_length_penalty((1, 2.0), eos_token_id=[0, 1])
        >>> view = purgen.testing.example_view([[5, 6, 7, 8]], vocab_size=3, num_new_tokens=3)
        >>> transform.apply(transform.init(view), torch.tensor([[1.0, -1.0, 1.0]]), view)[0]
        tensor([[4., 2., 1.]])
    """
    pair = exponential_decay_length_penalty
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"{OWNER}: {OWNER} must be a pair (start, factor), not {pair!r}")
    largest = torch.finfo(torch.float32).max
    begin = setting(OWNER, "start", pair[0], low=0, integer=True)
    growth = setting(OWNER, "factor", pair[1], above=0.0, high=largest)
    ids = token_ids(OWNER, "eos_token_id", eos_token_id)

    def init(context: TokenView) -> dict[str, Tensor]:
        check_vocabulary(OWNER, "eos_token_id", ids, context)
        return {
            "start": per_row(OWNER, "start", begin, context),
            "factor": per_row(OWNER, "factor", growth, context),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        beyond = (view.num_new_tokens - tstate["start"]).clamp(min=0)
        gain = tstate["factor"].double() ** beyond - 1  # [B]
        scores = forbid_nan(logits)
        raised = scores.float() + scores.float().abs() * gain.float()[:, None]
        raised = raised.clamp(max=torch.finfo(logits.dtype).max).to(logits.dtype)
        grows = is_one_of(ids, logits) & scores.isfinite() & (scores != 0)
        return torch.where(grows, raised, scores), tstate

    return LogitsTransform(init, apply)
