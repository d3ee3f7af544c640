"""A `purgen.Cache` in the place of a transformers cache, for code that calls the module itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache as HFCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, LinearAttentionLayer

from bridge.cross_view import EncoderDecoderView
from bridge.decoder_only import to_bool
from bridge.errors import Unsupported
from bridge.layers import AttentionSpec, HybridSpec, Layout, RecurrentSpec, SharedSpec, states_of
from bridge.layers.attention import put
from purgen.cache import Cache
from purgen.concrete import is_concrete
from purgen.pytree import replace

__all__ = ["HFCacheView", "KeysAndValues", "as_hf_cache"]


def as_hf_cache(
    cache: Cache, *, attention_mask: Tensor | None = None, static: bool = True
) -> HFCacheView | EncoderDecoderView:
    """Makes an object that a transformers module takes as its cache.

    The cache given is not changed: the object holds new values as the module writes them, and
    `view.value` is the cache after the last call. transformers counts positions and builds masks for
    all rows together, so the rows must have come equally far (pads on the left), and a module is told
    of pads by its own argument `attention_mask`, one column longer with each token:
    `view.attention_mask` is what it has to be up to here. The modules of Mamba take one with a prompt
    alone; with a later token, as `prepare_inputs_for_generation` knows, none.

    Args:
        cache: a cache of `bridge.load(module)`, filled or empty, with its rows at one position.
        attention_mask: bool, or integers 0 and 1, [B, P]: the real tokens of the slots that the module
            will write. Needed where the cache is empty, since only the module is told of the pads of a
            prompt. Left out for a filled cache, what is written is real.
        static: whether the module attends over all slots, like on a `StaticCache`, so that one program
            serves all steps; False: over those filled, like on a `DynamicCache`. The modules of Bloom
            and Falcon with alibi take no `StaticCache` of theirs, and so need False.

    Returns:
        A transformers cache; for a model with an encoder, which must have been read, an
        `EncoderDecoderCache`.

    Raises:
        ValueError: the rows are at different positions, or the mask is missing or wrong, or an encoder
            has not been read.
        Unsupported: a kind of layer that a transformers cache does not have.

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
        >>> tokens, mask = (
        ...     torch.tensor([[0, 5, 6], [7, 8, 9]]),
        ...     torch.tensor([[0, 1, 1], [1, 1, 1]]),
        ... )
        >>> cache = model.prefill(model.params, tokens, model.init_cache(2, 8), mask=mask).cache
        >>> view = bridge.as_hf_cache(cache)
        >>> out = module.generate(
        ...     torch.cat([tokens, torch.tensor([[3], [4]])], dim=1),
        ...     attention_mask=torch.nn.functional.pad(mask, (0, 1), value=1),
        ...     max_new_tokens=2,
        ...     do_sample=False,
        ...     cache=view,
        ... )
        >>> view.get_seq_length(), view.value.cache_position, cache.cache_position
        (tensor(5), tensor([5, 5]), tensor([3, 3]))
    """
    layout = cache.layout
    if "rope_delta" in cache.layers:
        raise Unsupported(
            "as_hf_cache: images move the positions of this model; its module keeps by how much, and "
            "reads it from no cache"
        )
    if "encoder_valid" in cache.layers:
        if not cache.layers["encoder_valid"].shape[1]:
            raise ValueError("as_hf_cache: the encoder has not been read; call prefill first")
        decoder = {name: cache.layers[name] for name in ("valid", "layers")}
        view = as_hf_cache(
            replace(cache, layers=decoder), attention_mask=attention_mask, static=static
        )
        return EncoderDecoderView(view, cache)
    if not isinstance(layout, Layout) or set(cache.layers) - {"valid", "layers", "fed", "floor"}:
        raise Unsupported("as_hf_cache: cache must be that of a decoder from bridge.load")
    position = cache.cache_position
    if is_concrete(position) and (position != position[0]).any():
        raise ValueError(
            f"as_hf_cache: the rows of cache are at positions {position.tolist()}; transformers has "
            "one position for all rows: pad prompts on the left"
        )
    rows, capacity = cache.layers["valid"].shape
    fed = int(position[0])
    if attention_mask is None:
        if fed == 0:
            raise ValueError(
                "as_hf_cache: attention_mask is None and cache is empty; give the mask of the prompt "
                "that the module will read (all ones where it has no pads)"
            )
    elif (
        attention_mask.is_floating_point()
        or attention_mask.ndim != 2
        or attention_mask.shape[0] != rows
        or not fed <= attention_mask.shape[1] <= capacity
    ):
        raise ValueError(
            f"as_hf_cache: attention_mask must be bool, or integers 0 and 1, "
            f"[B, {fed} to T] = [{rows}, {fed} to {capacity}], not "
            f"{str(attention_mask.dtype).removeprefix('torch.')} {list(attention_mask.shape)}"
        )
    return HFCacheView(cache, attention_mask, static=static)


class HFCacheView(HFCache):
    """What `as_hf_cache` returns.

    Attributes:
        layers: list of transformers cache layers.
    """

    def __init__(self, cache: Cache, attention_mask: Tensor | None, *, static: bool) -> None:
        specs: tuple[Any, ...] = cache.layout.specs
        entries = cache.layers["layers"]
        counted = not any(spec.attention is not None for spec in specs)
        super().__init__(
            layers=[
                _layer(spec, entry, cache, counted=counted and index == 0)
                for index, (spec, entry) in enumerate(zip(specs, entries, strict=True))
            ]
        )
        for layer in self.layers:
            if isinstance(layer, KeysAndValues):
                layer.is_compileable = static
        self._before = cache
        self._mask = attention_mask

    @property
    def value(self) -> Cache:
        """The `purgen.Cache` after the last call; later calls do not change it.

        Raises:
            ValueError: no layer counts what it was fed (states alone), and more was fed.
        """
        before = self._before
        length = self.get_seq_length()
        position = torch.zeros_like(before.cache_position) + length
        layers: dict[str, Any] = {
            **before.layers,
            "valid": self._valid(position),
            "layers": [_entry(layer) for layer in self.layers],
        }
        if "fed" in before.layers:
            layers["fed"] = position.clone()
        return replace(before, layers=layers, cache_position=position)

    @property
    def attention_mask(self) -> Tensor:
        """int64 [B, slots fed], 1 at real tokens: what the module's `attention_mask` begins with."""
        length = int(self.get_seq_length())
        position = torch.zeros_like(self._before.cache_position) + length
        return self._valid(position)[:, :length].long()

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Returns int64 [], how many slots were fed."""
        counting = [layer for layer in self.layers if hasattr(layer, "position")]
        if not counting:
            raise Unsupported(
                "as_hf_cache: the layers of this model keep states alone, which do not count tokens"
            )
        chosen = self.layers[layer_idx]
        return (chosen if hasattr(chosen, "position") else counting[0]).position

    def _valid(self, position: Tensor) -> Tensor:
        before = self._before.layers["valid"]
        slots = torch.arange(before.shape[1], device=before.device)
        valid = before | (slots >= self._before.cache_position[:, None])
        if self._mask is not None:
            told = self._mask.shape[1]
            valid = torch.where(slots < told, to_bool(self._mask, before.shape[1]), valid)
        return valid & (slots < position[:, None])


class KeysAndValues(CacheLayerMixin):
    """The buffers of an attention layer: an index a slot, new ones for each call."""

    is_compileable = True

    def __init__(self, entry: dict[str, Tensor], position: Tensor, *, is_sliding: bool) -> None:
        super().__init__()
        self.keys, self.values = entry["k"], entry["v"]  # [B, H, T, D]
        self.position = position  # int64 []: a number would compile anew at each step
        self.is_sliding = is_sliding
        self.is_initialized = True
        self.batch_size = self.keys.shape[0]

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing is left to do: the buffers are there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, q, D], returns all [B, H, T, D]."""
        self.keys = put(self.keys, key_states, self.position)
        self.values = put(self.values, value_states, self.position)
        self.position = self.position + key_states.shape[2]
        if self.is_compileable:
            return self.keys, self.values
        count = int(self.position)
        return self.keys[:, :, :count], self.values[:, :, :count]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many slots are attended over, and the first of them."""
        if self.is_compileable:
            return self.keys.shape[2], 0
        return int(self.position) + query_length, 0

    def get_seq_length(self) -> Any:
        """Returns int64 [], how many slots were fed; a number where that is not static."""
        return self.position if self.is_compileable else int(self.position)

    def get_max_length(self) -> int:
        """Returns how many slots there are."""
        return self.keys.shape[2]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Takes other rows: what `transformers` does to beams, out of place."""
        self.keys = self.keys.index_select(0, beam_idx)
        self.values = self.values.index_select(0, beam_idx)


