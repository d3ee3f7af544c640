"""Text generation as pure functions.

Everything that a generation is (tokens, cache, positions, stop flags, random keys) is one immutable
pytree; a decoding strategy is a pair of pure functions over it, `init` and `step`.
"""

from purgen import control, random, stop_rules, strategies, testing, transforms
from purgen.buckets import Buckets, PerSlot
from purgen.cache import Cache, CacheLayout
from purgen.decoder import Decoder, GenerationOutput, StepInfo
from purgen.explain import Explanation, explain
from purgen.exported import export, load_program
from purgen.logits import entropy, log_softmax
from purgen.loop import generate, resume, stream
from purgen.many import Finished, generate_many
from purgen.model import Model, ModelOutput
from purgen.prefill import chunked_prefill
from purgen.programs import keep_many_programs
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
from purgen.state import GenerationState, StopReason
from purgen.stop_rules import *  # noqa: F403 (one line a piece, in the folder's own list)
from purgen.strategies import *  # noqa: F403
from purgen.transforms import *  # noqa: F403
from purgen.verbs import append, begin, extend, feed, finish, warp
from purgen.view import TokenView, last_token, real_slots, step_key
from purgen.when import when

__all__ = [
    "Buckets",
    "Cache",
    "CacheLayout",
    "Decoder",
    "Explanation",
    "Finished",
    "GenerationOutput",
    "GenerationState",
    "Model",
    "ModelOutput",
    "PerSlot",
    "Prompt",
    "Recorder",
    "StepInfo",
    "StopReason",
    "TokenView",
    "append",
    "begin",
    "chunked_prefill",
    "control",
    "entropy",
    "explain",
    "export",
    "extend",
    "feed",
    "finish",
    "generate",
    "generate_many",
    "last_token",
    "load_program",
    "log_softmax",
    "pytree_dataclass",
    "random",
    "real_slots",
    "repeat_rows",
    "replace",
    "resume",
    "select_rows",
    "static_field",
    "step_key",
    "stream",
    "testing",
    "top_logprobs",
    "top_tokens",
    "warp",
    "when",
    "where_rows",
]
__all__ += stop_rules.__all__
__all__ += strategies.__all__
__all__ += transforms.__all__

keep_many_programs()
