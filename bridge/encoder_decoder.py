"""Encoder-decoder models as pure functions: the encoder is read once, its keys and values are kept.

The cache is that of a decoder with `"cross"`, a list of `{"k", "v": [B, H, S, D]}`, and
`"encoder_valid"`, bool [B, S], beside it. Both are empty (S = 0) until `prefill` has read `inputs`,
and no step changes them.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import Cache as HFCache
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from bridge import masks
from bridge.checks import (
    check_apply,
    check_inputs,
    check_layout,
    check_packable,
    check_params,
    check_prefill,
)
from bridge.decoder_only import to_bool
from bridge.layers import Call, Layout
from bridge.layers.cross import CrossLayer, CrossSpec
from bridge.positions import per_row_positions
from bridge.skeleton import Skeleton
from bridge.specs import specs_of
from purgen.cache import Cache
from purgen.model import ModelOutput
from purgen.pytree import replace

__all__ = ["EncoderDecoder", "encoder_decoder"]


def encoder_decoder(skeleton: Skeleton, params: dict[str, Tensor]) -> EncoderDecoder:
    """Finds out what a decoder keeps for each layer, by one forward of one token.

    Args:
        skeleton: the model's structure.
        params: its parameters.

    Returns:
        Its pure functions.

    Raises:
        Unsupported: a kind of layer or of cache that is not known here.
    """
    relative = per_row_positions(skeleton.module)
    device = params[skeleton.embedding].device
    inputs = example_inputs(skeleton, params, rows=1)
    with torch.no_grad():
        output = skeleton.run(
            params,
            {
                **inputs,
                "decoder_input_ids": torch.zeros(1, 1, dtype=torch.int64, device=device),
                "use_cache": True,
            },
        )
    cache = next(output[name] for name in ("cache", "past_key_values") if name in output)
    cross = tuple(
        CrossSpec(
            key=(layer.keys.shape[1], layer.keys.shape[3]),
            value=(layer.values.shape[1], layer.values.shape[3]),
            dtype=layer.keys.dtype,
            device=layer.keys.device,
        )
        for layer in cache.cross_attention_cache.layers
        if layer.keys is not None
    )
    accepted = inspect.signature(type(skeleton.module).forward).parameters
    return EncoderDecoder(
        skeleton=skeleton,
        names=frozenset(params),
        layout=CrossLayout(
            specs=specs_of(cache.self_attention_cache, skeleton.config)[: len(cross)],
            device=device,
            cross=cross,
        ),
        relative=relative,
        takes_position_ids="decoder_position_ids" in accepted,
        main_input=skeleton.module.main_input_name,
    )


def example_inputs(skeleton: Skeleton, params: dict[str, Tensor], *, rows: int) -> dict[str, Any]:
    """Returns inputs for an encoder: a few tokens, or features of the length that it wants."""
    config, device = skeleton.module.config, params[skeleton.embedding].device
    if skeleton.module.main_input_name == "input_features":
        frames = 2 * config.max_source_positions
        size = rows * config.num_mel_bins * frames
        wave = torch.sin(torch.arange(size, device=device) * 0.37)
        dtype = params[skeleton.embedding].dtype
        return {"input_features": wave.reshape(rows, config.num_mel_bins, frames).to(dtype)}
    tokens = (torch.arange(rows * 5, device=device) * 17 + 3).reshape(rows, 5) % skeleton.num_ids
    return {"input_ids": tokens}


@dataclasses.dataclass(frozen=True, eq=False)
class CrossLayout(Layout):
    """`Layout` with what a decoder keeps of its encoder.

    Attributes:
        cross: one a layer.
    """

    cross: tuple[CrossSpec, ...] = ()

    def empty(self, batch_size: int, max_length: int) -> Cache:
        """Returns an empty cache, before the encoder has run."""
        cache = super().empty(batch_size, max_length)
        nothing = torch.zeros(batch_size, 0, dtype=torch.bool, device=self.device)
        cross = [spec.empty(batch_size) for spec in self.cross]
        return replace(cache, layers={**cache.layers, "cross": cross, "encoder_valid": nothing})

    def cross_bytes(self, positions: int) -> int:
        """Returns what a row costs besides, whose encoder has read so many positions, in bytes."""
        return sum(spec.num_bytes(positions) for spec in self.cross)


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderDecoder:
    """The functions of a model, bound to its structure.

    Attributes:
        skeleton: the forward.
        names: names of all parameters.
        layout: what its caches look like.
        relative: whether the decoder's attention is biased by distance in slots; else its positions
            are absolute.
        takes_position_ids: whether the forward takes `decoder_position_ids`.
        main_input: str, what the encoder reads ("input_ids", "input_features").
    """

    skeleton: Skeleton
    names: frozenset[str]
    layout: CrossLayout
    relative: bool
    takes_position_ids: bool
    main_input: str

    @property
    def max_length(self) -> int | None:
        """The longest sequence of the decoder, or None if there is no longest."""
        names = ("max_target_positions", "max_position_embeddings")
        found = (getattr(self.skeleton.module.config, name, None) for name in names)
        return None if self.relative else next((length for length in found if length), None)

    def init_cache(self, batch_size: int, max_length: int) -> Cache:
        """Returns an empty cache of `max_length` slots a row (`CrossLayout.empty`)."""
        return self.layout.empty(batch_size, max_length)

    def prefill(
        self, params: Any, tokens: Tensor, cache: Cache, *, mask: Tensor, inputs: Any = None
    ) -> ModelOutput:
        """Reads the encoder's inputs and fills an empty cache from slot 0.

        Args:
            params: dict of tensors, like `model.params`.
            tokens: int64 [B, P], for the decoder; P may be 0.
            cache: an empty cache of at least P slots.
            mask: bool (or integers 0 and 1) [B, P], True at real tokens.
            inputs: dict by the forward's own names: `input_ids` int64 [B, S] with `attention_mask`
                [B, S] (1 at real tokens; left out, all are), or `input_features` floating
                [B, M, F].

        Returns:
            `purgen.ModelOutput` with logits [B, P, V] and the filled cache.

        Raises:
            ValueError: a wrong dtype, shape, device or value; the message names the argument.
        """
        if not torch.compiler.is_compiling():
            check_params(params, self.names)
            check_layout("prefill", cache, self.layout.specs)
            check_inputs(inputs, self.main_input, tokens)
            if tokens.shape[1]:
                check_prefill(params, tokens, cache, mask, **self._expected)
        width = tokens.shape[1]
        # A decoder without tokens still has to read the encoder: one token is fed and forgotten.
        fed = tokens if width else tokens.new_zeros(len(tokens), 1)
        slots = torch.arange(fed.shape[1], device=tokens.device).expand_as(fed)
        real = mask if width else torch.ones_like(fed, dtype=torch.bool)
        call = Call(
            position=torch.zeros_like(cache.cache_position),
            slots=slots,
            valid=to_bool(real, max(self.layout.capacity(cache), fed.shape[1])),
            first=True,
            zero=torch.zeros((), dtype=params[self.skeleton.embedding].dtype, device=tokens.device),
        )
        given = dict(inputs)
        encoder_mask = given.pop("attention_mask", None)
        if encoder_mask is not None:
            dtype = params[self.skeleton.embedding].dtype
            given["attention_mask"] = masks.additive((encoder_mask != 0)[:, None, :], dtype)
        output, after = self._run(
            params, fed, cache, call, masks.rank_at(call.valid, slots), None, given
        )
        if encoder_mask is None:
            shape = after.layers["cross"][0]["k"].shape
            encoder_mask = torch.ones(shape[0], shape[2], dtype=torch.bool, device=tokens.device)
        after = replace(after, layers={**after.layers, "encoder_valid": encoder_mask != 0})
        if not width:
            kept = {key: after.layers[key] for key in ("cross", "encoder_valid")}
            after = replace(cache, layers={**cache.layers, **kept})
        return ModelOutput(
            logits=output.logits[:, :width].contiguous(),
            cache=after,
            hidden_states=output.decoder_hidden_states[-1][:, :width].contiguous(),
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
        """Feeds `q` tokens to the decoder of each row, at a slot of its own.

        Args:
            params: dict of tensors, like `model.params`.
            tokens: int64 [B, q].
            cache: a cache whose encoder has been read; it is not changed.
            cache_position: int64 [B], the slot of the first token, or 0-d, one for all rows; left
                out, the cache's own.
            attention_mask: bool (or integers 0 and 1) [B, up to T], True at slots of the decoder that
                hold real tokens; left out, what the cache knows.
            position_ids: int64 [B, q]; left out, the number of real tokens before each. Models with
                relative positions have no use for them.

        Returns:
            `purgen.ModelOutput` with logits [B, q, V] and the cache, `q` slots further.

        Raises:
            ValueError: a wrong dtype, shape, device or value, no room for the tokens, or an encoder
                that has not been read; the message names the argument.
        """
        position = cache.cache_position if cache_position is None else cache_position
        if not torch.compiler.is_compiling():
            check_params(params, self.names)
            check_layout("apply", cache, self.layout.specs)
            check_packable(attention_mask)
            check_apply(
                params, tokens, cache, position, attention_mask, position_ids, **self._expected
            )
            if cache.layers["encoder_valid"].shape[1] == 0:
                raise ValueError(
                    "apply: cache knows nothing of the encoder; call prefill with inputs first"
                )
        capacity, width = self.layout.capacity(cache), tokens.shape[1]
        given = None if attention_mask is None else to_bool(attention_mask, capacity)
        slots = position[..., None] + torch.arange(width, device=tokens.device)
        call = Call(
            position=position,
            slots=slots.expand_as(tokens),
            valid=masks.real_slots(cache.layers["valid"], position, width, given),
            first=False,
            zero=torch.zeros((), dtype=params[self.skeleton.embedding].dtype, device=tokens.device),
        )
        if position_ids is None:
            position_ids = masks.rank_at(call.valid, call.slots)
        dtype = params[self.skeleton.embedding].dtype
        valid = cache.layers["encoder_valid"]
        # The decoder asks whether there is an encoder, and takes its keys and values from the cache.
        inputs = {
            "encoder_outputs": BaseModelOutput(
                last_hidden_state=torch.zeros(*valid.shape, 1, dtype=dtype, device=valid.device)
            ),
            "attention_mask": masks.additive(valid[:, None, :], dtype),
        }
        entries = cache.layers["cross"]
        output, after = self._run(params, tokens, cache, call, position_ids, entries, inputs)
        return ModelOutput(
            logits=output.logits.contiguous(),
            cache=after,
            hidden_states=output.decoder_hidden_states[-1].contiguous(),
        )

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
        cross: list[Any] | None,
        inputs: dict[str, Any],
    ) -> tuple[Any, Cache]:
        """Runs the forward and reads the new cache out of the layers."""
        entries, specs = cache.layers["layers"], self.layout.specs
        layers = [spec.layer(entry, call) for spec, entry in zip(specs, entries, strict=True)]
        begins = call.slots if self.relative else position_ids
        for layer in layers:
            layer.seen = begins - torch.arange(call.width, device=tokens.device)  # [B, q]
        others = [CrossLayer(entry) for entry in (cross or [None] * len(specs))]
        dtype = params[self.skeleton.embedding].dtype
        keys = specs[0].keys(entries[0], call)
        allowed = masks.MASKS["full_attention"](call, keys, None)
        arguments = {
            **inputs,
            "decoder_input_ids": tokens,
            "decoder_attention_mask": masks.additive(allowed, dtype),
            "use_cache": True,
            "output_hidden_states": True,
            str(self.skeleton.cache_argument): EncoderDecoderCache(
                HFCache(layers=layers), HFCache(layers=others)
            ),
        }
        if self.takes_position_ids:
            arguments["decoder_position_ids"] = position_ids
        if self.main_input != "input_ids":
            arguments.pop("attention_mask", None)
        output = self.skeleton.run(params, arguments)
        after = {
            **cache.layers,
            "valid": call.valid,
            "layers": [layer.entry() for layer in layers],
            "cross": [layer.entry() for layer in others] if cross is None else cross,
        }
        position = (call.slots[:, -1] + 1).contiguous()
        return output, Cache(layers=after, cache_position=position, layout=self.layout)
