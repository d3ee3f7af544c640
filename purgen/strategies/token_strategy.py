"""Strategies that pick one token a step by a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from purgen.buckets import Buckets
from purgen.decoder import Decoder, StepInfo
from purgen.model import Model
from purgen.prompt import Prompt
from purgen.state import GenerationState
from purgen.stop_rules import StopRule, any_of, eos
from purgen.transforms import LogitsTransform, chain
from purgen.verbs import append, begin, feed, finish, require_key, warp

__all__ = ["token_strategy"]


def token_strategy(
    model: Model,
    choose: Callable[[Tensor, GenerationState], Tensor],
    *,
    transform: LogitsTransform | None = None,
    stop: StopRule | None = None,
    needs_key: bool = False,
) -> Decoder:
    """Makes a decoder of a pure function that picks the next token.

    Args:
        model: the model.
        choose: `choose(logits [B, V], state) -> token int64 [B]`. Random numbers come from
            `purgen.step_key(state)`.
        transform: changes the logits before `choose` sees them.
        stop: the stop rule; None stands for the model's eos ids.
        needs_key: whether a call without `rng_key` is refused before any work, rather than when
            `choose` asks for a key.

    Returns:
        A `Decoder`.

    Raises:
        TypeError: `choose`, `transform` or `stop` is of the wrong kind.

    Example:
        >>> import torch, purgen
        >>> def second_best(logits, state):
        ...     return logits.topk(2, dim=-1).indices[:, 1]
        >>> model = purgen.testing.toy_model()
        >>> decoder = purgen.token_strategy(model, second_best)
        >>> prompt = purgen.Prompt.from_lists([[1, 2]], pad_token_id=0)
        >>> purgen.generate(decoder, model.params, prompt, max_new_tokens=4).num_new_tokens
        tensor([4])
    """
    if not callable(choose):
        raise TypeError(f"choose must be a function of (logits, state), not {choose!r}")
    transform, stop = pieces_of(model, transform, stop)

    def init(
        params: Any,
        prompt: Prompt,
        *,
        rng_key: Tensor | None = None,
        max_new_tokens: int,
        buckets: Buckets | None = None,
    ) -> GenerationState:
        if needs_key:
            require_key(rng_key)
        return begin(
            model,
            params,
            prompt,
            rng_key=rng_key,
            max_new_tokens=max_new_tokens,
            transform=transform,
            stop=stop,
            buckets=buckets,
        )

    def step(params: Any, state: GenerationState) -> tuple[GenerationState, StepInfo]:
        state, output = feed(model, params, state)
        model_logits = output.logits[:, -1]
        state, logits = warp(state, model_logits, transform)
        token = choose(logits, state)
        return append(state, token, logits, stop=stop, model_logits=model_logits)

    return Decoder(init, step, finish, lockstep=True)


def pieces_of(
    model: Model, transform: LogitsTransform | None, stop: StopRule | None
) -> tuple[LogitsTransform, StopRule]:
    """Puts a strategy's transform and stop rule in place of None, and checks their kinds.

    Args:
        model: the model.
        transform: None stands for the identity.
        stop: None stands for the model's eos ids, if it has any.

    Returns:
        Both.

    Raises:
        TypeError: something else was given.
    """
    if transform is None:
        transform = chain()
    if not isinstance(transform, LogitsTransform):
        raise TypeError(
            f"transform must be a purgen.LogitsTransform, not {type(transform).__name__}; "
            "purgen.chain joins several, bridge.to_transform takes one of transformers"
        )
    if stop is None:
        ids = model.eos_token_id
        stop = eos(ids) if isinstance(ids, int) or ids else any_of()
    if not isinstance(stop, StopRule):
        raise TypeError(
            f"stop must be a purgen.StopRule, not {type(stop).__name__}; purgen.any_of joins several"
        )
    return transform, stop
