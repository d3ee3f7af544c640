"""Decoder-only attention models as pure functions of parameters, tokens and cache.

The cache is `{"valid": bool [B, T], "layers": [{"k": [B, H, T, D], "v": [B, H, T, D]}, …]}`: slot
`t` of a row is index `t` of every buffer, in windowed layers too, so any row may be anywhere and
lowering `cache_position` rewinds. `valid` says which slots hold real tokens, so that a call without
a mask knows the pads.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers import Cache as HFCache
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from bridge import masks
from bridge.cache_layers import AttentionSpec, PrefillLayer, StepLayer
from bridge.checks import check_apply, check_params, check_prefill
from bridge.errors import Unsupported
from bridge.skeleton import Skeleton
from purgen.cache import Cache
from purgen.model import ModelOutput

__all__ = ["DecoderOnly", "decoder_only"]


def decoder_only(skeleton: Skeleton, params: dict[str, Tensor]) -> DecoderOnly:
    """Finds out what a decoder keeps for each layer, by one forward of two tokens.

    Args:
        skeleton: the model's structure.
        params: its parameters.

    Returns:
        Its pure functions.

    Raises:
        Unsupported: a kind of layer or of cache that is not known here.
    """
    config = skeleton.config
    if skeleton.cache_argument is None:
        raise Unsupported(f"model type {config.model_type!r}: its forward takes no cache")
    kinds, keyed = _kinds(config)
    device = params[skeleton.embedding].device
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        skeleton(params, tokens, position_ids=torch.arange(2, device=device)[None], cache=cache)
    return DecoderOnly(
        skeleton=skeleton,
        names=frozenset(params),
        specs=tuple(_spec(layer, config.model_type) for layer in cache.layers),
        kinds=kinds,
        keyed=keyed,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class DecoderOnly:
    """The functions of a model, bound to its structure.

    Attributes:
        skeleton: the forward.
        names: names of all parameters.
        specs: what each layer keeps.
        kinds: dict from the kind of attention (`masks.MASKS`) to its window or None.
        keyed: whether the forward wants one mask a kind, rather than one for all layers.
    """

    skeleton: Skeleton
    names: frozenset[str]
    specs: tuple[AttentionSpec, ...]
    kinds: dict[str, int | None]
    keyed: bool

    def init_cache(self, batch_size: int, max_length: int) -> Cache:
        """Returns an empty cache.

        Args:
            batch_size: B, at least 1.
            max_length: T, slots of a row, at least 1.

        Returns:
            A `purgen.Cache` whose `layers` are described at the top of this file.

        Raises:
            ValueError: either is below 1.
        """
        for name, value in (("batch_size", batch_size), ("max_length", max_length)):
            if value < 1:
                raise ValueError(f"init_cache: {name} must be at least 1, not {value}")
        device = self.specs[0].device
        return Cache(
            layers={
                "valid": torch.zeros(batch_size, max_length, dtype=torch.bool, device=device),
                "layers": [spec.empty(batch_size, max_length) for spec in self.specs],
            },
            cache_position=torch.zeros(batch_size, dtype=torch.int64, device=device),
        )

    def prefill(
        self, params: Any, tokens: Tensor, cache: Cache, *, mask: Tensor, inputs: Any = None
    ) -> ModelOutput:
        """Fills an empty cache from slot 0.

        Args:
            params: dict of tensors, like `model.params`.
            tokens: int64 [B, P].
            cache: an empty cache of at least P slots.
            mask: bool (or integers 0 and 1) [B, P], True at real tokens. A row may have none.
            inputs: other inputs; such a model has none.

        Returns:
            `purgen.ModelOutput` with logits [B, P, V] and the filled cache. At pads the logits are
            finite and mean nothing.

        Raises:
            ValueError: a wrong dtype, shape, device or value; the message names the argument.
        """
        if inputs:
            raise ValueError(f"prefill: this model takes no inputs, not {sorted(inputs)}")
        if not torch.compiler.is_compiling():
            check_params(params, self.names)
            check_prefill(params, tokens, cache, mask, **self._expected)
        capacity = cache.layers["valid"].shape[1]
        width = tokens.shape[1]
        slots = torch.arange(width, device=tokens.device).expand_as(tokens)
        filled = _to_bool(mask, width)
        layers = [
            PrefillLayer(entry, 0, spec.is_sliding)
            for entry, spec in zip(cache.layers["layers"], self.specs, strict=True)
        ]
        return self._run(
            params,
            tokens,
            layers,
            masks.build(self.kinds, filled, slots, layers[0].keys.dtype),
            masks.rank_at(filled, slots),
            valid=_to_bool(filled, capacity),
            cache_position=cache.cache_position + width,
        )

    def apply(
        self,
        params: Any,
        tokens: Tensor,
        cache: Cache,
        *,
        cache_position: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> ModelOutput:
        """Feeds `q` tokens to each row, at a slot of its own.

        Args:
            params: dict of tensors, like `model.params`.
            tokens: int64 [B, q].
            cache: the cache; it is not changed.
            cache_position: int64 [B], the slot of the first token; left out, the cache's own.
            attention_mask: bool (or integers 0 and 1) [B, up to T], True at slots that hold real
                tokens, these among them; left out, what the cache knows, and these are real.
            position_ids: int64 [B, q]; left out, the number of real tokens before each.

        Returns:
            `purgen.ModelOutput` with logits [B, q, V] and the cache, `q` slots further.

        Raises:
            ValueError: a wrong dtype, shape, device or value, or no room for the tokens; the
                message names the argument. Compiled, the last is an error of the device.
        """
        position = cache.cache_position if cache_position is None else cache_position
        if not torch.compiler.is_compiling():
            check_params(params, self.names)
            check_apply(
                params, tokens, cache, position, attention_mask, position_ids, **self._expected
            )
        capacity = cache.layers["valid"].shape[1]
        width = tokens.shape[1]
        given = None if attention_mask is None else _to_bool(attention_mask, capacity)
        valid = masks.real_slots(cache.layers["valid"], position, width, given)
        slots = position[:, None] + torch.arange(width, device=tokens.device)
        layers = [
            StepLayer(entry, position, spec.is_sliding)
            for entry, spec in zip(cache.layers["layers"], self.specs, strict=True)
        ]
        return self._run(
            params,
            tokens,
            layers,
            masks.build(self.kinds, valid, slots, layers[0].keys.dtype),
            masks.rank_at(valid, slots) if position_ids is None else position_ids,
            valid=valid,
            cache_position=position + width,
        )

    @property
    def _expected(self) -> dict[str, Any]:
        return {"reference": self.skeleton.embedding, "ids": self.skeleton.num_ids}

    def _run(
        self,
        params: Any,
        tokens: Tensor,
        layers: list[Any],
        mask_of: dict[str, Tensor],
        position_ids: Tensor,
        *,
        valid: Tensor,
        cache_position: Tensor,
    ) -> ModelOutput:
        """Runs the forward and reads the new cache out of the layers."""
        output = self.skeleton(
            params,
            tokens,
            position_ids=position_ids,
            attention_mask=mask_of if self.keyed else next(iter(mask_of.values())),
            cache=HFCache(layers=layers),
        )
        entries = [layer.entry() for layer in layers]
        return ModelOutput(
            logits=output.logits.contiguous(),
            cache=Cache(layers={"valid": valid, "layers": entries}, cache_position=cache_position),
            hidden_states=output.hidden_states[-1].contiguous(),
        )


def _to_bool(mask: Tensor, width: int) -> Tensor:
    """Returns a mask of 0 and 1 as bool, widened to `width` with False."""
    return torch.nn.functional.pad(mask != 0, (0, width - mask.shape[1]))


def _kinds(config: Any) -> tuple[dict[str, int | None], bool]:
    """Returns the kinds of attention with their windows, and whether masks are keyed by kind."""
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        kind = "full_attention" if window is None else "sliding_attention"
        return {kind: window}, False
    for kind in layer_types:
        if kind not in masks.MASKS:
            raise Unsupported(
                f"model type {config.model_type!r}: layers of type {kind!r} are not supported; "
                f"known are {sorted(masks.MASKS)}"
            )
    windows = {"full_attention": None, "sliding_attention": window}
    return {kind: windows[kind] for kind in dict.fromkeys(layer_types)}, True


def _spec(layer: Any, model_type: str) -> AttentionSpec:
    """Reads off what a layer of a transformers cache holds after two tokens."""
    known = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
    if not known or layer.keys is None or layer.keys.numel() == 0:
        raise Unsupported(
            f"model type {model_type!r}: cache layers of class {type(layer).__name__} are not "
            "supported"
        )
    return AttentionSpec(
        key=(layer.keys.shape[1], layer.keys.shape[3]),
        value=(layer.values.shape[1], layer.values.shape[3]),
        dtype=layer.keys.dtype,
        device=layer.keys.device,
        is_sliding=type(layer) is DynamicSlidingWindowLayer,
    )
