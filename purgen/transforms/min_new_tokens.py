r"""Minimum of new tokens: $\ell_\mathrm{eos} \to -\infty$ while a row has generated fewer than n.

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
from purgen.view import TokenView

__all__ = ["min_new_tokens"]


def min_new_tokens(
    min_new_tokens: int | Tensor, *, eos_token_id: int | Iterable[int] | Tensor
) -> LogitsTransform:
    """Forbids every eos token while a row has generated fewer than `min_new_tokens` tokens.

    Where a prompt ends is known from the view, so there is no `prompt_length_to_skip`.

    Args:
        min_new_tokens: at least 0; an int, 0-d or [B] int64 tensor.
        eos_token_id: an id or several.

    Returns:
        A `LogitsTransform`. Equal to `MinNewTokensLengthLogitsProcessor`.

    Raises:
        TypeError: not integers.
        ValueError: `min_new_tokens` negative; no id, or one outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.min_new_tokens(torch.tensor([1, 2]), eos_token_id=[0, 1])
        >>> view = purgen.testing.example_view([[5, 6], [5, 6]], vocab_size=3, num_new_tokens=1)
        >>> transform.apply(transform.init(view), torch.zeros(2, 3), view)[0]
        tensor([[0., 0., 0.],
                [-inf, -inf, 0.]])
    """
    least = setting("min_new_tokens", "min_new_tokens", min_new_tokens, low=0, integer=True)
    ids = token_ids("min_new_tokens", "eos_token_id", eos_token_id)

    def init(context: TokenView) -> Tensor:
        check_vocabulary("min_new_tokens", "eos_token_id", ids, context)
        return per_row("min_new_tokens", "min_new_tokens", least, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        short = view.num_new_tokens < tstate
        return forbid(forbid_nan(logits), short[:, None] & is_one_of(ids, logits)), tstate

    return LogitsTransform(init, apply)
