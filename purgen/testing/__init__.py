"""The contract suite: checks of purity, independence and compilation, for pieces of your own too."""

from purgen.testing.decoders import check_decoder
from purgen.testing.examples import example_view, toy_model
from purgen.testing.laws import CompileCounter
from purgen.testing.pieces import check_stop_rule, check_transform

__all__ = [
    "CompileCounter",
    "check_decoder",
    "check_stop_rule",
    "check_transform",
    "example_view",
    "toy_model",
]
