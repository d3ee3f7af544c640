"""A module's structure without its weights, to run any parameters through.

The module that the caller holds is never touched: its parameters are read, its tree is copied. The
copy's parameters are on the meta device, so a weight that is not handed in cannot be used by
mistake.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bridge.attention import GROUPED, shares_keys
from bridge.errors import Unsupported

__all__ = ["Skeleton", "parameters_of", "skeleton_of"]

# The name of the cache argument: in transformers 5.24, in 5.17, and Mamba's in 5.17.
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns a module's parameters by name, detached, in the module's own memory.

    Args:
        module: any module.

    Returns:
        dict from name to floating tensor. A tied parameter appears once, under its first name.

    Raises:
        Unsupported: a parameter is not a floating tensor (quantised weights), or they lie on
            several devices or on none.
    """
    params = {name: parameter.detach() for name, parameter in module.named_parameters()}
    for name, tensor in params.items():
        if not tensor.is_floating_point():
            raise Unsupported(
                f"parameter {name!r} is {tensor.dtype}: quantised weights are not supported; "
                "load the model dequantised"
            )
    devices = {tensor.device for tensor in params.values()}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        names = sorted(str(device) for device in devices)
        raise Unsupported(f"the parameters must lie on one real device, not on {names}")
    return params


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Skeleton:
    """A Hugging Face module as a function of its parameters (`skeleton_of` makes it).

    Attributes:
        module: the copy, in evaluation mode, its parameters on the meta device.
        config: the configuration of its decoder.
        embedding: the name of the parameter that embeds tokens.
        num_ids: int, how many token ids it embeds.
        cache_argument: what the forward calls its cache, or None if it takes none.
        takes_position_ids: whether the forward takes `position_ids`.
        takes_logits_to_keep: whether the forward takes `logits_to_keep`.
        lock: held while parameters are in the module, so that threads do not mix theirs.
    """

    module: Any
    config: Any
    embedding: str
    num_ids: int
    cache_argument: str | None
    takes_position_ids: bool
    takes_logits_to_keep: bool
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=threading.Lock())

    def __call__(
        self,
        params: dict[str, Tensor],
        tokens: Tensor,
        *,
        position_ids: Tensor | None,
        attention_mask: Any = None,
        cache: Any = None,
        last_only: bool = False,
        inputs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Runs the forward.

        Args:
            params: dict from name to tensor, all of them.
            tokens: int64 [B, q].
            position_ids: int64 [B, q], or whatever else the forward takes, None included.
            attention_mask: whatever the forward takes.
            cache: a transformers cache, which this call changes, or None.
            last_only: whether the logits of the last token are enough, where the forward can leave
                out the others.
            inputs: what the forward takes besides, by its own names.

        Returns:
            The forward's output, with the `hidden_states` of all layers.
        """
        arguments: dict[str, Any] = {
            "input_ids": tokens,
            "attention_mask": attention_mask,
            "use_cache": cache is not None,
            "output_hidden_states": True,
        }
        arguments.update(inputs)
        if self.takes_position_ids:
            arguments["position_ids"] = position_ids
        if last_only and self.takes_logits_to_keep:
            arguments["logits_to_keep"] = 1
        if cache is not None:
            arguments[str(self.cache_argument)] = cache
        return self.run(params, arguments)

    def run(self, params: dict[str, Tensor], inputs: dict[str, Any]) -> Any:
        """Runs the forward with arguments of its own names.

        Args:
            params: dict from name to tensor, all of them.
            inputs: dict from name to value.

        Returns:
            The forward's output.
        """
        if torch.compiler.is_compiling():
            return functional_call(self.module, params, (), inputs)
        with self.lock:
            return functional_call(self.module, params, (), inputs)


def skeleton_of(module: Any) -> Skeleton:
    """Copies a module's tree and leaves its weights behind.

    Args:
        module: a `PreTrainedModel`; only read.

    Returns:
        Its `Skeleton`. Buffers are copied, on their device.

    Raises:
        Unsupported: the module has no language modelling head.
    """
    memo: dict[int, Any] = {
        # not empty_like: a quantised weight, a subclass of Tensor, may not know it
        id(parameter): nn.Parameter(
            torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"), requires_grad=False
        )
        for parameter in module.parameters()
    }
    copied: Any = copy.deepcopy(module, memo).eval()
    if copied.get_output_embeddings() is None:
        raise Unsupported(
            f"{type(module).__name__} has no language modelling head; "
            "load the checkpoint with AutoModelForCausalLM"
        )
    config = copied.config.get_text_config(decoder=True)
    copied.config.return_dict = config.return_dict = True
    # These two alone take a mask of floating numbers.
    if config._attn_implementation not in ("sdpa", "eager"):
        copied.set_attn_implementation("sdpa" if copied._supports_sdpa else "eager")
    if config._attn_implementation == "sdpa" and shares_keys(copied):
        config._attn_implementation = GROUPED
    weight = copied.get_input_embeddings().weight
    accepted = inspect.signature(type(module).forward).parameters
    return Skeleton(
        module=copied,
        config=config,
        embedding=next(name for name, value in copied.named_parameters() if value is weight),
        num_ids=weight.shape[0],
        cache_argument=next((name for name in _CACHE_ARGUMENTS if name in accepted), None),
        takes_position_ids="position_ids" in accepted,
        takes_logits_to_keep="logits_to_keep" in accepted,
    )
