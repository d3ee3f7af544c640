"""Which model types are supported, and by which adapter. What is not in the table is refused.

A row is there because its greedy tokens equal those of `transformers` in `tests/bridge`. A family
that works like the others is one row; one that does not (states without slots, an encoder, biases
from positions) is an adapter in a file of its own and one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from bridge.decoder_only import decoder_only
from bridge.errors import Unsupported
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
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
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
    "llama",
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
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)

FAMILIES: Mapping[str, Adapter] = MappingProxyType(dict.fromkeys(_DECODER_ONLY, decoder_only))

# The others compute their frequencies anew from what they have seen: state hidden in the module.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


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
        >>> adapter_of(transformers.BloomConfig())
        Traceback (most recent call last):
        bridge.errors.Unsupported: model type 'bloom' is not supported; supported are ...
    """
    model_type = config.model_type
    if model_type not in FAMILIES:
        raise Unsupported(
            f"model type {model_type!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    for rope_type in _rope_types(config):
        if rope_type not in _ROPE_TYPES:
            raise Unsupported(
                f"model type {model_type!r} with rope_type {rope_type!r} is not supported: it may "
                f"change its frequencies while it runs; supported are {', '.join(_ROPE_TYPES)}"
            )
    if vars(config).get("_heterogeneity_spec") is not None:
        raise Unsupported(f"model type {model_type!r} with layers of different configurations")
    if getattr(config, "alibi", False):
        raise Unsupported(f"model type {model_type!r} with alibi=True is not supported")
    return FAMILIES[model_type]


def _rope_types(config: Any) -> list[str]:
    """Returns every rope type in a configuration: one, or one a kind of layer."""
    settings = getattr(config, "rope_parameters", None) or {}
    parts = [part for part in (settings, *settings.values()) if isinstance(part, dict)]
    return [part.get("rope_type", "default") for part in parts]
