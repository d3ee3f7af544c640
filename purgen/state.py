"""What a generation is, as one value: tokens, cache, positions, stop flags, random keys."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import Tensor

from purgen.cache import Cache
from purgen.pytree import pytree_dataclass, static_field

__all__ = ["GenerationState", "StopReason"]


class StopReason(enum.IntEnum):
    """Why a row stopped: the codes in `GenerationState.stop_reason`.

    A rule of your own may use any other positive code (`purgen.StopRule(..., code=100)`).

    Example:
        >>> import purgen
        >>> purgen.StopReason(1).name
        'EOS'
    """

    RUNNING = 0
    EOS = 1  # an end-of-sequence token was chosen
    MAX_LENGTH = 2  # prompt and new tokens together reached a limit
    MAX_NEW_TOKENS = 3  # the budget of new tokens is spent
    NO_TOKEN = 4  # every token was forbidden: nothing was emitted
    CUSTOM = 5  # a rule that names no code of its own
    MAX_TIME = 6  # the time is up
    STOP_STRING = 7  # the text of the new tokens holds a stop string
    STOP_SEQUENCE = 8  # the newest tokens are a stop sequence
    CONFIDENCE = 9  # the newest token was chosen with too little probability
    ENTROPY = 10  # the distribution it was chosen from was too flat
    LOGPROB = 11  # the new tokens are too improbable on the whole


@pytree_dataclass
class GenerationState:
    """A generation between two steps. Frozen; every leaf has the rows as its first axis.

    Rows are right-aligned when a generation begins: the real tokens of row `b` are
    `tokens[b, start[b]:length[b]]`, whichever side the prompt was padded on.

    Attributes:
        tokens: int64 [B, T], prompt and new tokens; slots outside `[start, length)` hold the pad id.
        start: int64 [B], first real slot (how many left pads).
        length: int64 [B], one past the last real token.
        prompt_length: int64 [B], one past the last prompt token.
        cache: `Cache`.
        stopped: bool [B], stop flag.
        stop_reason: int64 [B], 0 while running, else a code of `StopReason`.
        rng_key: int64 [B, 2], one key a row. It never changes: a step derives its noise from the key
            and the index of the token (`purgen.step_key`).
        transform: pytree, state of the logits transform.
        stop: pytree, state of the stop rule.
        extra: pytree, state of the strategy.
        elapsed: float32 [B], seconds since the generation began, as the loop stamped them before this
            step. No step reads a clock.
        prompt_offset: int64 [B], first real column in the prompt as it was given, so that the output
            can show the prompt so; left out, it is `start`.
        limit: int64 [B], one past the last slot that a row may fill; left out, T. A loop may widen
            `tokens` beyond it, so that budgets share a program.
        pad_token_id: int (static), the pad id.
        keyed: bool (static), whether the caller gave a random key.
        record: tuple (static), what each step computes for the record (see `purgen.generate`).
        lockstep: bool (static), whether all running rows are at one slot. A loop that has looked says
            so around each step (see `Decoder.lockstep`); elsewhere it is False.
    """

    tokens: Tensor  # int64 [B, T]
    start: Tensor  # int64 [B]
    length: Tensor  # int64 [B]
    prompt_length: Tensor  # int64 [B]
    cache: Cache  # leaves [B, …]
    stopped: Tensor  # bool [B]
    stop_reason: Tensor  # int64 [B]
    rng_key: Tensor  # int64 [B, 2]
    transform: Any = ()  # leaves [B, …]
    stop: Any = ()  # leaves [B, …]
    extra: Any = ()  # leaves [B, …]
    elapsed: Tensor = None  # type: ignore[assignment]  # float32 [B]
    prompt_offset: Tensor = None  # type: ignore[assignment]  # int64 [B]
    limit: Tensor = None  # type: ignore[assignment]  # int64 [B]
    pad_token_id: int = static_field(default=0)
    keyed: bool = static_field(default=True)
    record: tuple[Any, ...] = static_field(default=())
    lockstep: bool = static_field(default=False)

    def __post_init__(self) -> None:
        if self.elapsed is None:
            object.__setattr__(self, "elapsed", torch.zeros_like(self.start, dtype=torch.float32))
        if self.prompt_offset is None:
            object.__setattr__(self, "prompt_offset", self.start.clone())
        if self.limit is None:
            limit = torch.full_like(self.start, self.tokens.shape[1])
            object.__setattr__(self, "limit", limit)

    @property
    def cache_position(self) -> Tensor:
        """int64 [B], how many slots of each row the cache holds (stored once, in `cache`)."""
        return self.cache.cache_position

    @property
    def num_new_tokens(self) -> Tensor:
        """int64 [B], how many tokens were generated."""
        return self.length - self.prompt_length