class CountedStates(LinearAttentionLayer):
    """The states of a layer that counts the tokens read, where no layer keeps keys.

    A module that reads a single token writes its states past the layer, unless the layer records what
    it was given: so this one claims to.
    """

    def __init__(self, position: Tensor, *, states: int) -> None:
        super().__init__(number_of_states=states)
        self.record_past = True
        self.position = position  # int64 []

    def update_conv_state(self, conv_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Takes what the convolution reads of new tokens [B, C, q]; returns it after what was kept."""
        self.position = self.position + conv_states.shape[2]
        self.record_past = False
        full = super().update_conv_state(conv_states, *args, **kwargs)
        self.record_past = True
        return full

    def get_seq_length(self) -> Tensor:
        """Returns int64 [], how many tokens were read."""
        return self.position

    def crop(self, *_: Any, **__: Any) -> None:
        """Refuses: a state does not know what it was before."""
        raise Unsupported("as_hf_cache: states cannot be cropped; keep an earlier view.value")


class _Both(LinearAttentionLayer, KeysAndValues):
    """Keys and values beside a state."""

    is_compileable = True

    def __init__(
        self, entry: dict[str, Tensor], position: Tensor, *, states: int, is_sliding: bool
    ):
        LinearAttentionLayer.__init__(self, number_of_states=states)
        KeysAndValues.__init__(self, entry, position, is_sliding=is_sliding)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Makes place for a state; for keys and values there is."""
        if kwargs:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Takes other rows of all that it keeps."""
        LinearAttentionLayer.reorder_cache(self, beam_idx)
        KeysAndValues.reorder_cache(self, beam_idx)


def _layer(spec: Any, entry: dict[str, Tensor], cache: Cache, *, counted: bool) -> Any:
    position = cache.cache_position[0].clone()
    kind = type(spec)
    if kind is SharedSpec:
        return DynamicLayer()  # never written to
    if kind is AttentionSpec:
        return KeysAndValues(entry, position, is_sliding=spec.window is not None)
    if kind not in (RecurrentSpec, HybridSpec):
        raise Unsupported(
            f"as_hf_cache: {kind.__name__} has no counterpart in transformers; load the model "
            "without cache=, so that it keeps everything"
        )
    states = spec.states if kind is RecurrentSpec else spec.recurrent.states
    names = [name for name, _, _ in states]
    count = 1 + max(int(name.rsplit("_", 1)[1]) for name in names)
    layer: Any
    if kind is RecurrentSpec and counted and any(name.startswith("conv_") for name in names):
        layer = CountedStates(position, states=count)
    elif kind is RecurrentSpec:
        layer = LinearAttentionLayer(number_of_states=count)
    elif type(spec.attention) is not AttentionSpec:
        raise Unsupported(f"as_hf_cache: {type(spec.attention).__name__} has no counterpart")
    else:
        window = spec.attention.window
        layer = _Both(entry, position, states=count, is_sliding=window is not None)
    if int(position):  # else the module makes the states, as it does at the beginning of a text
        _fill(layer, {name: entry[name] for name in names})
    return layer


def _fill(layer: Any, states: dict[str, Tensor]) -> None:
    """Gives a layer copies of states: the modules write them in place."""
    for name, state in states.items():
        what, number = name.rsplit("_", 1)
        index = int(number)
        layer.lazy_initialization(**{f"{what}_states": state, "state_idx": index})
        getattr(layer, f"{what}_states")[index].copy_(state)
        layer.has_previous_state[index] = True


def _entry(layer: Any) -> dict[str, Tensor]:
    entry: dict[str, Tensor] = {}
    if isinstance(layer, KeysAndValues):
        entry |= {"k": layer.keys, "v": layer.values}
    if isinstance(layer, LinearAttentionLayer):
        entry |= {name: state.clone() for name, state in states_of(layer).items()}
    return entry
