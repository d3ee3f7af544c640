"""Hugging Face models as pure functions for `purgen`."""

from bridge.errors import Unsupported
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
    "embedded_checkpoint",
    "load",
    "to_logits_processor",
    "to_stop_rule",
    "to_stopping_criteria",
    "to_transform",
    "token_bytes",
]
