r"""Minimum length: $\ell_\mathrm{eos} \to -\infty$ while a row has fewer than n tokens.

Klein et al., "OpenNMT: open-source toolkit for neural machine translation", ACL 2017,
arXiv:1701.02810 (as a setting of its beam search).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, per_row, setting, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import forbid, is_one_of
from purgen.transforms.positions import num_tokens
from purgen.view import TokenView

__all__ = ["min_length"]


def min_length(
    min_length: int | Tensor, *, eos_token_id: int | Iterable[int] | Tensor
) -> LogitsTransform:
    """Forbids every eos token while a row, prompt included, has fewer than `min_length` tokens.

    Pads do not count. (`MinLengthLogitsProcessor` counts columns, left pads among them, so there a
    padded row may end earlier than it does alone.)

    Args:
        min_length: at least 0; an int, 0-d or [B] int64 tensor.
        eos_token_id: an id or several.

    Returns:
        A `LogitsTransform`. Equal to `MinLengthLogitsProcessor` on rows without pads.

    Raises:
        TypeError: not integers.
        ValueError: `min_length` negative; no id, or one outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.min_length(3, eos_token_id=1)
        >>> view = purgen.testing.example_view([[5, 6], [5, 6, 7]], vocab_size=3)
        >>> transform.apply(transform.init(view), torch.zeros(2, 3), view)[0]
        tensor([[0., -inf, 0.],
                [0., 0., 0.]])
    """
    least = setting("min_length", "min_length", min_length, low=0, integer=True)
    ids = token_ids("min_length", "eos_token_id", eos_token_id)

    def init(context: TokenView) -> Tensor:
        check_vocabulary("min_length", "eos_token_id", ids, context)
        return per_row("min_length", "min_length", least, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        short = num_tokens(view) < tstate
        return forbid(forbid_nan(logits), short[:, None] & is_one_of(ids, logits)), tstate

    return LogitsTransform(init, apply)
