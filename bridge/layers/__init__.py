"""What the layers of a model keep of the tokens they were fed: one kind a file.

A kind is a spec (what an empty entry of the cache looks like, what it costs, how it is lengthened)
and the layer that it gives to a Hugging Face forward for one call. `layout.py` puts the specs of a
model together.
"""

from bridge.layers.attention import AttentionSpec
from bridge.layers.base import Call, Layer, LayerSpec
from bridge.layers.layout import Layout
from bridge.layers.recurrent import HybridSpec, RecurrentSpec, states_of
from bridge.layers.shared import SharedSpec

__all__ = [
    "AttentionSpec",
    "Call",
    "HybridSpec",
    "Layer",
    "LayerSpec",
    "Layout",
    "RecurrentSpec",
    "SharedSpec",
    "states_of",
]
