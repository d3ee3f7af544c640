"""Hugging Face models as pure functions for `purgen`."""

from bridge.as_hf_cache import as_hf_cache
from bridge.cache_kinds import attention_sinks, quantized_cache, ring_cache
from bridge.errors import Unsupported
from bridge.from_hf_cache import from_hf_cache
from bridge.gguf import embedded_checkpoint
from bridge.load import load
from bridge.model import HFModel
from bridge.to_hf import to_logits_processor, to_stopping_criteria
from bridge.to_stop_rule import to_stop_rule
from bridge.to_transform import to_transform
from bridge.token_bytes import token_bytes

__all__ = [
    "HFModel",
    "Unsupported",
    "as_hf_cache",
    "attention_sinks",
    "embedded_checkpoint",
    "from_hf_cache",
    "load",
    "quantized_cache",
    "ring_cache",
    "to_logits_processor",
    "to_stop_rule",
    "to_stopping_criteria",
    "to_transform",
    "token_bytes",
]
