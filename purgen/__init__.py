"""Text generation as pure functions.

Everything that a generation is (tokens, cache, positions, stop flags, random keys) is one immutable
pytree; a decoding strategy is a pair of pure functions over it, `init` and `step`.
"""

from purgen import random, testing
from purgen.decoder import Decoder, GenerationOutput, StepInfo
from purgen.logits import entropy, log_softmax
from purgen.loop import generate, resume, stream
from purgen.model import Model, ModelOutput
from purgen.prompt import Prompt
from purgen.pytree import (
    pytree_dataclass,
    repeat_rows,
    replace,
    select_rows,
    static_field,
    where_rows,
)
from purgen.record import Recorder, top_logprobs, top_tokens
from purgen.state import Cache, GenerationState, StopReason
from purgen.stop_rules import StopRule, all_of, any_of, eos, max_length, max_new_tokens
from purgen.strategies import greedy, sample, token_strategy
from purgen.transforms import (
    LogitsTransform,
    chain,
    min_p,
    named_chain,
    repetition_penalty,
    stateless,
    temperature,
    top_k,
    top_p,
)
from purgen.verbs import append, begin, feed, finish, step_key
from purgen.view import TokenView, last_token, real_slots
from purgen.when import when

__all__ = [
    "Cache",
    "Decoder",
    "GenerationOutput",
    "GenerationState",
    "LogitsTransform",
    "Model",
    "ModelOutput",
    "Prompt",
    "Recorder",
    "StepInfo",
    "StopReason",
    "StopRule",
    "TokenView",
    "all_of",
    "any_of",
    "append",
    "begin",
    "chain",
    "entropy",
    "eos",
    "feed",
    "finish",
    "generate",
    "greedy",
    "last_token",
    "log_softmax",
    "max_length",
    "max_new_tokens",
    "min_p",
    "named_chain",
    "pytree_dataclass",
    "random",
    "real_slots",
    "repeat_rows",
    "repetition_penalty",
    "replace",
    "resume",
    "sample",
    "select_rows",
    "stateless",
    "static_field",
    "step_key",
    "stop_rules",
    "stream",
    "temperature",
    "testing",
    "token_strategy",
    "top_k",
    "top_logprobs",
    "top_p",
    "top_tokens",
    "when",
    "where_rows",
]
