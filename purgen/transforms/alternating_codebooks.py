r"""Bark's coarse tokens: the two codebooks take turns.

With a semantic vocabulary of $S$ ids and codebooks of $C$, even tokens are from $[S, S + C)$ and odd
ones from $S + C$ on.

Suno, "Bark: text-prompted generative audio model", 2023, https://github.com/suno-ai/bark
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import forbid
from purgen.transforms.positions import begin_per_row, num_tokens, optional_setting
from purgen.view import TokenView

__all__ = ["alternating_codebooks"]

OWNER = "alternating_codebooks"


def alternating_codebooks(
    semantic_vocab_size: int | Tensor,
    *,
    codebook_size: int | Tensor,
    input_start_len: int | Tensor | None = None,
) -> LogitsTransform:
    """Allows ids of the first codebook and of the second in turn.

    Args:
        semantic_vocab_size: how many ids come before the first codebook, at least 0; an int, 0-d or
            [B] int64 tensor.
        codebook_size: ids of the first codebook, at least 1; likewise.
        input_start_len: how many tokens a row has, pads not counted, when the first codebook is due;
            likewise, or None for the length of its prompt.

    Returns:
        A `LogitsTransform`. Equal to `AlternatingCodebooksLogitsProcessor` on rows without pads.

    Raises:
        TypeError: not integers.
        ValueError: a number out of range, no id left for the second codebook.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.alternating_codebooks(2, codebook_size=2)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=6)
        >>> tstate = transform.init(view)
        >>> transform.apply(tstate, torch.zeros(1, 6), view)[0]
        tensor([[-inf, -inf, 0., 0., -inf, -inf]])
        >>> second = purgen.testing.example_view([[1, 2, 3, 2]], num_new_tokens=1)
        >>> transform.apply(tstate, torch.zeros(1, 6), second)[0]
        tensor([[-inf, -inf, -inf, -inf, 0., 0.]])
    """
    semantic = setting(OWNER, "semantic_vocab_size", semantic_vocab_size, low=0, integer=True)
    book = setting(OWNER, "codebook_size", codebook_size, low=1, integer=True)
    begin = optional_setting(OWNER, "input_start_len", input_start_len)

    def init(context: TokenView) -> dict[str, Tensor]:
        low = per_row(OWNER, "semantic_vocab_size", semantic, context)
        middle = low + per_row(OWNER, "codebook_size", book, context)
        if context.vocab_size and is_concrete(middle) and int(middle.max()) >= context.vocab_size:
            raise ValueError(
                f"{OWNER}: semantic_vocab_size and codebook_size add up to {int(middle.max())}, which "
                f"leaves no id for the second codebook in the vocabulary [0, {context.vocab_size})"
            )
        return {
            "low": low,
            "middle": middle,
            "begin": begin_per_row(OWNER, "input_start_len", begin, context),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        low, middle = tstate["low"][:, None], tstate["middle"][:, None]
        first_due = ((num_tokens(view) - tstate["begin"]) % 2 == 0)[:, None]
        in_first = (vocabulary >= low) & (vocabulary < middle)
        allowed = torch.where(first_due, in_first, vocabulary >= middle)
        return forbid(forbid_nan(logits), ~allowed), tstate

    return LogitsTransform(init, apply)
