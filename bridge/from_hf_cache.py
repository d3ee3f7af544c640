"""A transformers cache in the midst of a generation, taken over as a `purgen.Cache`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache as HFCache
from transformers import EncoderDecoderCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin, StaticLayer

from bridge.as_hf_cache import CountedStates, KeysAndValues
from bridge.cross_view import cross_entries
from bridge.decoder_only import to_bool
from bridge.encoder_decoder import CrossLayout
from bridge.errors import Unsupported
from bridge.layers import AttentionSpec, HybridSpec, Layout, RecurrentSpec, SharedSpec, states_of
from purgen.cache import Cache
from purgen.model import Model

__all__ = ["from_hf_cache"]


def from_hf_cache(
    model: Model,
    hf_cache: Any,
    *,
    attention_mask: Tensor | None = None,
    max_length: int | None = None,
    rope_delta: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
) -> Cache:
    """Copies what a transformers cache holds into a cache of a model, which goes on from there.

    Args:
        model: `bridge.load` of the module that filled the cache.
        hf_cache: a `DynamicCache`, a `StaticCache`, an `EncoderDecoderCache` of two such, or what
            `as_hf_cache` made. It is only read. A layer with a window may have dropped what no later
            token can see: the new cache is then not to be rewound to where that was seen, and
            `layers["floor"]`, int64 [B], is the lowest position that it can be.
        attention_mask: bool, or integers 0 and 1, [B, slots fed]: what the module was told of pads.
            None says that all it read is real. States without attention count no tokens: a model of
            them alone needs it.
        max_length: T, the slots of the new cache; None: twice what was fed.
        rope_delta: int64 [B] or [B, 1], how far the positions of each row run ahead of its tokens:
            `module.model.rope_deltas` of a model whose images move them (Qwen2-VL), which its cache
            does not know. Only for those, and needed there.
        encoder_attention_mask: bool, or integers 0 and 1, [B, S], the real tokens that an encoder has
            read; None: all. Only for a model with an encoder.

    Returns:
        A `purgen.Cache` of that model.

    Raises:
        ValueError: a wrong mask, too few slots, or the cache of another model; the message names it.
        Unsupported: a kind of cache or of layer that cannot be taken over.

    Example:
        >>> import bridge, torch, transformers
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=64,
        ...     hidden_size=16,
        ...     intermediate_size=32,
        ...     num_hidden_layers=2,
        ...     num_attention_heads=2,
        ... )
        >>> module = transformers.LlamaForCausalLM(config).eval()
        >>> model = bridge.load(module)
        >>> out = module.generate(
        ...     torch.tensor([[5, 6, 7]]),
        ...     attention_mask=torch.ones(1, 3),
        ...     max_new_tokens=4,
        ...     do_sample=False,
        ...     return_dict_in_generate=True,
        ... )
        >>> held = getattr(out, "cache", None) or out.past_key_values
        >>> cache = bridge.from_hf_cache(model, held)
        >>> cache.cache_position  # the newest token is not in it yet
        tensor([6])
        >>> step = model.apply(model.params, out.sequences[:, -1:], cache)
        >>> step.logits.shape, step.cache.cache_position
        (torch.Size([1, 1, 64]), tensor([7]))
    """
    if not isinstance(hf_cache, HFCache):
        raise Unsupported(
            "from_hf_cache: hf_cache must be a DynamicCache, a StaticCache or an EncoderDecoderCache, "
            f"not {type(hf_cache).__name__}"
        )
    layout = model.init_cache(1, 1).layout
    if not isinstance(layout, Layout):
        raise Unsupported("from_hf_cache: model must be from bridge.load")
    encoder: dict[str, Any] = {}
    if isinstance(layout, CrossLayout) != isinstance(hf_cache, EncoderDecoderCache):
        raise ValueError(
            f"from_hf_cache: hf_cache is a {type(hf_cache).__name__}: a model with an encoder, and no "
            "other, has an EncoderDecoderCache"
        )
    if isinstance(layout, CrossLayout):
        encoder = cross_entries(
            hf_cache.cross_attention_cache, layout.cross, encoder_attention_mask
        )
        hf_cache = hf_cache.self_attention_cache
    elif encoder_attention_mask is not None:
        raise ValueError("from_hf_cache: encoder_attention_mask is given, and there is no encoder")
    layers = hf_cache.layers
    if len(layers) != len(layout.specs):
        raise ValueError(
            f"from_hf_cache: hf_cache has {len(layers)} layers that were written, the model "
            f"{len(layout.specs)}"
        )
    counts = {int(layer.get_seq_length()) for layer in layers if _counts(layer)}
    if len(counts) > 1:
        raise ValueError(
            f"from_hf_cache: layers of hf_cache have seen {sorted(counts)} slots; they must agree"
        )
    rows = _rows(layers)
    if not counts and attention_mask is None:
        raise ValueError(
            "from_hf_cache: attention_mask is needed: the layers of this model count no tokens"
        )
    fed = counts.pop() if counts else int(attention_mask.shape[1])  # type: ignore[union-attr]
    if fed == 0:
        raise ValueError("from_hf_cache: hf_cache is empty; begin with model.init_cache")
    max_length = 2 * fed if max_length is None else max_length
    if max_length < fed:
        raise ValueError(
            f"from_hf_cache: max_length is {max_length}, but hf_cache has been fed {fed} slots"
        )
    mask = _checked_mask(attention_mask, rows, fed, layout.device)
    empty = model.init_cache(rows, max_length)
    entries = [
        _entry(index, spec, layer, blank, fed)
        for index, (spec, layer, blank) in enumerate(
            zip(layout.specs, layers, empty.layers["layers"], strict=True)
        )
    ]
    position = torch.full_like(empty.cache_position, fed)
    floor = max(_floor(spec, layer, fed) for spec, layer in zip(layout.specs, layers, strict=True))
    content = {**empty.layers, **encoder, "valid": to_bool(mask, max_length), "layers": entries}
    if "fed" in content:
        content["fed"] = position.clone()
    if floor > 0:
        content["floor"] = torch.full_like(position, floor)
    if rope_delta is not None or "rope_delta" in content:
        content["rope_delta"] = _checked_delta(rope_delta, "rope_delta" in content, position)
    return Cache(layers=content, cache_position=position, layout=layout)


def _counts(layer: Any) -> bool:
    """Tells whether a layer knows how many slots it was fed: one that has keys, or counts."""
    return isinstance(layer, CountedStates) or _has_keys(layer)


def _has_keys(layer: Any) -> bool:
    keys = getattr(layer, "keys", None)
    return keys is not None and keys.numel() > 0


def _rows(layers: list[Any]) -> int:
    for layer in layers:
        if _has_keys(layer):
            return int(layer.keys.shape[0])
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for state in states_of(layer).values():
                return int(state.shape[0])
    raise ValueError("from_hf_cache: hf_cache is empty; begin with model.init_cache")


def _checked_mask(mask: Tensor | None, rows: int, fed: int, device: torch.device) -> Tensor:
    if mask is None:
        return torch.ones(rows, fed, dtype=torch.bool, device=device)
    if mask.is_floating_point() or mask.shape != (rows, fed):
        raise ValueError(
            f"from_hf_cache: attention_mask must be bool, or integers 0 and 1, [B, slots fed] = "
            f"[{rows}, {fed}], not {str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}"
        )
    real = mask != 0
    holes = ((real.cumsum(dim=1) > 0) & ~real).any(dim=1).nonzero()[:, 0].tolist()
    if holes:
        raise ValueError(
            f"from_hf_cache: attention_mask of row {holes[0]} has a pad after a real token: "
            f"{mask[holes[0]].int().tolist()}; transformers gives the tokens behind it positions "
            "that this model does not"
        )
    return real


def _checked_delta(delta: Tensor | None, wanted: bool, position: Tensor) -> Tensor:
    if not wanted:
        raise ValueError("from_hf_cache: rope_delta is given, but images move no positions here")
    if delta is None:
        raise ValueError(
            "from_hf_cache: rope_delta is needed: images move the positions of this model, and its "
            "cache does not know by how much; give module.model.rope_deltas"
        )
    if delta.dtype != torch.int64 or delta.numel() != position.numel():
        raise ValueError(
            f"from_hf_cache: rope_delta must be int64 [B] = {list(position.shape)}, not "
            f"{str(delta.dtype).removeprefix('torch.')} {list(delta.shape)}"
        )
    return delta.reshape(-1).to(position.device).clone()


def _entry(index: int, spec: Any, layer: Any, blank: dict[str, Tensor], fed: int) -> dict[str, Any]:
    """Returns a layer's part of the cache: `blank` with what the layer holds."""
    entry = dict(blank)
    kind = type(spec)
    attention = spec.attention
    if kind not in (SharedSpec, AttentionSpec, RecurrentSpec, HybridSpec) or not isinstance(
        attention, AttentionSpec | None
    ):
        raise Unsupported(
            f"from_hf_cache: layer {index} of the model is a {kind.__name__}; load it without cache=, "
            "so that it keeps everything"
        )
    if attention is not None:
        keys, values = _held(index, layer, fed)
        window = attention.window
        needed = fed if window is None else min(fed, window - 1)
        if keys.shape[2] < needed:
            raise ValueError(
                f"from_hf_cache: layer {index} of hf_cache holds {keys.shape[2]} slots, but the model "
                f"still sees {needed}: they are gone"
            )
        for name, held in (("k", keys), ("v", values)):
            begin = fed - held.shape[2]
            buffer = blank[name]
            if (held.shape[1], held.shape[3]) != (buffer.shape[1], buffer.shape[3]):
                raise ValueError(
                    f"from_hf_cache: layer {index} of hf_cache is {list(held.shape)}, the model's is "
                    f"{list(buffer.shape)}: a cache of another model"
                )
            entry[name] = torch.slice_scatter(
                buffer, held.to(buffer), dim=2, start=begin, end=fed
            ).contiguous()
    if kind in (RecurrentSpec, HybridSpec):
        found = states_of(layer) if isinstance(layer, LinearAttentionCacheLayerMixin) else {}
        names = [name for name in blank if name not in ("k", "v")]
        for name in names:
            if name not in found or found[name].shape[1:] != blank[name].shape[1:]:
                raise ValueError(
                    f"from_hf_cache: layer {index} of hf_cache has no state {name!r} of shape "
                    f"{list(blank[name].shape[1:])}: a cache of another model"
                )
            entry[name] = found[name].to(blank[name]).clone()
    return entry


def _floor(spec: Any, layer: Any, fed: int) -> int:
    """Returns the lowest position whose token sees nothing that a layer has dropped."""
    if spec.attention is None or spec.attention.window is None:
        return 0
    dropped = fed - min(fed, layer.keys.shape[2])
    return dropped + spec.attention.window - 1 if dropped else 0


def _held(index: int, layer: Any, fed: int) -> tuple[Tensor, Tensor]:
    """Returns the keys and values that a layer holds, the newest last."""
    if not _has_keys(layer):
        raise ValueError(f"from_hf_cache: layer {index} of hf_cache holds nothing: another model's")
    keys, values = layer.keys, layer.values
    if hasattr(layer, "_quantize") or hasattr(layer, "indexer_keys"):
        raise Unsupported(f"from_hf_cache: layer {index} of hf_cache is a {type(layer).__name__}")
    if isinstance(layer, StaticLayer | KeysAndValues):
        # An index a slot, until a window is full; from then on the newest is last.
        count = min(fed, keys.shape[2])
        return keys[:, :, :count], values[:, :, :count]
    if isinstance(layer, DynamicLayer):
        return keys, values
    raise Unsupported(f"from_hf_cache: layer {index} of hf_cache is a {type(layer).__name__}")
