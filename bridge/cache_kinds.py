"""Which kind of cache a model keeps: the `cache` of `bridge.load`."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from torch import Tensor

from bridge.layers import AttentionSpec, HybridSpec, Layout
from bridge.layers.quantized import QuantizedSpec
from bridge.layers.ring import RingSpec
from bridge.layers.sinks import SinkSpec
from bridge.rotary import rotation_of
from bridge.skeleton import Skeleton

__all__ = ["CacheKind", "attention_sinks", "quantized_cache", "ring_cache", "with_kind"]


class CacheKind(Protocol):
    """Says what a layer with attention keeps."""

    def __call__(
        self, attention: AttentionSpec, skeleton: Skeleton, params: dict[str, Tensor]
    ) -> Any:
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

    def kind(attention: AttentionSpec, skeleton: Any, params: Any) -> Any:
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

    def kind(attention: AttentionSpec, skeleton: Any, params: Any) -> Any:
        return QuantizedSpec(attention=attention)

    return kind


def attention_sinks(*, sinks: int = 4, recent: int = 1020) -> CacheKind:
    """Keeps the first tokens and the newest: a stream without end in bounded memory (StreamingLLM).

    Layers with a window of their own keep everything. A prompt is read at once up to `sinks + recent`
    tokens, from there on token by token. The cache cannot be rewound. `cache.seen(layer)` tells how
    many slots were read, `cache.held(layer)` how many tokens are still there.

    Args:
        sinks: first tokens of a row that stay, at least 1.
        recent: newest tokens besides, at least 1.

    Returns:
        The kind. `bridge.load` raises `Unsupported` for a model whose positions are not rotations.

    Raises:
        ValueError: a number below 1.

    Reference:
        Xiao et al., 2023, arXiv:2309.17453.

    Example:
        >>> import bridge
        >>> kind = bridge.attention_sinks(sinks=4, recent=252)  # bridge.load(…, cache=kind)
    """
    for name, value in (("sinks", sinks), ("recent", recent)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"attention_sinks: {name} must be an int of at least 1, not {value!r}")

    def kind(attention: AttentionSpec, skeleton: Skeleton, params: dict[str, Tensor]) -> Any:
        if attention.window is not None:
            return attention
        rotate = rotation_of(skeleton, params, attention.kind)
        return SinkSpec(attention=attention, sinks=sinks, recent=recent, rotate=rotate)

    return kind


def with_kind(
    layout: Layout, kind: CacheKind, skeleton: Skeleton, params: dict[str, Tensor]
) -> Layout:
    """Returns a layout whose layers with attention keep what `kind` says.

    Args:
        layout: of a model whose layers keep everything.
        kind: what they are to keep.
        skeleton: the model's structure.
        params: its parameters.
    """

    def changed(spec: Any) -> Any:
        if isinstance(spec, HybridSpec):
            return dataclasses.replace(spec, attention=kind(spec.attention, skeleton, params))
        return kind(spec, skeleton, params) if isinstance(spec, AttentionSpec) else spec

    return dataclasses.replace(layout, specs=tuple(changed(spec) for spec in layout.specs))
