"""Which kind of cache a model keeps: the `cache` of `bridge.load`."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from bridge.layers import AttentionSpec, HybridSpec, Layout
from bridge.layers.quantized import QuantizedSpec
from bridge.layers.ring import RingSpec

__all__ = ["CacheKind", "quantized_cache", "ring_cache", "with_kind"]


class CacheKind(Protocol):
    """Says what a layer with attention keeps."""

    def __call__(self, attention: AttentionSpec) -> Any:
        """Returns the `LayerSpec` in place of a layer's full attention."""
        ...


def ring_cache(*, slack: int = 16) -> CacheKind:
    """Keeps of layers with a sliding window what lies in it, so that memory does not grow.

    Other layers keep everything. Lowering the position rewinds by up to `slack` slots; further is
    refused.

    Args:
        slack: slots beyond the window, at least 0. A call that feeds more than `slack + 1` tokens
            copies the ring.

    Returns:
        The kind.

    Raises:
        ValueError: `slack` is below 0.

    Example:
        >>> import bridge, transformers
        >>> config = transformers.MistralConfig(
        ...     vocab_size=64,
        ...     hidden_size=16,
        ...     intermediate_size=32,
        ...     num_hidden_layers=2,
        ...     num_attention_heads=2,
        ...     num_key_value_heads=2,
        ...     sliding_window=8,
        ... )
        >>> module = transformers.MistralForCausalLM(config)
        >>> model = bridge.load(module, cache=bridge.ring_cache(slack=4))
        >>> model.init_cache(1, 1000).layers["layers"][0]["k"].shape
        torch.Size([1, 2, 12, 8])
        >>> model.layout.bytes_per_token(), model.layout.bytes_per_row(1000)
        (0, 3072)
    """
    if not isinstance(slack, int) or slack < 0:
        raise ValueError(f"ring_cache: slack must be an int of at least 0, not {slack!r}")

    def kind(attention: AttentionSpec) -> Any:
        if attention.window is None or attention.kind != "sliding_attention":
            return attention
        return RingSpec(attention=attention, slack=slack)

    return kind


def quantized_cache(*, bits: int = 8) -> CacheKind:
    """Keeps keys and values in 8 bits: about a quarter of float32, half of bfloat16.

    Logits are near those of the full cache, not equal. Everything that a cache can do otherwise is
    exact on what it holds: reordered, repeated, rewound or fed in blocks, it gives the same tokens.

    Args:
        bits: 8.

    Returns:
        The kind.

    Raises:
        ValueError: another number of bits.

    Example:
        >>> import bridge
        >>> kind = bridge.quantized_cache()  # bridge.load(…, cache=kind)
    """
    if bits != 8:
        raise ValueError(f"quantized_cache: bits must be 8, not {bits!r}")
    return lambda attention: QuantizedSpec(attention=attention)


def with_kind(layout: Layout, kind: CacheKind | None) -> Layout:
    """Returns a layout whose layers with attention keep what `kind` says.

    Args:
        layout: of a model whose layers keep everything.
        kind: None leaves it so.
    """
    if kind is None:
        return layout

    def changed(spec: Any) -> Any:
        if isinstance(spec, HybridSpec):
            return dataclasses.replace(spec, attention=kind(spec.attention))
        return kind(spec) if isinstance(spec, AttentionSpec) else spec

    return dataclasses.replace(layout, specs=tuple(changed(spec) for spec in layout.specs))
