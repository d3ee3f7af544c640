"""Decoding strategies: one a file."""

from purgen.strategies.greedy import greedy
from purgen.strategies.sample import sample
from purgen.strategies.token_strategy import default_stop, token_strategy

__all__ = ["default_stop", "greedy", "sample", "token_strategy"]
