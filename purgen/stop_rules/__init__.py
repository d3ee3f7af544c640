"""Stop rules: one a file."""

from purgen.stop_rules.base import StopRule
from purgen.stop_rules.combine import all_of, any_of
from purgen.stop_rules.eos import eos
from purgen.stop_rules.max_length import max_length
from purgen.stop_rules.max_new_tokens import max_new_tokens

__all__ = ["StopRule", "all_of", "any_of", "eos", "max_length", "max_new_tokens"]
