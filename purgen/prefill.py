"""Long prompts in pieces, so that the memory of a prefill does not grow with their square."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from purgen.cache import Cache
from purgen.model import Model, ModelOutput

__all__ = ["chunked_prefill", "fill"]


def chunked_prefill(model: Any, *, size: int = 512) -> Any:
    """Makes a model that reads a long prompt in pieces.

    The masks and activations of a piece are `[B, size, T]` and `[B, size, H]` rather than
    `[B, P, P]` and `[B, P, H]`. The logits are the same; a strategy, which does not want those of
    a prompt, holds none but a piece's at a time.

    Args:
        model: the model; what its `apply` takes it takes.
        size: tokens of a piece, at least 1.

    Returns:
        The model with another `prefill`, of the same type.

    Raises:
        ValueError: `size` is below 1.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> pieces = purgen.chunked_prefill(model, size=2)
        >>> prompt = purgen.Prompt.from_lists([[1, 2, 3, 4, 5], [6, 7, 8]], pad_token_id=0)
        >>> first, second = (
        ...     purgen.generate(purgen.greedy(each), each.params, prompt, max_new_tokens=3)
        ...     for each in (model, pieces)
        ... )
        >>> bool((first.new_tokens == second.new_tokens).all())
        True
    """
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"chunked_prefill: size must be an int of at least 1, not {size!r}")

    def prefill(
        params: Any,
        tokens: Tensor,
        cache: Cache,
        *,
        mask: Tensor,
        inputs: Any = None,
        logits: bool = True,
    ) -> ModelOutput:
        slots = mask.shape[1] if cache.layout is None else cache.layout.capacity(cache)
        real = torch.nn.functional.pad(mask != 0, (0, slots - mask.shape[1]))  # [B, T]
        slot = torch.arange(slots, device=mask.device)
        piece = slice(0, size)
        output = model.prefill(params, tokens[:, piece], cache, mask=mask[:, piece], inputs=inputs)
        outputs = [output]
        for begin in range(size, tokens.shape[1], size):
            end = min(begin + size, tokens.shape[1])
            output = model.apply(
                params, tokens[:, begin:end], output.cache, attention_mask=real & (slot < end)
            )
            outputs = [*outputs, output] if logits else [output]
        hidden = [each.hidden_states for each in outputs]
        return ModelOutput(
            logits=torch.cat([each.logits for each in outputs], dim=1),
            cache=output.cache,
            hidden_states=None if hidden[0] is None else torch.cat(hidden, dim=1),
        )

    return dataclasses.replace(model, prefill=prefill, prefill_takes_logits=True)


def fill(
    model: Model, params: Any, tokens: Tensor, cache: Cache, *, mask: Tensor, inputs: Any
) -> Cache:
    """Returns the cache after a prefill, without logits where the model can leave them out.

    Args:
        model: the model.
        params: its parameters.
        tokens: int64 [B, P].
        cache: an empty cache, which may be written in place.
        mask: bool [B, P].
        inputs: other inputs of the prompt, or None.
    """
    options = {"logits": False} if getattr(model, "prefill_takes_logits", False) else {}
    return model.prefill(params, tokens, cache, mask=mask, inputs=inputs, **options).cache
