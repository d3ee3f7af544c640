r"""Suppressed first tokens: $\ell_i \to -\infty$ for a set of ids when a row begins.

Radford et al., "Robust speech recognition via large-scale weak supervision" (Whisper), ICML 2023,
arXiv:2212.04356.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import forbid, is_one_of
from purgen.transforms.positions import begin_per_row, num_tokens, optional_setting
from purgen.view import TokenView

__all__ = ["suppress_tokens_at_begin"]


def suppress_tokens_at_begin(
    begin_suppress_tokens: int | Iterable[int] | Tensor,
    *,
    begin_index: int | Tensor | None = None,
) -> LogitsTransform:
    """Forbids some tokens where a row has `begin_index` tokens, pads not counted.

    Args:
        begin_suppress_tokens: an id or several.
        begin_index: how many tokens a row has when they are forbidden; an int, 0-d or [B] int64
            tensor. None stands for the length of its prompt: its first new token.

    Returns:
        A `LogitsTransform`. Equal to `SuppressTokensAtBeginLogitsProcessor` on rows without pads.

    Raises:
        TypeError: not integers.
        ValueError: no id, a negative one, or one outside the vocabulary; `begin_index` negative.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.suppress_tokens_at_begin([0, 2], begin_index=3)
        >>> view = purgen.testing.example_view([[5, 6], [5, 6, 7]], vocab_size=3)
        >>> transform.apply(transform.init(view), torch.zeros(2, 3), view)[0]
        tensor([[0., 0., 0.],
                [-inf, 0., -inf]])
    """
    owner = "suppress_tokens_at_begin"
    ids = token_ids(owner, "begin_suppress_tokens", begin_suppress_tokens)
    begin = optional_setting(owner, "begin_index", begin_index)

    def init(context: TokenView) -> Tensor:
        check_vocabulary(owner, "begin_suppress_tokens", ids, context)
        return begin_per_row(owner, "begin_index", begin, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        begins = num_tokens(view) == tstate
        return forbid(forbid_nan(logits), begins[:, None] & is_one_of(ids, logits)), tstate

    return LogitsTransform(init, apply)
