r"""Forced end: $\ell_\mathrm{eos} = 0$ and $-\infty$ for all others at the last token of a row.

Lewis et al., "BART: denoising sequence-to-sequence pre-training", ACL 2020, arXiv:1910.13461 (its
summaries end with eos even where they are cut).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import is_one_of
from purgen.transforms.positions import end_per_row, num_tokens, optional_setting
from purgen.view import TokenView

__all__ = ["forced_eos"]


def forced_eos(
    eos_token_id: int | Iterable[int] | Tensor, *, max_length: int | Tensor | None = None
) -> LogitsTransform:
    """Forces an eos token as the last one a row may get: eos logits become 0, all others -inf.

    The last token is the one that makes `max_length`, prompt included, or that spends the
    generation's budget of new tokens, whichever comes first. Each row counts its own tokens. (In
    `ForcedEOSTokenLogitsProcessor` `max_length` is the width of the batch, which in a padded row is
    where the budget ends.)

    Args:
        eos_token_id: an id or several; these then are equally likely.
        max_length: at least 1; an int, 0-d or [B] int64 tensor. None stands for the budget alone.

    Returns:
        A `LogitsTransform`. Equal to `ForcedEOSTokenLogitsProcessor` on rows without pads.

    Raises:
        TypeError: not integers.
        ValueError: `max_length` below 1; no id, or one outside the vocabulary; no `max_length` where
            the budget is not known.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.forced_eos(2, max_length=4)
        >>> view = purgen.testing.example_view([[5, 6, 7], [5, 6]], vocab_size=3)
        >>> transform.apply(transform.init(view), torch.ones(2, 3), view)[0]
        tensor([[-inf, -inf, 0.],
                [1., 1., 1.]])
    """
    ids = token_ids("forced_eos", "eos_token_id", eos_token_id)
    limit = optional_setting("forced_eos", "max_length", max_length, low=1)

    def init(context: TokenView) -> Tensor:
        check_vocabulary("forced_eos", "eos_token_id", ids, context)
        return end_per_row("forced_eos", "max_length", limit, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        ends = num_tokens(view) == tstate - 1
        alone = torch.where(is_one_of(ids, logits), 0.0, -torch.inf).to(logits.dtype)
        return torch.where(ends[:, None], alone, forbid_nan(logits)), tstate

    return LogitsTransform(init, apply)
