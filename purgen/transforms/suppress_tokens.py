r"""Suppressed tokens: $\ell_i \to -\infty$ for a set of ids.

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
from purgen.view import TokenView

__all__ = ["suppress_tokens"]


def suppress_tokens(suppress_tokens: int | Iterable[int] | Tensor) -> LogitsTransform:
    """Forbids some tokens at every step.

    Args:
        suppress_tokens: an id or several.

    Returns:
        A `LogitsTransform`. Equal to `SuppressTokensLogitsProcessor`.

    Raises:
        TypeError: not integers.
        ValueError: no id, a negative one, or one outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.suppress_tokens([0, 2])
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> transform.apply(transform.init(view), torch.zeros(1, 4), view)[0]
        tensor([[-inf, 0., -inf, 0.]])
    """
    ids = token_ids("suppress_tokens", "suppress_tokens", suppress_tokens)

    def init(context: TokenView) -> tuple[()]:
        check_vocabulary("suppress_tokens", "suppress_tokens", ids, context)
        return ()

    def apply(tstate: tuple[()], logits: Tensor, view: TokenView) -> tuple[Tensor, tuple[()]]:
        return forbid(forbid_nan(logits), is_one_of(ids, logits)), tstate

    return LogitsTransform(init, apply)
