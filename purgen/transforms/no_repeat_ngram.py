"""No-repeat n-gram: no sequence of n tokens occurs twice in a row.

Paulus, Xiong and Socher, "A deep reinforced model for abstractive summarization", ICLR 2018,
arXiv:1705.04304, section 2.5.
"""

from __future__ import annotations

from torch import Tensor

from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.ngrams import (
    completes_ngram,
    own_tokens,
    recent_tokens,
    window_length,
)
from purgen.transforms.seen import forbid_tokens
from purgen.view import TokenView

__all__ = ["no_repeat_ngram"]


def no_repeat_ngram(ngram_size: int | Tensor) -> LogitsTransform:
    """Forbids the tokens that would complete an n-gram which the row has already.

    Token v is forbidden if, somewhere in prompt or new tokens, v follows n - 1 tokens that are the
    last n - 1 of the row. At n = 1 no token comes twice; rows shorter than n are left alone. The cost
    of a step is that of n - 1 comparisons of the row with itself.

    Args:
        ngram_size: n, at least 1; an int, 0-d or [B] int64 tensor.

    Returns:
        A `LogitsTransform`. Equal to `NoRepeatNGramLogitsProcessor` on rows without pads; here pads
        are no tokens, also where the pad id is an eos id.

    Raises:
        TypeError: `ngram_size` is no integer.
        ValueError: `ngram_size` is below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.no_repeat_ngram(2)
        >>> view = purgen.testing.example_view([[1, 2, 3, 1]], vocab_size=4)
        >>> transform.apply(transform.init(view), torch.zeros(1, 4), view)[0]
        tensor([[0., 0., -inf, 0.]])
    """
    size = setting("no_repeat_ngram", "ngram_size", ngram_size, low=1, integer=True)
    window = window_length(size)

    def init(context: TokenView) -> Tensor:
        return per_row("no_repeat_ngram", "ngram_size", size, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        tokens = own_tokens(view)
        recent = recent_tokens(view, min(window or tokens.shape[1], tokens.shape[1]))
        hits = completes_ngram(tokens, recent, tstate)
        return forbid_tokens(logits, tokens, hits), tstate

    return LogitsTransform(init, apply)
