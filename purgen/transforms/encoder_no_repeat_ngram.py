"""No-repeat n-gram against the encoder's input: no sequence of n tokens is copied from it.

Roller et al., "Recipes for building an open-domain chatbot", EACL 2021, arXiv:2004.13637
(subsequence blocking).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.encoder_ids import EncoderIds, encoder_ids, encoder_rows
from purgen.transforms.ngrams import (
    completes_ngram,
    recent_tokens,
    window_length,
)
from purgen.transforms.seen import forbid_tokens
from purgen.view import TokenView

__all__ = ["encoder_no_repeat_ngram"]


def encoder_no_repeat_ngram(
    encoder_ngram_size: int | Tensor,
    *,
    encoder_input_ids: EncoderIds,
    encoder_attention_mask: Tensor | None = None,
) -> LogitsTransform:
    """Forbids the tokens that would complete an n-gram of the encoder's input.

    Token v is forbidden if, somewhere in that input, v follows n - 1 tokens that are the last n - 1 of
    the row. At n = 1 no token of the input may be chosen; rows shorter than n - 1 are left alone.

    Args:
        encoder_ngram_size: n, at least 1; an int, 0-d or [B] int64 tensor.
        encoder_input_ids: int64 [R, S] or [S], or lists of ids; R divides the batch, and each of the
            R stands for as many neighbouring rows.
        encoder_attention_mask: bool or 0/1, like the ids; None means that all are tokens.

    Returns:
        A `LogitsTransform`. Equal to `EncoderNoRepeatNGramLogitsProcessor`, which has no mask and so
        takes pads for tokens.

    Raises:
        TypeError: `encoder_ngram_size` or an id is no integer.
        ValueError: `encoder_ngram_size` is below 1, the input is empty or does not fit the batch.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.encoder_no_repeat_ngram(2, encoder_input_ids=[[1, 2, 1, 3]])
        >>> view = purgen.testing.example_view([[0, 1]], vocab_size=4)
        >>> transform.apply(transform.init(view), torch.zeros(1, 4), view)[0]
        tensor([[0., 0., -inf, -inf]])
    """
    owner = "encoder_no_repeat_ngram"
    size = setting(owner, "encoder_ngram_size", encoder_ngram_size, low=1, integer=True)
    window = window_length(size)
    ids = encoder_ids(owner, encoder_input_ids, encoder_attention_mask)

    def init(context: TokenView) -> dict[str, Any]:
        return {
            "ids": encoder_rows(owner, ids, context),
            "size": per_row(owner, "encoder_ngram_size", size, context),
        }

    def apply(tstate: dict[str, Any], logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        tokens = tstate["ids"]
        recent = recent_tokens(view, min(window or tokens.shape[1], tokens.shape[1]))
        hits = completes_ngram(tokens, recent, tstate["size"])
        return forbid_tokens(logits, tokens, hits), tstate

    return LogitsTransform(init, apply)
