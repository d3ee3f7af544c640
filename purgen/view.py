"""What a logits transform and a stop rule may look at."""

from __future__ import annotations

import torch
from torch import Tensor

from purgen import random
from purgen.pytree import pytree_dataclass, static_field
from purgen.state import GenerationState

NO_KEY = (
    "rng_key is None, and this strategy draws random numbers: pass rng_key=purgen.random.key(seed)"
)

__all__ = ["NO_KEY", "TokenView", "last_token", "real_slots", "step_key", "view_of"]


@pytree_dataclass
class TokenView:
    """The tokens of a generation, without its cache.

    Attributes:
        tokens: int64 [B, T], prompt and new tokens; slots outside `[start, length)` hold the pad id.
        start: int64 [B], first real slot.
        length: int64 [B], one past the last real token.
        prompt_length: int64 [B], one past the last prompt token.
        num_new_tokens: int64 [B], `length - prompt_length`.
        rng_key: int64 [B, 2], the key of each row (see `purgen.step_key`).
        elapsed: float32 [B], seconds since the generation began, as of the beginning of the step.
        logprob: float32 [B], log-probability of the newest token under the distribution it was
            chosen from, in nats. Only a stop rule sees it; elsewhere it is 0.
        entropy: float32 [B], entropy of that distribution, in nats; likewise.
        vocab_size: int (static), V.
        max_new_tokens: int (static), the budget of the generation.
        keyed: bool (static), whether the caller gave a random key.
    """

    tokens: Tensor  # int64 [B, T]
    start: Tensor  # int64 [B]
    length: Tensor  # int64 [B]
    prompt_length: Tensor  # int64 [B]
    num_new_tokens: Tensor  # int64 [B]
    rng_key: Tensor  # int64 [B, 2]
    elapsed: Tensor  # float32 [B]
    logprob: Tensor  # float32 [B]
    entropy: Tensor  # float32 [B]
    vocab_size: int = static_field(default=0)
    max_new_tokens: int = static_field(default=0)
    keyed: bool = static_field(default=True)


def view_of(
    state: GenerationState,
    *,
    logprob: Tensor | None = None,
    entropy: Tensor | None = None,
    vocab_size: int = 0,
    max_new_tokens: int = 0,
) -> TokenView:
    """Returns what a transform or stop rule sees of a state.

    Args:
        state: the generation.
        logprob: float32 [B] of the newest token; given to stop rules.
        entropy: float32 [B], likewise.
        vocab_size: V; given when a generation begins (`init`), 0 in a step.
        max_new_tokens: the budget; likewise.

    Returns:
        A `TokenView`.
    """
    return TokenView(
        tokens=state.tokens,
        start=state.start,
        length=state.length,
        prompt_length=state.prompt_length,
        num_new_tokens=state.num_new_tokens,
        rng_key=state.rng_key,
        elapsed=state.elapsed,
        logprob=torch.zeros_like(state.elapsed) if logprob is None else logprob,
        entropy=torch.zeros_like(state.elapsed) if entropy is None else entropy,
        vocab_size=vocab_size,
        max_new_tokens=max_new_tokens,
        keyed=state.keyed,
    )


def real_slots(view: TokenView) -> Tensor:
    """Tells which slots hold real tokens.

    Args:
        view: tokens [B, T] with their bounds.

    Returns:
        bool [B, T], True in `[start, length)`.
    """
    slot = torch.arange(view.tokens.shape[1], device=view.tokens.device)
    return (slot >= view.start[:, None]) & (slot < view.length[:, None])


def last_token(view: TokenView) -> Tensor:
    """Returns the newest token of each row.

    Args:
        view: tokens [B, T] with their bounds.

    Returns:
        int64 [B].
    """
    return view.tokens.gather(1, (view.length - 1)[:, None])[:, 0]


def step_key(state: GenerationState | TokenView) -> Tensor:
    """Returns the random key of the next token of each row.

    It depends on the row's key and on the index of the token, on nothing else: not on the batch, the
    loop or the strategy.

    Args:
        state: a generation, or the view that a transform gets.

    Returns:
        int64 [B, 2], `random.fold_in(rng_key, num_new_tokens)`.

    Raises:
        ValueError: the generation began without a key.
    """
    if not state.keyed:
        raise ValueError(NO_KEY)
    return random.fold_in(state.rng_key, state.num_new_tokens)
