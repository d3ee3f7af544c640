"""What the layers of a model keep, read off a cache of transformers that a forward has written to."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from bridge import masks
from bridge.errors import Unsupported
from bridge.layers import (
    AttentionSpec,
    HybridSpec,
    LayerSpec,
    RecurrentSpec,
    SharedSpec,
    states_of,
)

__all__ = ["specs_of"]


def specs_of(cache: Any, config: Any) -> tuple[LayerSpec, ...]:
    """Reads off what the layers of a transformers cache hold after two tokens.

    Args:
        cache: a `transformers.DynamicCache` that a forward of one row has written to.
        config: the configuration of the decoder.

    Returns:
        A spec a layer.

    Raises:
        Unsupported: a kind of layer that is not known here.
    """
    names = getattr(config, "layer_types", None) or [None] * len(cache.layers)
    return tuple(
        _spec(layer, name, config) for layer, name in zip(cache.layers, names, strict=False)
    )


def _spec(layer: Any, name: str | None, config: Any) -> LayerSpec:
    kind = type(layer)
    if kind.__name__ == "DummyLayer" or (
        kind in _ATTENTION and (layer.keys is None or layer.keys.numel() == 0)
    ):
        return SharedSpec(kind=str(name) if name in masks.MASKS else "full_attention")
    if kind in _ATTENTION:
        return _attention_spec(layer, name, config)
    if issubclass(kind, LinearAttentionCacheLayerMixin):
        states = states_of(layer)
        recurrent = RecurrentSpec(
            states=tuple(
                (key, tuple(state.shape[1:]), state.dtype) for key, state in states.items()
            ),
            device=next(iter(states.values())).device if states else torch.device("cpu"),
            kind="conv" if name == "conv" else "linear_attention",
        )
        if not states:
            raise Unsupported(
                f"model type {config.model_type!r}: a recurrent layer that keeps its state elsewhere"
            )
        if not hasattr(layer, "keys"):
            return recurrent
        return HybridSpec(attention=_attention_spec(layer, None, config), recurrent=recurrent)
    raise Unsupported(
        f"model type {config.model_type!r}: cache layers of class {kind.__name__} are not supported"
    )


def _attention_spec(layer: Any, name: str | None, config: Any) -> AttentionSpec:
    window = getattr(layer, "sliding_window", None)
    if name not in masks.MASKS:
        name = "full_attention" if window is None else "sliding_attention"
        if window is not None and getattr(config, "sliding_window", None) is None:
            name = "chunked_attention"
    return AttentionSpec(
        key=(layer.keys.shape[1], layer.keys.shape[3]),
        value=(layer.values.shape[1], layer.values.shape[3]),
        dtype=layer.keys.dtype,
        device=layer.keys.device,
        kind=str(name),
        window=window,
    )


_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)
