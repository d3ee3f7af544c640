"""Where the last tokens of a row stood before: what rules on n-grams and sequences are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.view import TokenView, real_slots

__all__ = [
    "NO_TOKEN",
    "completes_ngram",
    "own_tokens",
    "recent_tokens",
    "window_length",
]

NO_TOKEN = -1  # a slot without a token
BEFORE_START = -2  # a token further back than the row reaches; it equals no slot's content


def own_tokens(view: TokenView) -> Tensor:
    """Returns the tokens with `NO_TOKEN` in every slot that holds none.

    Args:
        view: tokens [B, T] with their bounds.

    Returns:
        int64 [B, T].
    """
    return torch.where(real_slots(view), view.tokens, NO_TOKEN)


def recent_tokens(view: TokenView, count: int) -> Tensor:
    """Returns the last tokens of each row, the newest last.

    Args:
        view: tokens [B, T] with their bounds.
        count: how many.

    Returns:
        int64 [B, count], `BEFORE_START` where a row has fewer tokens.
    """
    back = torch.arange(count, 0, -1, device=view.tokens.device)
    slot = view.length[:, None] - back
    return torch.where(
        slot >= view.start[:, None], view.tokens.gather(1, slot.clamp(min=0)), BEFORE_START
    )


def window_length(ngram_size: Tensor) -> int | None:
    """Returns how many tokens must be compared for n-grams of these sizes.

    It is a shape, so it must be static: the next power of two, so that other sizes within it compile
    nothing anew.

    Args:
        ngram_size: int64, 0-d or [B], as `setting` returns it.

    Returns:
        At least 1; None where the sizes cannot be read (under vmap), which means all tokens.
    """
    if not is_concrete(ngram_size):
        return None
    return 1 << max(int(ngram_size.max()) - 2, 0).bit_length()


def completes_ngram(tokens: Tensor, recent: Tensor, ngram_size: Tensor) -> Tensor:
    """Tells where an n-gram ends whose other tokens are the last ones of the row.

    Args:
        tokens: int64 [B, S] with `NO_TOKEN` where there is none.
        recent: int64 [B, k], the last tokens of each row, as `recent_tokens` returns them.
        ngram_size: int64 [B], n; at most k + 1.

    Returns:
        bool [B, S], True at a token that follows n - 1 tokens equal to the last n - 1 of `recent`.
    """
    count, slots = recent.shape[1], tokens.shape[1]
    padded = torch.nn.functional.pad(tokens, (count, 0), value=NO_TOKEN)
    before = padded.unfold(1, count, 1)[:, :slots].transpose(1, 2).contiguous()  # [B, k, S]
    back = torch.arange(count, 0, -1, device=tokens.device)
    not_asked = back >= ngram_size[:, None]  # [B, k]
    same = (before == recent[:, :, None]) | not_asked[:, :, None]
    return same.all(dim=1) & (tokens != NO_TOKEN)
