"""Attention of few queries over many keys, without a copy of the keys for each group of heads.

Where several heads share keys and values, transformers repeats these in compiled code: with 9 heads
over 3, each step would write and read three caches. Here the heads of a group are queries of one head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["GROUPED", "grouped_attention", "shares_keys"]

GROUPED = "purgen_grouped"  # the name by which modules ask for it


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attends like transformers' "sdpa", a single query a head without repeated keys.

    Args:
        module: the attention layer.
        query: floating [B, H, q, D].
        key: floating [B, H / G, K, D], one for G heads.
        value: floating [B, H / G, K, E].
        attention_mask: bool or floating [B, 1 or H, q, K], or None.
        **options: what transformers hands to its attention functions.

    Returns:
        `(floating [B, q, H, E], None)`.

    Example:
        >>> import torch
        >>> query, key = torch.randn(2, 6, 1, 4), torch.randn(2, 3, 5, 4)
        >>> mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
        >>> layer = torch.nn.Module()
        >>> layer.num_key_value_groups = 2
        >>> out, _ = grouped_attention(layer, query, key, key, mask)
        >>> repeated = key.repeat_interleave(2, dim=1)
        >>> expected = torch.nn.functional.scaled_dot_product_attention(query, repeated, repeated)
        >>> torch.allclose(out, expected.transpose(1, 2), atol=1e-6)
        True
    """
    batch, heads, width, _ = query.shape
    shared = key.shape[1]
    plain = options.get("softcap") is None and options.get("position_bias") is None
    if width > 1 or heads == shared or attention_mask is None or not plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    mask = attention_mask
    if mask.shape[1] > 1:
        mask = mask.reshape(batch, shared, heads // shared, -1)
    out = nn.functional.scaled_dot_product_attention(
        query.reshape(batch, shared, heads // shared, -1),
        key,
        value,
        attn_mask=mask,
        scale=options.get("scaling"),
    )
    return out.reshape(batch, 1, heads, -1), None


def shares_keys(module: nn.Module) -> bool:
    """Tells whether some heads of a module share their keys with others."""
    return any(getattr(part, "num_key_value_groups", 1) > 1 for part in module.modules())


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
