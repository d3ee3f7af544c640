"""Decoders that count their positions from the length of the cache, made to take a position a row.

Their modules ask a layer of the cache how much it has seen and add that to `0 … q - 1`. Here it
answers with int64 [B, q] that makes the sum right for each row; what cannot take a sum of that shape
is replaced in the copy of the module.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor

__all__ = ["per_row_positions"]


def per_row_positions(module: Any) -> bool:
    """Prepares the copy of a module, in place.

    Args:
        module: the copy that a skeleton keeps.

    Returns:
        Whether its attention is biased by distances (T5), rather than its inputs by positions.
    """
    decoder = module.get_decoder()
    table = getattr(decoder, "embed_positions", None)
    if table is not None:
        table.forward = types.MethodType(_look_up, table)
    relative = False
    for part in decoder.modules():
        if hasattr(part, "compute_bias") and hasattr(part, "_relative_position_bucket"):
            part.compute_bias = types.MethodType(_compute_bias, part)
            relative = True
    return relative


def _look_up(self: Any, *_: Any, position_ids: Tensor, **__: Any) -> Tensor:
    """Returns the embeddings [B, q, D] of positions [B, q]; those of pads mean nothing."""
    places = position_ids.clamp(min=0) + getattr(self, "offset", 0)
    return torch.nn.functional.embedding(places, self.weight)


def _compute_bias(
    self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0
) -> Tensor:
    """Returns the bias [B, H, q, K] of queries that are each at a slot of their own."""
    device = self.relative_attention_bias.weight.device if device is None else device
    query = torch.arange(query_length, device=device) + past_seen_tokens  # [q] or [B, q]
    relative = torch.arange(key_length, device=device) - query[..., None]
    bucket = self._relative_position_bucket(
        relative,
        bidirectional=not self.is_decoder,
        num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance,
    )
    values = self.relative_attention_bias(bucket)  # [q, K, H] or [B, q, K, H]
    return values.movedim(-1, -3).reshape(-1, values.shape[-1], query_length, key_length)
