r"""Classifier-free guidance of a language model, each context with a cache of its own.

$\ell = u + s\,(c - u)$, with $c$ and $u$ the log-probabilities of the next token after the prompt and
after the negative prompt. Sanchez et al., "Stay on topic with classifier-free guidance", 2023,
arXiv:2306.17806.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purgen import random
from purgen.buckets import Buckets
from purgen.decoder import Decoder, StepInfo
from purgen.logits import forbid_nan, log_softmax
from purgen.model import Model
from purgen.prompt import Prompt
from purgen.pytree import repeat_rows, replace
from purgen.settings import per_row, setting
from purgen.state import GenerationState
from purgen.stop_rules import StopRule, any_of
from purgen.strategies.token_strategy import pieces_of
from purgen.transforms import LogitsTransform
from purgen.verbs import append, begin, extend, feed, finish, require_key, warp
from purgen.view import step_key, view_of

__all__ = ["guided"]


def guided(
    model: Model,
    *,
    scale: float | Tensor,
    negative_prompt: Prompt | None = None,
    do_sample: bool = False,
    transform: LogitsTransform | None = None,
    stop: StopRule | None = None,
) -> Decoder:
    """Strengthens what the prompt adds over a negative prompt.

    Both contexts get every new token, and both caches are in the state, so that a decoder that is
    used again gives the same tokens. A token that the model forbids after the prompt stays forbidden;
    one that it forbids after the negative prompt counts as unlikely as float32 can say there.

    Args:
        model: the model, for both contexts.
        scale: 1 is plain decoding, to the last bit; above 1 guides; 0 decodes the negative prompt;
            below 0 flees the prompt. A float, 0-d or [B] tensor.
        negative_prompt: one prompt, or one a row; None stands for the last token of the prompt.
        do_sample: whether to draw tokens rather than to take the best.
        transform: changes the guided logits.
        stop: the stop rule; None stands for the model's eos ids.

    Returns:
        A `Decoder`. Equal to `UnbatchedClassifierFreeGuidanceLogitsProcessor` in `generate`.

    Raises:
        ValueError: `scale` is not finite, or (in `init`) `negative_prompt` has neither one row nor B.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> prompt = purgen.Prompt.from_lists([[1, 2], [3, 4]], pad_token_id=0)
        >>> negative = purgen.Prompt.from_lists([[5]], pad_token_id=0)
        >>> decoder = purgen.guided(model, scale=1.5, negative_prompt=negative)
        >>> purgen.generate(decoder, model.params, prompt, max_new_tokens=4).new_tokens.shape
        torch.Size([2, 4])
    """
    largest = torch.finfo(torch.float32).max
    strength = setting("guided", "scale", scale, low=-largest, high=largest)
    transform, stop = pieces_of(model, transform, stop)
    never = any_of()
    if negative_prompt is not None and not isinstance(negative_prompt, Prompt):
        kind = type(negative_prompt).__name__
        raise TypeError(f"guided: negative_prompt must be a purgen.Prompt or None, not {kind}")

    def init(
        params: Any,
        prompt: Prompt,
        *,
        rng_key: Tensor | None = None,
        max_new_tokens: int,
        buckets: Buckets | None = None,
    ) -> GenerationState:
        if do_sample:
            require_key(rng_key)
        state = begin(
            model,
            params,
            prompt,
            rng_key=rng_key,
            max_new_tokens=max_new_tokens,
            transform=transform,
            stop=stop,
            buckets=buckets,
        )
        weight = per_row("guided", "scale", strength, view_of(state))
        other = _rows_of(negative_prompt, state)
        negative = begin(
            model,
            params,
            other,
            max_new_tokens=max_new_tokens,
            stop=never,
            buckets=buckets,
        )
        return replace(state, extra={"scale": weight, "negative": negative})

    def step(params: Any, state: GenerationState) -> tuple[GenerationState, StepInfo]:
        weight, negative = state.extra["scale"], state.extra["negative"]
        state, output = feed(model, params, state)
        negative, other = feed(model, params, negative, lockstep=state.lockstep)
        model_logits = output.logits[:, -1]
        mixed = _guide(model_logits, other.logits[:, -1], weight[:, None])
        state, logits = warp(state, mixed, transform)
        if do_sample:
            token = random.categorical(step_key(state), logits)
        else:
            token = forbid_nan(logits).argmax(dim=-1)
        after, info = append(state, token, logits, stop=stop, model_logits=model_logits)
        negative = extend(negative, token, info.num_tokens > 0)
        negative = replace(negative, stopped=after.stopped.clone())  # no two leaves share memory
        return replace(after, extra={"scale": weight, "negative": negative}), info

    return Decoder(init, step, finish, lockstep=True)


def _guide(logits: Tensor, other: Tensor, scale: Tensor) -> Tensor:
    """Mixes two rows of logits [B, V]; where the scale is 1 the first stay as they are."""
    least = torch.finfo(torch.float32).min / 4  # so that a difference of two is finite
    wanted, unwanted = log_softmax(logits), log_softmax(other).clamp(min=least)
    mixed = unwanted + scale * (wanted.clamp(min=least) - unwanted)
    mixed = torch.where(wanted > -torch.inf, mixed.nan_to_num(), -torch.inf)
    return torch.where(scale == 1, forbid_nan(logits), mixed.to(logits.dtype))


def _rows_of(negative_prompt: Prompt | None, state: GenerationState) -> Prompt:
    """The negative prompt of each row."""
    rows = len(state.tokens)
    if negative_prompt is None:
        last = state.tokens.gather(1, (state.length - 1)[:, None])
        return Prompt(tokens=last, mask=torch.ones_like(last, dtype=torch.bool))
    given = len(negative_prompt.tokens)
    if given not in (1, rows):
        raise ValueError(f"guided: negative_prompt has {given} rows; the prompt has {rows}")
    return negative_prompt if given == rows else repeat_rows(negative_prompt, rows)
