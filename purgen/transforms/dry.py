r"""DRY ("don't repeat yourself"): tokens that would go on with a repetition become less likely.

$\ell_i \to \ell_i - \mu \, b^{m_i - a}$ where the end of the row, $m_i \ge a$ tokens long, stood in the
row before and was followed by token $i$ there.

p-e-w, "DRY: a modern repetition penalty that reliably prevents looping", 2024,
https://github.com/oobabooga/text-generation-webui/pull/5677.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from purgen.buckets import PerSlot
from purgen.concrete import is_concrete
from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, per_row, setting, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.ngrams import own_tokens, recent_tokens
from purgen.transforms.seen import check_scope, in_scope, member_of
from purgen.view import TokenView

__all__ = ["dry"]

LARGEST = torch.finfo(torch.float32).max
EVERYTHING = 1 << 40  # more tokens than a row has


def dry(
    multiplier: float | Tensor,
    *,
    base: float | Tensor = 1.75,
    allowed_length: int | Tensor = 2,
    sequence_breakers: int | Iterable[int] | Tensor = (),
    penalty_last_n: int | Tensor | None = None,
    scope: str = "all",
) -> LogitsTransform:
    """Subtracts a penalty that grows exponentially with the length of the repetition.

    A match is a stretch of earlier tokens equal to the last tokens of the row; its length is the most
    that are equal, without a limit. The token that followed a match of length m, at least
    `allowed_length`, loses `multiplier · base ** (m - allowed_length)`; where it followed several, the
    longest counts. No match goes through a sequence breaker, and breakers are never penalised. The
    penalty stays finite: it never forbids a token.

    The lengths of all matches are carried from step to step, so a step costs as much as reading the
    row once. To turn it off for some rows or steps give these a multiplier of 0: tokens chosen while
    `when` holds it off are not followed, and matches begin anew after them.

    Args:
        multiplier: at least 0, where nothing is changed; 0.8 is usual. A float, 0-d or [B] tensor.
        base: at least 1; a float, 0-d or [B] tensor.
        allowed_length: longest match that is not penalised, plus 1; at least 0. An int, 0-d or [B]
            tensor.
        sequence_breakers: ids, such as those of line ends, quotes and turn markers.
        penalty_last_n: how many of the last tokens are looked at, at least 1; None means all. An int,
            0-d or [B] tensor.
        scope: where repeated tokens are looked for: in "all" of the row, its "prompt", or what was
            "generated".

    Returns:
        A `LogitsTransform`. Equal to text-generation-webui's `DRYLogitsProcessor`, whose matches end
        at 50 tokens.

    Raises:
        TypeError: a length is no integer.
        ValueError: a setting out of its range, an unknown `scope`, an id outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.dry(1.0, base=2.0)
        >>> view = purgen.testing.example_view([[1, 2, 3, 0, 1, 2, 3]], vocab_size=4)
        >>> transform.apply(transform.init(view), torch.full((1, 4), 4.0), view)[0]
        tensor([[2., 4., 4., 4.]])
    """
    owner = "dry"
    last_n = EVERYTHING if penalty_last_n is None else penalty_last_n
    settings = {
        "multiplier": setting(owner, "multiplier", multiplier, low=0.0, high=LARGEST),
        "base": setting(owner, "base", base, low=1.0, high=LARGEST),
        "allowed_length": setting(owner, "allowed_length", allowed_length, low=0, integer=True),
        "penalty_last_n": setting(owner, "penalty_last_n", last_n, low=1, integer=True),
    }
    breakers = token_ids(owner, "sequence_breakers", sequence_breakers, empty=True)
    check_scope(owner, scope)
    is_breaker = member_of(breakers)

    def init(context: TokenView) -> dict[str, Any]:
        check_vocabulary(owner, "sequence_breakers", breakers, context)
        tstate = {name: per_row(owner, name, value, context) for name, value in settings.items()}
        return {
            **tstate,
            "match": PerSlot(_match_lengths(context, is_breaker)),
            "read": context.num_new_tokens.clone(),
        }

    def apply(tstate: dict[str, Any], logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        match = _follow(tstate, view, is_breaker)
        tokens = own_tokens(view)
        slot = torch.arange(tokens.shape[1], device=tokens.device)
        begin = view.prompt_length if scope == "generated" else view.start
        begin = torch.maximum(begin, view.length - tstate["penalty_last_n"])[:, None]
        # From here on, slots are those of the tokens that follow a match.
        length = torch.minimum(_shift(match, 0), slot - begin)
        counts = in_scope(view, scope) & ~is_breaker(tokens) & (length > 0)
        excess = length - tstate["allowed_length"][:, None]
        counts = counts & (excess >= 0) & (tokens < logits.shape[-1])
        penalty = (tstate["base"][:, None] ** excess.clamp(min=0).float()).clamp(max=LARGEST)
        penalty = (tstate["multiplier"][:, None] * penalty).clamp(max=LARGEST)
        return _subtract(forbid_nan(logits), tokens, penalty, counts), {
            **tstate,
            "match": PerSlot(match),
            "read": view.num_new_tokens.clone(),
        }

    return LogitsTransform(init, apply)


def _match_lengths(view: TokenView, is_breaker: Any) -> Tensor:
    """Returns for each slot how long the match is that ends there, int64 [B, T]."""
    tokens = own_tokens(view)
    slots = tokens.shape[1]
    recent = recent_tokens(view, slots)
    equal = torch.arange(slots, device=tokens.device) < (view.length - 1)[:, None]
    match = torch.zeros_like(tokens)
    for back in range(slots):
        wanted = recent[:, -1 - back, None]
        equal = equal & (tokens == wanted) & ~is_breaker(wanted)
        if is_concrete(equal) and not bool(equal.any()):
            break
        match = match + equal
        tokens = _shift(tokens, -1)
    return match


def _follow(tstate: dict[str, Any], view: TokenView, is_breaker: Any) -> Tensor:
    """Returns the match lengths after the newest token, from those before it."""
    news = (view.num_new_tokens - tstate["read"])[:, None]
    # A view may have more slots than the one that the state began with: they hold no match.
    old = tstate["match"].values
    old = torch.nn.functional.pad(old, (0, view.tokens.shape[1] - old.shape[1]))
    newest = recent_tokens(view, 1)
    slot = torch.arange(old.shape[1], device=old.device)
    equal = (view.tokens == newest) & (slot >= view.start[:, None])
    equal = equal & (slot < (view.length - 1)[:, None]) & ~is_breaker(newest)
    longer = torch.where(news == 1, _shift(old, 0) + 1, 1)
    return torch.where(news == 0, old, torch.where(equal, longer, 0))


def _shift(values: Tensor, fill: int) -> Tensor:
    """Moves each column one to the right."""
    return torch.nn.functional.pad(values, (1, 0), value=fill)[:, :-1]


def _subtract(scores: Tensor, tokens: Tensor, penalty: Tensor, counts: Tensor) -> Tensor:
    """Takes the greatest penalty of each token from its logit; no finite one becomes infinite."""
    index = tokens.clamp(0, scores.shape[1] - 1)
    old = scores.gather(1, index)
    new = (old.float() - penalty).clamp(min=torch.finfo(scores.dtype).min)
    new = torch.where(counts & (old > -torch.inf), new.to(scores.dtype), torch.inf)
    return scores.scatter_reduce(1, index, new, "amin")
