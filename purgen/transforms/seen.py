"""The tokens that a row holds, and changing the logits of just these.

A step of such a transform costs a copy of the logits and work on as many numbers as the row has
tokens; nothing else is as large as the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.view import TokenView, real_slots

__all__ = [
    "SCOPES",
    "change_logits",
    "check_scope",
    "count_tokens",
    "forbid_tokens",
    "in_scope",
    "member_of",
]

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


def member_of(ids: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function that tells which tokens belong to a set.

    Args:
        ids: int64 [n], at least 0.

    Returns:
        `tokens int64 [...] -> bool [...]`, for tokens of at least 0.
    """
    members = torch.zeros(int(ids.max()) + 2 if ids.numel() else 1, dtype=torch.bool)
    members = members.index_fill(0, ids, True)

    def contains(tokens: Tensor) -> Tensor:
        return members.to(tokens.device)[tokens.clamp(0, len(members) - 1)]

    return contains


def change_logits(
    scores: Tensor,
    tokens: Tensor,
    counts: Tensor,
    change: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Changes the logits of the tokens that count.

    Args:
        scores: floating [B, V].
        tokens: int64 [B, S]; ids beyond V are passed over.
        counts: bool [B, S], which of them count; False where there is no token.
        change: `change(old [B, S], tokens [B, S]) -> new`, of the same dtype or float32, [B, S] or
            broadcasting; the same for equal tokens of a row.

    Returns:
        The same shape and dtype as `scores`.
    """
    index, some = _places(scores, tokens, counts)
    old = scores.gather(1, index)
    new = torch.where(some, change(old, index).to(scores.dtype), old)
    return scores.scatter(1, index, new)


def forbid_tokens(logits: Tensor, tokens: Tensor, hits: Tensor) -> Tensor:
    """Gives -inf to some tokens, and to NaN.

    Args:
        logits: floating [B, V].
        tokens: int64 [B, S]; ids beyond V are passed over.
        hits: bool [B, S], which of them to forbid; False where there is no token.

    Returns:
        The same shape and dtype as `logits`.
    """
    scores = forbid_nan(logits)
    index, some = _places(scores, tokens, hits)
    value = torch.where(some, -torch.inf, scores.gather(1, index[:, :1]))
    return scores.scatter(1, index, value.expand_as(index))


def count_tokens(tokens: Tensor, counts: Tensor, vocab_size: int) -> Tensor:
    """Counts how often each token of the vocabulary occurs.

    Args:
        tokens: int64 [B, S]; ids beyond V are passed over.
        counts: bool [B, S], the slots that count.
        vocab_size: V, the number of logits.

    Returns:
        float32 [B, V].
    """
    counts = counts & (tokens < vocab_size)
    number = torch.zeros(len(tokens), vocab_size, device=tokens.device)
    return number.scatter_add(1, tokens.clamp(0, vocab_size - 1), counts.float())


def _places(scores: Tensor, tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Which logits to write, int64 [B, S], and whether there are any, bool [B, 1].

    A slot that does not count stands for the first of its row that does; in a row without one, all
    stand for the same token.
    """
    vocab_size = scores.shape[1]
    counts = counts & (tokens < vocab_size)
    first = counts.int().argmax(dim=1, keepdim=True)
    same = tokens.gather(1, first).clamp(0, vocab_size - 1)
    return torch.where(counts, tokens, same), counts.gather(1, first)
