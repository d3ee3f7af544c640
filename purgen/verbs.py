"""The verbs that strategies are written in: `begin`, `feed`, `warp`, `append`, `finish`.

A strategy's `init` calls `begin`; its `step` calls `feed`, does what it likes with the logits, and
calls `append`. Between two steps exactly one token of a running row is not in the cache yet: the
newest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purgen import random
from purgen.buckets import Buckets
from purgen.cache import Cache
from purgen.concrete import is_concrete
from purgen.decoder import GenerationOutput, StepInfo
from purgen.donation import donating
from purgen.logits import entropy_of, forbid_nan, is_dead, log_softmax
from purgen.model import Model, ModelOutput
from purgen.prefill import fill
from purgen.prompt import Prompt, right_align
from purgen.pytree import replace, where_rows
from purgen.state import GenerationState, StopReason
from purgen.stop_rules.base import StopRule, reason_of
from purgen.transforms import LogitsTransform
from purgen.view import NO_KEY, view_of

__all__ = ["append", "begin", "extend", "feed", "finish", "require_key", "row_keys", "warp"]


def begin(
    model: Model,
    params: Any,
    prompt: Prompt,
    *,
    rng_key: Tensor | None = None,
    max_new_tokens: int,
    transform: LogitsTransform | None = None,
    stop: StopRule,
    buckets: Buckets | None = None,
) -> GenerationState:
    """Checks what the caller gave, allocates, and prefills all but the last prompt token.

    Args:
        model: the model.
        params: its parameters.
        prompt: B prompts.
        rng_key: int64 [2], from which row `i` gets `random.split(rng_key, B)[i]`; or int64 [B, 2], a
            key a row; or None.
        max_new_tokens: the budget, at least 1: the capacity of the state.
        transform: the logits transform whose state begins here, if any.
        stop: the stop rule whose state begins here.
        buckets: how a loop wants the buffers: tokens padded to a bucket, the cache short, since the
            loop grows it in time. None: tokens and cache have the slots that the budget can fill.

    Returns:
        The state before the first step.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a wrong value or shape; the message names it. All before any work is done.
    """
    _check_budget(max_new_tokens)
    if not isinstance(model.pad_token_id, int):
        raise ValueError(f"model: pad_token_id must be an int, not {model.pad_token_id!r}")
    tokens, start, offset = right_align(
        prompt, vocab_size=model.vocab_size, pad_token_id=model.pad_token_id
    )
    batch_size, width = tokens.shape
    longest = int((width - start).max()) if is_concrete(start) else width
    limit = getattr(model, "max_length", None)
    if limit is not None and longest + max_new_tokens > limit:
        raise ValueError(
            f"max_new_tokens: a prompt of {longest} tokens and {max_new_tokens} new ones exceed the "
            f"{limit} tokens that the model can read"
        )
    length = torch.full_like(start, width)
    total = width + max_new_tokens
    slots = total if buckets is None else buckets.fit_tokens(total)
    cache = model.init_cache(
        batch_size, slots if buckets is None else buckets.fit_cache(width, total)
    )
    if cache.layout is None and buckets is not None:  # one that cannot be lengthened
        slots = total
        cache = model.init_cache(batch_size, slots)
    state = GenerationState(
        tokens=torch.nn.functional.pad(tokens, (0, slots - width), value=model.pad_token_id),
        start=start,
        length=length,
        prompt_length=length.clone(),
        cache=cache,
        stopped=torch.zeros_like(start, dtype=torch.bool),
        stop_reason=torch.zeros_like(start),
        rng_key=row_keys(rng_key, batch_size, tokens.device),
        prompt_offset=offset,
        limit=torch.full_like(start, total),
        pad_token_id=model.pad_token_id,
        keyed=rng_key is not None,
    )
    context = view_of(state, vocab_size=model.vocab_size, max_new_tokens=max_new_tokens)
    if transform is not None:
        state = replace(state, transform=transform.init(context))
    state = replace(state, stop=stop.init(context))
    if width == 1 and not (prompt.inputs or getattr(model, "needs_inputs", False)):
        return state
    mask = (torch.arange(width, device=tokens.device) >= start[:, None])[:, :-1]
    # The pad id may be one that the model has no embedding for: under pads it gets token 0.
    fed = torch.where(mask, tokens[:, :-1], 0)
    with donating(state.cache.layers):
        cache = fill(model, params, fed, state.cache, mask=mask, inputs=prompt.inputs or None)
    return replace(state, cache=replace(cache, cache_position=length - 1))


def feed(
    model: Model,
    params: Any,
    state: GenerationState,
    *,
    num_tokens: int = 1,
    lockstep: bool | None = None,
) -> tuple[GenerationState, ModelOutput]:
    """Runs the model on what is not yet in the cache.

    A row that has stopped is fed its last token again, and does not move.

    Args:
        model: the model.
        params: its parameters.
        state: the generation.
        num_tokens: q, how many tokens of each row are not in the cache; 1 between two steps.
        lockstep: whether all running rows are at one slot; None: what the state says.

    Returns:
        `(state, output)`: the state with these tokens in its cache, and the model's output, with
        `logits` [B, q, V] (those of the next token are `output.logits[:, -1]`).
    """
    lockstep = state.lockstep if lockstep is None else lockstep
    position: Tensor
    if lockstep and getattr(model, "shared_position", False):
        # A row that has stopped writes beyond its length, where nothing means anything.
        position = state.length.amax() - num_tokens  # []
        shared = position.expand_as(state.length)
    else:
        position = shared = torch.where(
            state.stopped, state.length - num_tokens, state.cache_position
        )
    slots = shared[:, None] + torch.arange(num_tokens, device=position.device)
    begins, ends = state.start[:, None], (shared + num_tokens)[:, None]
    cache = _roomy(state, shared, num_tokens)
    layout = cache.layout
    capacity = state.tokens.shape[1] if layout is None else layout.capacity(cache)
    slot = torch.arange(capacity, device=position.device)
    output = model.apply(
        params,
        state.tokens.gather(1, torch.minimum(slots, (state.length - 1)[:, None])),
        cache,
        cache_position=position,
        attention_mask=(slot >= begins) & (slot < ends),
        position_ids=slots - begins,
    )
    after, running = output.cache, ~state.stopped
    if layout is not None:
        after = layout.kept(running, after, cache)
    elif not getattr(model, "slot_addressed", False):
        after = replace(after, layers=where_rows(running, after.layers, cache.layers))
    moved = torch.where(running, shared + num_tokens, state.cache_position)
    return replace(state, cache=replace(after, cache_position=moved)), output


def _roomy(state: GenerationState, position: Tensor, num_tokens: int) -> Cache:
    """Returns the cache, lengthened where a loop left it shorter than the tokens and it is full."""
    cache, slots = state.cache, state.tokens.shape[1]
    if cache.layout is None or cache.layout.capacity(cache) >= slots or not is_concrete(position):
        return cache
    if int(position.amax()) + num_tokens <= cache.layout.capacity(cache):
        return cache
    return cache.layout.resized(cache, slots)


def append(
    state: GenerationState,
    token: Tensor,
    logits: Tensor,
    *,
    stop: StopRule,
    model_logits: Tensor | None = None,
) -> tuple[GenerationState, StepInfo]:
    """Writes a token to each running row, advances it, and applies the stop rule.

    A row stops when the rule says so, when the capacity is used up (`MAX_NEW_TOKENS`), and when all
    its logits are -inf or NaN (`NO_TOKEN`; nothing is written then). Rows that have stopped do not
    change.

    Args:
        state: the generation, with room for a token in every running row.
        token: int64 [B], the ids chosen.
        logits: floating [B, V], what they were chosen from.
        stop: the rule whose state is in `state.stop`.
        model_logits: floating [B, V], the model's own logits, where `logits` are changed ones.

    Returns:
        `(state, info)`.
    """
    running = ~state.stopped
    dead = running & is_dead(logits)
    emits = running & ~dead
    written = extend(state, token, emits)
    info = _describe(state, token, logits, model_logits, emits)
    view = view_of(written, logprob=info.logprob, entropy=info.entropy)
    fires, rule_state = stop.check(state.stop, view)
    reason = torch.where(fires, reason_of(stop, rule_state, fires), 0)
    full = written.length >= written.limit
    reason = torch.where(full & (reason == 0), int(StopReason.MAX_NEW_TOKENS), reason)
    reason = torch.where(dead, int(StopReason.NO_TOKEN), reason)
    reason = torch.where(running, reason, state.stop_reason)
    after = replace(
        written,
        stopped=reason != 0,
        stop_reason=reason,
        stop=where_rows(emits, rule_state, state.stop),
    )
    return after, info


def extend(state: GenerationState, token: Tensor, emits: Tensor) -> GenerationState:
    """Writes a token to some rows and advances these, without asking a stop rule.

    Args:
        state: the generation, with room for a token in these rows.
        token: int64 [B].
        emits: bool [B], which rows get theirs.

    Returns:
        The state with new `tokens` and `length`.
    """
    slot = torch.where(emits, state.length, state.length - 1)
    row = torch.arange(len(slot), device=slot.device)
    old = state.tokens.gather(1, slot[:, None])[:, 0]
    tokens = torch.ops.aten.index_put(state.tokens, [row, slot], torch.where(emits, token, old))
    return replace(state, tokens=tokens, length=state.length + emits.long())


def warp(
    state: GenerationState, logits: Tensor, transform: LogitsTransform
) -> tuple[GenerationState, Tensor]:
    """Applies the transform whose state is in `state.transform`.

    Args:
        state: the generation.
        logits: floating [B, V]; NaN counts as -inf.
        transform: the transform.

    Returns:
        `(state, logits)`: the state with the transform's new one, which stays as it was in rows that
        have stopped; and the changed logits.
    """
    logits, after = transform.apply(state.transform, forbid_nan(logits), view_of(state))
    after = where_rows(~state.stopped, after, state.transform)
    return replace(state, transform=after), logits


def require_key(rng_key: Tensor | None) -> None:
    """Raises ValueError if a strategy that draws random numbers was given no key."""
    if rng_key is None:
        raise ValueError(NO_KEY)


def finish(state: GenerationState, *, scores: Tensor | None = None) -> GenerationOutput:
    """Lays out the result of a generation, over or not.

    Args:
        state: the generation.
        scores: float32 [B], where a search ranked the rows.

    Returns:
        A `GenerationOutput` with an empty record.
    """
    tokens, prompt_length = state.tokens, state.prompt_length
    width, count = int(prompt_length.max()), state.num_new_tokens

    def segment(first: Tensor, size: Tensor, place: Tensor, columns: int) -> Tensor:
        """`size` tokens from slot `first` on, at column `place`, among pads."""
        column = torch.arange(columns, device=tokens.device)
        inside = (column >= place[:, None]) & (column < (place + size)[:, None])
        source = (column + (first - place)[:, None]).clamp(0, tokens.shape[1] - 1)
        return torch.where(inside, tokens.gather(1, source), state.pad_token_id)

    prompt = segment(state.start, prompt_length - state.start, state.prompt_offset, width)
    new_tokens = segment(prompt_length, count, torch.zeros_like(count), int(count.max()))
    return GenerationOutput(
        sequences=torch.cat([prompt, new_tokens], dim=1),
        new_tokens=new_tokens,
        num_new_tokens=count,
        stop_reason=state.stop_reason,
        scores=scores,
        record={},
        state=state,
    )


def _describe(
    state: GenerationState,
    token: Tensor,
    logits: Tensor,
    model_logits: Tensor | None,
    emits: Tensor,
) -> StepInfo:
    def at_token(logprobs: Tensor) -> Tensor:
        return torch.where(emits, logprobs.gather(1, token[:, None])[:, 0], 0.0)

    logprobs = log_softmax(logits)
    logprob = at_token(logprobs)
    own = logits if model_logits is None else model_logits
    recorded = {recorder.name: recorder.measure(logits, own, token) for recorder in state.record}
    return StepInfo(
        token=torch.where(emits, token, state.pad_token_id),
        num_tokens=emits.long(),
        logprob=logprob,
        entropy=torch.where(emits, entropy_of(logprobs), 0.0),
        model_logprob=logprob if own is logits else at_token(log_softmax(own)),
        recorded={
            name: where_rows(emits, value, torch.zeros_like(value))
            for name, value in recorded.items()
        },
    )


def _check_budget(max_new_tokens: int) -> None:
    if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool):
        raise TypeError(
            f"max_new_tokens must be an int, not {type(max_new_tokens).__name__} "
            f"{max_new_tokens!r}; a budget a row is the stop rule purgen.max_new_tokens"
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, not {max_new_tokens}")


def row_keys(rng_key: Tensor | None, batch_size: int, device: torch.device) -> Tensor:
    """Returns a key a row, int64 [B, 2], of what the caller gave; zeros where that is None."""
    if rng_key is None:
        return torch.zeros(batch_size, 2, dtype=torch.int64, device=device)
    if not isinstance(rng_key, Tensor) or rng_key.dtype != torch.int64:
        kind = rng_key.dtype if isinstance(rng_key, Tensor) else type(rng_key).__name__
        raise TypeError(
            f"rng_key must be an int64 tensor [2] or [B, 2], such as purgen.random.key(0), not {kind}"
        )
    if rng_key.shape == (2,):
        return random.split(rng_key.to(device), batch_size)
    if rng_key.shape == (batch_size, 2):
        return rng_key.to(device).clone()
    raise ValueError(
        f"rng_key must be [2] or [B, 2] with B = {batch_size}, not {list(rng_key.shape)}"
    )
