"""Decoders whose attention is biased by distance (ALiBi) instead of by positions.

Their forwards build the bias from a 2-dimensional mask, and with it a causal mask of their own, which
is wrong for rows at different slots. Here the bias is part of the additive mask, and the copy of the
module is told to add none: the sums are the same. Press et al., "Train Short, Test Long", 2021,
arXiv:2108.12409.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from bridge.decoder_only import DecoderOnly, decoder_only
from bridge.layers import Call
from bridge.layers.base import Keys
from bridge.skeleton import Skeleton

__all__ = ["bloom", "falcon"]


def bloom(skeleton: Skeleton, params: dict[str, Tensor]) -> DecoderOnly:
    """Adapts Bloom (see `bridge.families.Adapter`)."""
    decoder = skeleton.module.get_decoder()
    build = decoder.build_alibi_tensor
    decoder.build_alibi_tensor = _no_bias
    for module in list(decoder.modules()):
        for name, child in module.named_children():
            if (
                type(child).__name__ == "BloomGelu"
            ):  # a function of autograd, which vmap cannot enter
                setattr(module, name, nn.GELU("tanh"))
    return decoder_only(skeleton, params, bias=_bias(build, decoder.num_heads, scale=1.0))


def falcon(skeleton: Skeleton, params: dict[str, Tensor]) -> DecoderOnly:
    """Adapts Falcon, with ALiBi or rotary (see `bridge.families.Adapter`)."""
    decoder = skeleton.module.get_decoder()
    if not decoder.use_alibi:
        return decoder_only(skeleton, params)
    build = vars(sys.modules[type(decoder).__module__])["build_alibi_tensor"]
    # Without the bias of its own the forward would rotate: by nothing, then.
    decoder.use_alibi = False
    decoder.rotary_emb = _NoRotation(decoder.config.hidden_size // decoder.num_heads)
    scale = 1 / math.sqrt(decoder.config.hidden_size // decoder.num_heads)
    return decoder_only(skeleton, params, bias=_bias(build, decoder.num_heads, scale=scale))


class _NoRotation(nn.Module):
    """A rotary embedding of angle 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines, [1, q, D]."""
        ones = hidden_states.new_ones(1, hidden_states.shape[1], self.width)
        return ones, torch.zeros_like(ones)


def _bias(build: Any, heads: int, *, scale: float) -> Any:
    """Returns `(call, keys) -> [B, H, 1 or q, K]`, by the model's own formula."""

    def bias(call: Call, keys: Keys) -> Tensor:
        # Sequences that share a row: each query counts its own.
        counted = keys.valid[:, None] if call.allowed is None else call.allowed
        table = build(counted.flatten(0, 1).to(torch.int64), heads, dtype=torch.float32)
        return table.reshape(*counted.shape[:2], heads, -1).transpose(1, 2) * scale

    return bias


def _no_bias(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    rows, count = attention_mask.shape[0], attention_mask.shape[-1]
    return torch.zeros(rows * num_heads, 1, count, dtype=dtype, device=attention_mask.device)
