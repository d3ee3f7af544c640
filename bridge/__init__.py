"""Hugging Face models as pure functions for `purgen`."""

from bridge.errors import Unsupported
from bridge.gguf import embedded_checkpoint
from bridge.load import load
from bridge.model import HFModel

__all__ = ["HFModel", "Unsupported", "embedded_checkpoint", "load"]
