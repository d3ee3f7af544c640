"""Decoding strategies: one a file."""

from purgen.strategies.greedy import greedy
from purgen.strategies.guided import guided
from purgen.strategies.sample import sample
from purgen.strategies.token_strategy import token_strategy

__all__ = ["greedy", "guided", "sample", "token_strategy"]
