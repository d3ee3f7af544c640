"""Which tokens a row holds, and how often: what penalties on repetition look at."""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.view import TokenView, real_slots

__all__ = ["SCOPES", "check_scope", "count_tokens", "in_scope", "seen_tokens"]

SCOPES = ("all", "prompt", "generated")


def check_scope(owner: str, scope: str) -> None:
    """Raises ValueError unless `scope` is one of `SCOPES`."""
    if scope not in SCOPES:
        raise ValueError(f"{owner}: scope must be one of {SCOPES}, not {scope!r}")


def in_scope(view: TokenView, scope: str) -> Tensor:
    """Tells which slots hold a token that counts. Pads never do.

    Args:
        view: tokens [B, T] with their bounds.
        scope: one of `SCOPES`.

    Returns:
        bool [B, T].
    """
    real = real_slots(view)
    if scope == "all":
        return real
    in_prompt = torch.arange(real.shape[1], device=real.device) < view.prompt_length[:, None]
    return real & (in_prompt if scope == "prompt" else ~in_prompt)


def seen_tokens(tokens: Tensor, counts: Tensor, vocab_size: int) -> Tensor:
    """Tells which tokens of the vocabulary occur.

    Args:
        tokens: int64 [B, S].
        counts: bool [B, S], the slots that count.
        vocab_size: V, the number of logits; tokens beyond it are passed over.

    Returns:
        bool [B, V].
    """
    column = _columns(tokens, counts, vocab_size)
    seen = torch.zeros(len(tokens), vocab_size + 1, dtype=torch.bool, device=tokens.device)
    return seen.scatter(1, column, True)[:, :vocab_size]


def count_tokens(tokens: Tensor, counts: Tensor, vocab_size: int) -> Tensor:
    """Counts how often each token of the vocabulary occurs.

    Args:
        tokens: int64 [B, S].
        counts: bool [B, S], the slots that count.
        vocab_size: V, the number of logits; tokens beyond it are passed over.

    Returns:
        float32 [B, V].
    """
    column = _columns(tokens, counts, vocab_size)
    number = torch.zeros(len(tokens), vocab_size + 1, device=tokens.device)
    ones = torch.ones(column.shape, device=tokens.device)
    return number.scatter_add(1, column, ones)[:, :vocab_size]


def _columns(tokens: Tensor, counts: Tensor, vocab_size: int) -> Tensor:
    """Sends tokens that do not count, or have no logit, to a column of their own."""
    return torch.where(counts, tokens.clamp(0, vocab_size), vocab_size)
