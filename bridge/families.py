"""Which model types are supported, and by which adapter.

A row is there because its greedy tokens equal those of `transformers` in `tests/bridge`. A family
that works like the others is one row; one that does not (an encoder, biases from positions) is an
adapter in a file of its own and one row. A type that is not in the table is tried as a decoder, and
refused by name if the check at load finds that it computes something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from bridge import alibi
from bridge.decoder_only import decoder_only
from bridge.encoder_decoder import encoder_decoder
from bridge.errors import Unsupported
from bridge.image_text import image_text
from bridge.layers import Layout
from bridge.skeleton import Skeleton
from purgen.cache import Cache
from purgen.model import ModelOutput

__all__ = ["FAMILIES", "Adapter", "Functions", "adapter_of"]


class Functions(Protocol):
    """What an adapter makes: the three functions of a `purgen.Model`, and its caches' form."""

    @property
    def layout(self) -> Layout:
        """What the caches look like."""
        ...

    @property
    def max_length(self) -> int | None:
        """The longest sequence that it can read, or None if that is not known."""
        ...

    def init_cache(self, batch_size: int, max_length: int) -> Cache:
        """See `purgen.Model`."""
        ...

    def prefill(
        self, params: Any, tokens: Tensor, cache: Cache, *, mask: Tensor, inputs: Any = None
    ) -> ModelOutput:
        """See `purgen.Model`."""
        ...

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
        """See `purgen.Model`."""
        ...


class Adapter(Protocol):
    """Turns a structure and its parameters into pure functions, or raises `Unsupported`."""

    def __call__(self, skeleton: Skeleton, params: dict[str, Tensor]) -> Functions:
        """Args are the model's structure and its parameters by name."""
        ...


_DECODER_ONLY = (
    "arcee",
    "bamba",
    "biogpt",
    "bitnet",
    "codegen",
    "cohere",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "diffllama",
    "ernie4_5",
    "exaone4",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "helium",
    "hunyuan_v1_dense",
    "jamba",
    "lfm2",
    "llama",
    "llama4_text",
    "mamba",
    "mamba2",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)

_ENCODER_DECODER = ("bart", "marian", "mbart", "t5", "whisper")

_IMAGE_TEXT = ("gemma3", "llava", "qwen2_5_vl", "qwen2_vl")

FAMILIES: Mapping[str, Adapter] = MappingProxyType(
    {
        **dict.fromkeys(_DECODER_ONLY, decoder_only),
        "bloom": alibi.bloom,
        "falcon": alibi.falcon,
        **dict.fromkeys(_ENCODER_DECODER, encoder_decoder),
        **dict.fromkeys(_IMAGE_TEXT, image_text),
    }
)

# Types that pass a short check and are wrong later, or keep state outside any cache.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "recurrent_gemma": "its state is not in its cache",
        "rwkv": "its state is not in a cache",
        "xlstm": "its state is not in its cache",
    }
)


def adapter_of(config: Any) -> Adapter:
    """Looks up the adapter of a model, before its weights are read.

    Args:
        config: a transformers configuration.

    Returns:
        The adapter.

    Raises:
        Unsupported: the model type or a setting of it is not supported; the message names it.

    Example:
        >>> import transformers
        >>> adapter_of(transformers.RwkvConfig())
        Traceback (most recent call last):
        bridge.errors.Unsupported: model type 'rwkv' is not supported: its state is not in a cache
    """
    model_type = config.model_type
    if model_type in _REFUSED:
        raise Unsupported(f"model type {model_type!r} is not supported: {_REFUSED[model_type]}")
    if vars(config).get("_heterogeneity_spec") is not None:
        raise Unsupported(f"model type {model_type!r} with layers of different configurations")
    return FAMILIES.get(model_type, decoder_only)
