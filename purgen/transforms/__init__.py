"""Logits transforms: one algorithm a file."""

from purgen.transforms.base import LogitsTransform, stateless
from purgen.transforms.chain import chain, named_chain
from purgen.transforms.min_p import min_p
from purgen.transforms.repetition_penalty import repetition_penalty
from purgen.transforms.temperature import temperature
from purgen.transforms.top_k import top_k
from purgen.transforms.top_p import top_p

__all__ = [
    "LogitsTransform",
    "chain",
    "min_p",
    "named_chain",
    "repetition_penalty",
    "stateless",
    "temperature",
    "top_k",
    "top_p",
]
