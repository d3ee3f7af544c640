"""Decoder-only models as pure functions of parameters, tokens and cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers import Cache as HFCache
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from bridge import masks
from bridge.checks import check_apply, check_params, check_prefill
from bridge.errors import Unsupported
from bridge.layers import AttentionSpec, Call, Layout
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
    window = getattr(config, "sliding_window", None)
    names = config.layer_types if keyed else [next(iter(kinds))] * len(cache.layers)
    specs = tuple(
        _spec(layer, kind, window, config.model_type)
        for layer, kind in zip(cache.layers, names, strict=True)
    )
    return DecoderOnly(
        skeleton=skeleton,
        names=frozenset(params),
        layout=Layout(specs=specs, device=device),
        kinds=kinds,
        keyed=keyed,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class DecoderOnly:
    """The functions of a model, bound to its structure.

    Attributes:
        skeleton: the forward.
        names: names of all parameters.
        layout: what its caches look like.
        kinds: dict from the kind of mask (`masks.MASKS`) to its reach or None.
        keyed: whether the forward wants one mask a kind, rather than one for all layers.
    """

    skeleton: Skeleton
    names: frozenset[str]
    layout: Layout
    kinds: dict[str, int | None]
    keyed: bool

    def init_cache(self, batch_size: int, max_length: int) -> Cache:
        """Returns an empty cache of `max_length` slots a row (`Layout.empty`)."""
        return self.layout.empty(batch_size, max_length)

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
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        call = Call(
            position=torch.zeros_like(cache.cache_position),
            slots=slots,
            valid=_to_bool(mask, self.layout.capacity(cache)),
            first=True,
        )
        return self._run(params, tokens, cache, call, masks.rank_at(call.valid, slots))

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
            cache_position: int64 [B], the slot of the first token, or 0-d, one for all rows; left
                out, the cache's own.
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
        capacity, width = self.layout.capacity(cache), tokens.shape[1]
        given = None if attention_mask is None else _to_bool(attention_mask, capacity)
        slots = position[..., None] + torch.arange(width, device=tokens.device)
        call = Call(
            position=position,
            slots=slots.expand_as(tokens),
            valid=masks.real_slots(cache.layers["valid"], position, width, given),
            first=False,
        )
        if position_ids is None:
            position_ids = masks.rank_at(call.valid, call.slots)
        return self._run(params, tokens, cache, call, position_ids)

    @property
    def _expected(self) -> dict[str, Any]:
        return {"reference": self.skeleton.embedding, "ids": self.skeleton.num_ids}

    def _run(
        self, params: Any, tokens: Tensor, cache: Cache, call: Call, position_ids: Tensor
    ) -> ModelOutput:
        """Runs the forward and reads the new cache out of the layers."""
        entries, specs = cache.layers["layers"], self.layout.specs
        layers = [spec.layer(entry, call) for spec, entry in zip(specs, entries, strict=True)]
        output = self.skeleton(
            params,
            tokens,
            position_ids=position_ids,
            attention_mask=self._masks(params, entries, call),
            cache=HFCache(layers=layers),
        )
        return ModelOutput(
            logits=output.logits.contiguous(),
            cache=Cache(
                layers={"valid": call.valid, "layers": [layer.entry() for layer in layers]},
                cache_position=(call.slots[:, -1] + 1).contiguous(),
                layout=self.layout,
            ),
            hidden_states=output.hidden_states[-1].contiguous(),
        )

    def _masks(self, params: Any, entries: list[Any], call: Call) -> Any:
        """Returns the mask of each kind of layer, or the only one."""
        dtype = params[self.skeleton.embedding].dtype
        mask_of = {}
        for spec, entry in zip(self.layout.specs, entries, strict=True):
            if spec.kind not in mask_of:
                allowed = masks.MASKS[spec.kind](
                    call, spec.keys(entry, call), self.kinds[spec.kind]
                )
                mask_of[spec.kind] = masks.additive(allowed, dtype)
        return mask_of if self.keyed else next(iter(mask_of.values()))


def _to_bool(mask: Tensor, width: int) -> Tensor:
    """Returns a mask of 0 and 1 as bool, widened to `width` with False."""
    return torch.nn.functional.pad(mask != 0, (0, width - mask.shape[1]))


def _kinds(config: Any) -> tuple[dict[str, int | None], bool]:
    """Returns the kinds of attention with their reach, and whether masks are keyed by kind."""
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
    reaches = {"full_attention": None, "sliding_attention": window}
    return {kind: reaches[kind] for kind in dict.fromkeys(layer_types)}, True


def _spec(layer: Any, kind: str, window: int | None, model_type: str) -> AttentionSpec:
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
        kind=kind,
        window=window if type(layer) is DynamicSlidingWindowLayer else None,
    )
