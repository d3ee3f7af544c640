"""The caches of encoder-decoder models, crossing over to transformers and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache as HFCache
from transformers import EncoderDecoderCache

from bridge.layers.cross import CrossLayer, CrossSpec
from purgen.cache import Cache
from purgen.pytree import replace

__all__ = ["EncoderDecoderView", "cross_entries"]


class EncoderDecoderView(EncoderDecoderCache):
    """What `as_hf_cache` returns for an encoder-decoder model whose encoder has been read.

    The module takes its encoder's keys and values from here; it wants `encoder_outputs` besides (of any
    numbers: [B, S, H]), and `attention_mask`, which is about the encoder's text.

    Attributes:
        self_attention_cache: `bridge.as_hf_cache.HFCacheView` of the decoder.
        cross_attention_cache: the encoder's keys and values, which no call changes.
    """

    def __init__(self, view: Any, cache: Cache) -> None:
        self._before = cache
        cross = [CrossLayer(entry) for entry in cache.layers["cross"]]
        super().__init__(view, HFCache(layers=cross))

    @property
    def value(self) -> Cache:
        """The `purgen.Cache` after the last call; later calls do not change it."""
        after: Cache = self.self_attention_cache.value
        cross = [layer.entry() for layer in self.cross_attention_cache.layers]
        kept = {**self._before.layers, **after.layers, "cross": cross}
        return replace(after, layers=kept)

    @property
    def attention_mask(self) -> Tensor:
        """int64 [B, slots fed], 1 at real tokens of the decoder."""
        mask: Tensor = self.self_attention_cache.attention_mask
        return mask


def cross_entries(
    cache: HFCache, specs: tuple[CrossSpec, ...], mask: Tensor | None
) -> dict[str, Any]:
    """Returns what a transformers cache holds of an encoder, as a part of `purgen.Cache.layers`.

    Args:
        cache: an `EncoderDecoderCache`'s `cross_attention_cache`.
        specs: what the model keeps, one a layer.
        mask: bool, or integers 0 and 1, [B, S], the encoder's real tokens; None: all.

    Raises:
        ValueError: it is another model's, or the mask does not fit.
    """
    entries = []
    for index, spec in enumerate(specs):
        layer = cache.layers[index] if index < len(cache.layers) else None
        keys = getattr(layer, "keys", None)
        count = 0 if layer is None or keys is None else int(layer.get_seq_length())
        if count == 0:
            raise ValueError(
                f"from_hf_cache: layer {index} of hf_cache holds nothing of an encoder"
            )
        assert layer is not None
        entry = {"k": layer.keys[:, :, :count], "v": layer.values[:, :, :count]}
        shape = tuple((held.shape[1], held.shape[3]) for held in entry.values())
        if shape != (spec.key, spec.value):
            raise ValueError(
                f"from_hf_cache: layer {index} of hf_cache keeps {shape} of its encoder, the model "
                f"{(spec.key, spec.value)}: a cache of another model"
            )
        entries.append({name: held.to(spec.dtype).clone() for name, held in entry.items()})
    rows, _, count, _ = entries[0]["k"].shape
    if mask is None:
        mask = torch.ones(rows, count, dtype=torch.bool, device=specs[0].device)
    if mask.is_floating_point() or tuple(mask.shape) != (rows, count):
        raise ValueError(
            f"from_hf_cache: encoder_attention_mask must be bool, or integers 0 and 1, [B, S] = "
            f"[{rows}, {count}], not {str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}"
        )
    return {"cross": entries, "encoder_valid": mask != 0}
