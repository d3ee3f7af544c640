"""What a module decides anew in each call from how far it has got, decided before it runs.

The rotary embeddings of types "longrope" and "dynamic" look at the longest position of each call and
register other frequencies when it passes the length of pretraining: state hidden in a module. Llama 4
scales its queries by one position for all rows. What a model needs follows from the longest sequence
it will read, `max_length`, and that is known when it is loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from bridge.errors import Unsupported

__all__ = ["settle"]

# The types that keep their frequencies, whatever they see.
_FIXED = ("default", "linear", "llama3", "yarn", "proportional")


def settle(module: Any, max_length: int | None) -> int | None:
    """Fixes what a module would decide by length, in place.

    Args:
        module: the copy that the skeleton keeps.
        max_length: the longest sequence it will read; None: as long as what holds for
            short sequences does, where that differs.

    Returns:
        The longest sequence for which `transformers` decides the same, or None if that is any.

    Raises:
        Unsupported: a type that cannot be settled for this length.
    """
    limits = []
    for part in module.modules():
        if not hasattr(getattr(part, "config", None), "vocab_size"):
            continue  # of a vision tower: its positions are those of an image
        if isinstance(getattr(part, "rope_type", None), str) and part.rope_type not in _FIXED:
            limits.append(_settle_rotary(part, max_length))
        if getattr(part, "attn_temperature_tuning", False) and hasattr(part, "floor_scale"):
            limits.append(_settle_temperature(part, max_length))
    return min((limit for limit in limits if limit is not None), default=None)


def _settle_temperature(part: Any, max_length: int | None) -> int:
    """The scale of the queries is 1 below `floor_scale` tokens."""
    limit = int(part.floor_scale) - 1
    if max_length is not None and max_length > limit:
        raise Unsupported(
            f"model type {part.config.model_type!r} with sequences of {max_length} tokens is not "
            f"supported: from {limit + 1} on it scales its queries by a position that rows share; "
            f"bridge.load(…, max_length={limit}) is"
        )
    part.attn_temperature_tuning = False
    return limit


def _settle_rotary(part: Any, max_length: int | None) -> int | None:
    config, kind = part.config, part.rope_type
    parameters = getattr(config, "rope_parameters", None) or {}
    trained = parameters.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    trained = trained or config.max_position_embeddings
    short = max_length is None or max_length <= trained
    if kind not in ("longrope", "dynamic") or (kind == "dynamic" and not short):
        advice = f"; up to {trained} tokens it is the same throughout" if kind == "dynamic" else ""
        raise Unsupported(
            f"model type {config.model_type!r} with rope_type {kind!r} and sequences of {max_length} "
            f"tokens is not supported: it computes its frequencies from what it has seen{advice}"
        )
    # The module may have run before, and then holds whichever it used last.
    seen = trained if short else trained + 1
    frequencies, _ = ROPE_INIT_FUNCTIONS[kind](config, part.inv_freq.device, seq_len=seen)
    part.register_buffer("inv_freq", frequencies.to(torch.float32), persistent=False)
    part.rope_type = "default"
    return trained if short else None
