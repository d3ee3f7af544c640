"""Decoder-only models as pure functions of parameters, tokens and cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import Cache as HFCache
from transformers import DynamicCache

from bridge import masks
from bridge.checks import (
    check_above_floor,
    check_appended,
    check_apply,
    check_layout,
    check_left_padded,
    check_not_rewound,
    check_packable,
    check_params,
    check_prefill,
)
from bridge.errors import Unsupported
from bridge.layers import Call, Layout
from bridge.layers.base import Keys
from bridge.skeleton import Skeleton
from bridge.specs import specs_of
from purgen.cache import Cache
from purgen.model import ModelOutput

__all__ = ["DecoderOnly", "decoder_only", "to_bool"]

Bias = Callable[[Call, Keys], Tensor]


def decoder_only(
    skeleton: Skeleton, params: dict[str, Tensor], *, bias: Bias | None = None
) -> DecoderOnly:
    """Finds out what a decoder keeps for each layer, by one forward of two tokens.

    Args:
        skeleton: the model's structure.
        params: its parameters.
        bias: what the attention adds to its scores besides the mask, where its forward leaves that
            to the mask.

    Returns:
        Its pure functions.

    Raises:
        Unsupported: a kind of layer or of cache that is not known here.
    """
    config = skeleton.config
    if skeleton.cache_argument is None:
        raise Unsupported(f"model type {config.model_type!r}: its forward takes no cache")
    device = params[skeleton.embedding].device
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        skeleton(params, tokens, position_ids=torch.arange(2, device=device)[None], cache=cache)
    specs = specs_of(cache, config)
    functions = DecoderOnly(
        skeleton=skeleton,
        names=frozenset(params),
        layout=Layout(specs=specs, device=device),
        keyed=getattr(config, "layer_types", None) is not None
        and any(spec.attention is not None for spec in specs),
        bias=bias,
    )
    if functions.layout.slot_addressed or _continues(functions, params):
        return functions
    return dataclasses.replace(functions, in_blocks=False)


@dataclasses.dataclass(frozen=True, eq=False)
class DecoderOnly:
    """The functions of a model, bound to its structure.

    Attributes:
        skeleton: the forward.
        names: names of all parameters.
        layout: what its caches look like.
        keyed: whether the forward wants one mask a kind, rather than one for all layers.
        bias: `(call, keys) -> floating [B, H, 1 or q, K]`, added to the masks, or None.
        in_blocks: whether a call may feed several tokens to states that hold some already; if not,
            they are fed one by one.
    """

    skeleton: Skeleton
    names: frozenset[str]
    layout: Layout
    keyed: bool
    bias: Bias | None = None
    in_blocks: bool = True

    @property
    def max_length(self) -> int | None:
        """The longest sequence that the configuration speaks of, or None."""
        names = ("max_position_embeddings", "n_positions")
        found = (getattr(self.skeleton.config, name, None) for name in names)
        return next((length for length in found if length), None)

    def init_cache(self, batch_size: int, max_length: int) -> Cache:
        """Returns an empty cache of `max_length` slots a row (`Layout.empty`)."""
        return self.layout.empty(batch_size, max_length)

    def prefill(
        self,
        params: Any,
        tokens: Tensor,
        cache: Cache,
        *,
        mask: Tensor,
        inputs: Any = None,
        logits: bool = True,
    ) -> ModelOutput:
        """Fills an empty cache from slot 0.

        Args:
            params: dict of tensors, like `model.params`.
            tokens: int64 [B, P].
            cache: an empty cache of at least P slots.
            mask: bool (or integers 0 and 1) [B, P], True at real tokens. A row may have none.
            inputs: other inputs; such a model has none.
            logits: whether those of all positions are wanted; if not, [B, 1, V] or [B, P, V] come back.

        Returns:
            `purgen.ModelOutput` with logits [B, P, V] and the filled cache. At pads the logits are
            finite and mean nothing.

        Raises:
            ValueError: a wrong dtype, shape, device or value; the message names the argument.
        """
        if inputs:
            raise ValueError(f"prefill: this model takes no inputs, not {sorted(inputs)}")
        self._check_prefill(params, tokens, cache, mask)
        block = self.layout.block
        if block is not None and tokens.shape[1] > block:
            return self._prefill_singly(params, tokens, cache, mask, block)
        call = self._first_call(params, tokens, cache, mask)
        position_ids = masks.rank_at(call.valid, call.slots)
        return self._run(params, tokens, cache, call, position_ids, logits=logits)

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
                tokens, these among them; left out, what the cache knows, and these are real. Or
                [B, 1, q, up to T], True where a query may attend to a slot, whatever their order: so
                several sequences share a row. It needs `position_ids`; windows and chunks hold
                besides, counted over what the query may attend to. Not for states, rings and sinks.
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
            check_layout("apply", cache, self.layout.specs)
            check_apply(
                params, tokens, cache, position, attention_mask, position_ids, **self._expected
            )
            if "floor" in cache.layers:
                check_above_floor(cache, position)
            if self.layout.rewind is not None:
                check_packable(attention_mask)
                check_not_rewound(cache, position, self.layout.rewind)
            if not self.layout.slot_addressed:
                check_appended(cache, position, attention_mask, tokens.shape[1])
        if tokens.shape[1] > 1 and (not self.in_blocks or self.layout.block is not None):
            return self._one_by_one(params, tokens, cache, position, attention_mask, position_ids)
        capacity, width = self.layout.capacity(cache), tokens.shape[1]
        # Modules add to what comes of the tokens in place: under vmap it must have a batch dimension
        # where the cache has one.
        tokens = tokens + torch.zeros_like(cache.cache_position)[:, None]
        given = allowed = None
        if attention_mask is not None and attention_mask.ndim == 4:
            allowed = to_bool(attention_mask[:, 0], capacity)
        elif attention_mask is not None:
            given = to_bool(attention_mask, capacity)
        slots = position[..., None] + torch.arange(width, device=tokens.device)
        call = Call(
            position=position,
            slots=slots.expand_as(tokens),
            valid=masks.real_slots(cache.layers["valid"], position, width, given),
            first=False,
            zero=self._zero(params, tokens),
            allowed=allowed,
        )
        if position_ids is None:
            position_ids = masks.rank_at(call.valid, call.slots)
        return self._run(params, tokens, cache, call, self._positions(cache, position_ids))

    def _positions(self, cache: Cache, counted: Tensor) -> Tensor:
        """Returns what the module calls the positions of tokens before which so many lie, [B, q]."""
        return counted

    def _check_prefill(self, params: Any, tokens: Tensor, cache: Cache, mask: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        check_params(params, self.names)
        check_layout("prefill", cache, self.layout.specs)
        check_prefill(params, tokens, cache, mask, **self._expected)
        if not self.layout.slot_addressed:
            check_left_padded("prefill", "mask", mask)

    def _first_call(self, params: Any, tokens: Tensor, cache: Cache, mask: Tensor) -> Call:
        return Call(
            position=torch.zeros_like(cache.cache_position),
            slots=torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens),
            valid=to_bool(mask, self.layout.capacity(cache)),
            first=True,
            zero=self._zero(params, tokens),
        )

    def _zero(self, params: Any, tokens: Tensor) -> Tensor:
        weight = params[self.skeleton.embedding]
        return torch.zeros_like(weight[0, 0]) + torch.zeros_like(tokens[0, 0], dtype=weight.dtype)

    @property
    def _expected(self) -> dict[str, Any]:
        return {"reference": self.skeleton.embedding, "ids": self.skeleton.num_ids}

    def _run(
        self,
        params: Any,
        tokens: Tensor,
        cache: Cache,
        call: Call,
        position_ids: Tensor,
        *,
        logits: bool = True,
        inputs: Mapping[str, Any] = MappingProxyType({}),
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
            last_only=not logits,
            inputs=inputs,
        )
        found = [layer.entry() for layer in layers]
        if call.width == 1 and not self.layout.slot_addressed:
            # A single pad before the text: modules mask pads among several tokens only.
            real = call.valid.gather(1, call.slots)[:, 0]
            found = [
                spec.kept(real, new, old)
                for spec, new, old in zip(specs, found, entries, strict=True)
            ]
        after = {**cache.layers, "valid": call.valid, "layers": found}
        position = (call.slots[:, -1] + 1).contiguous()
        if self.layout.rewind is not None:
            after["fed"] = torch.maximum(position, cache.layers["fed"])
        return ModelOutput(
            logits=output.logits.contiguous(),
            cache=Cache(layers=after, cache_position=position, layout=self.layout),
            hidden_states=output.hidden_states[-1].contiguous(),
        )

    def _masks(self, params: Any, entries: list[Any], call: Call) -> Any:
        """Returns the mask of each kind of layer, or the only one."""
        dtype = params[self.skeleton.embedding].dtype
        mask_of: dict[str, Any] = {}
        for spec, entry in zip(self.layout.specs, entries, strict=True):
            if spec.kind not in mask_of and spec.kind in masks.MASKS:
                keys = spec.keys(entry, call)
                reach = None if spec.attention is None else spec.attention.window
                mask = masks.additive(masks.MASKS[spec.kind](call, keys, reach), dtype)
                bias = None if self.bias is None else self.bias(call, keys).to(dtype)
                mask_of[spec.kind] = mask if bias is None else mask + bias
        if not self.layout.slot_addressed:
            # A state is told of pads before the text alone; of a single token that follows, nothing.
            fed = call.valid.gather(1, call.slots)
            pads = fed if call.first or call.width > 1 else None
            mask_of |= dict.fromkeys(("linear_attention", "conv"), pads)
        return mask_of if self.keyed else next(iter(mask_of.values()))

    def _prefill_singly(
        self, params: Any, tokens: Tensor, cache: Cache, mask: Tensor, block: int
    ) -> ModelOutput:
        """Reads as much of a prompt as goes at once, and the rest token by token."""
        head = self.prefill(params, tokens[:, :block], cache, mask=mask[:, :block])
        rest = self.apply(params, tokens[:, block:], head.cache, attention_mask=mask)
        return ModelOutput(
            logits=torch.cat([head.logits, rest.logits], dim=1),
            cache=rest.cache,
            hidden_states=torch.cat([head.hidden_states, rest.hidden_states], dim=1),
        )

    def _one_by_one(
        self,
        params: Any,
        tokens: Tensor,
        cache: Cache,
        position: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
    ) -> ModelOutput:
        """Feeds the tokens of a call in as many calls."""
        outputs = []
        for column in range(tokens.shape[1]):
            seen = attention_mask
            if seen is not None:  # what is fed later is not there yet
                slot = torch.arange(seen.shape[1], device=seen.device)
                seen = (seen != 0) & (slot <= position[..., None] + column)
            output = self.apply(
                params,
                tokens[:, column : column + 1],
                cache,
                cache_position=position + column,
                attention_mask=seen,
                position_ids=None if position_ids is None else position_ids[:, column : column + 1],
            )
            cache = output.cache
            outputs.append(output)
        return ModelOutput(
            logits=torch.cat([output.logits for output in outputs], dim=1),
            cache=cache,
            hidden_states=torch.cat([output.hidden_states for output in outputs], dim=1),
        )


def to_bool(mask: Tensor, width: int) -> Tensor:
    """Returns a mask of 0 and 1 as bool [B, …, width], widened with False."""
    return torch.nn.functional.pad(mask != 0, (0, width - mask.shape[-1]))


@torch.no_grad()
def _continues(functions: DecoderOnly, params: Any) -> bool:
    """Tells whether several tokens at once go on from the states that there are.

    The modules of some models (Mamba, Jamba) take no initial state for more than one token.
    """
    device = functions.layout.device
    tokens = torch.arange(4, device=device)[None] % functions.skeleton.num_ids
    start = functions.prefill(
        params,
        tokens[:, :2],
        functions.init_cache(1, 4),
        mask=torch.ones(1, 2, dtype=torch.bool, device=device),
    )
    together = functions.apply(params, tokens[:, 2:], start.cache).logits
    apart = dataclasses.replace(functions, in_blocks=False)
    single = apart.apply(params, tokens[:, 2:], start.cache).logits.double()
    error = (together.double() - single).square().mean().sqrt() / single.square().mean().sqrt()
    return bool(error < (1e-3 if together.dtype == torch.float32 else 3e-2))
