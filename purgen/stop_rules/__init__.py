"""Stop rules: one a file."""

from purgen.stop_rules.base import StopRule
from purgen.stop_rules.combine import all_of, any_of
from purgen.stop_rules.confidence import confidence
from purgen.stop_rules.entropy_above import entropy_above
from purgen.stop_rules.eos import eos
from purgen.stop_rules.max_length import max_length
from purgen.stop_rules.max_new_tokens import max_new_tokens
from purgen.stop_rules.max_time import max_time
from purgen.stop_rules.mean_logprob_below import mean_logprob_below
from purgen.stop_rules.stop_sequences import stop_sequences
from purgen.stop_rules.stop_strings import stop_strings

__all__ = [
    "StopRule",
    "all_of",
    "any_of",
    "confidence",
    "entropy_above",
    "eos",
    "max_length",
    "max_new_tokens",
    "max_time",
    "mean_logprob_below",
    "stop_sequences",
    "stop_strings",
]
