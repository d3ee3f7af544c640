r"""Encoder repetition penalty: tokens of the encoder's input become more likely.

The penalty of Keskar et al., "CTRL", 2019, arXiv:1909.05858, turned round:
$\ell_i \to \theta \ell_i$ where $\ell_i > 0$ and $\ell_i / \theta$ elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.encoder_ids import EncoderIds, encoder_ids, encoder_rows
from purgen.transforms.ngrams import NO_TOKEN
from purgen.transforms.seen import change_logits
from purgen.view import TokenView

__all__ = ["encoder_repetition_penalty"]


def encoder_repetition_penalty(
    penalty: float | Tensor,
    *,
    encoder_input_ids: EncoderIds,
    encoder_attention_mask: Tensor | None = None,
) -> LogitsTransform:
    """Multiplies positive logits of the encoder's tokens by `penalty` and divides negative ones by it.

    Each token counts once, however often it occurs.

    Args:
        penalty: above 0; above 1 keeps closer to the input, below 1 further away. A float, 0-d or [B]
            tensor.
        encoder_input_ids: int64 [R, S] or [S], or lists of ids; R divides the batch, and each of the
            R stands for as many neighbouring rows.
        encoder_attention_mask: bool or 0/1, like the ids; None means that all are tokens.

    Returns:
        A `LogitsTransform`. Equal to `EncoderRepetitionPenaltyLogitsProcessor`, which has no mask and
        so takes pads for tokens.

    Raises:
        TypeError: an id is no integer.
        ValueError: `penalty` not above 0, the input is empty or does not fit the batch.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.encoder_repetition_penalty(2.0, encoder_input_ids=[[1, 2]])
        >>> view = purgen.testing.example_view([[0]], vocab_size=4)
        >>> logits = torch.tensor([[4.0, 4.0, -4.0, -4.0]])
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[ 4.,  8., -2., -4.]])
    """
    owner = "encoder_repetition_penalty"
    largest = torch.finfo(torch.float32).max
    strength = setting(owner, "penalty", penalty, above=0.0, high=largest)
    ids = encoder_ids(owner, encoder_input_ids, encoder_attention_mask)

    def init(context: TokenView) -> dict[str, Any]:
        return {
            "ids": encoder_rows(owner, ids, context),
            "penalty": per_row(owner, "penalty", strength, context),
        }

    def apply(tstate: dict[str, Any], logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        tokens, strength = tstate["ids"], tstate["penalty"][:, None]

        def raised(old: Tensor, _: Tensor) -> Tensor:
            old = old.float()
            return torch.where(old < 0, old / strength, old * strength)

        return change_logits(forbid_nan(logits), tokens, tokens != NO_TOKEN, raised), tstate

    return LogitsTransform(init, apply)
