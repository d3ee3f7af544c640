"""The seam of strategies: three pure functions, and what they return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from purgen.pytree import pytree_dataclass
from purgen.state import GenerationState, StopReason

__all__ = ["Decoder", "GenerationOutput", "StepInfo"]


@pytree_dataclass
class StepInfo:
    """What a person may want to know of a step; the next step does not need it.

    In a row that had stopped before, `token` is the pad id and everything else 0.

    Attributes:
        token: int64 [B], the token appended.
        num_tokens: int64 [B], how many tokens the row gained: 0 or 1, more when speculating.
        logprob: float32 [B], log-probability of the token under the distribution it was chosen from,
            in nats.
        entropy: float32 [B], entropy of that distribution, in nats.
        model_logprob: float32 [B], log-probability under the model's own logits.
        recorded: dict of [B, …], what was asked for by `record=`.
    """

    token: Tensor  # int64 [B]
    num_tokens: Tensor  # int64 [B]
    logprob: Tensor  # float32 [B]
    entropy: Tensor  # float32 [B]
    model_logprob: Tensor  # float32 [B]
    recorded: dict[str, Tensor]  # [B, …]


@pytree_dataclass
class GenerationOutput:
    """The result of a generation.

    Attributes:
        sequences: int64 [B, P + N], the prompt as it was given, then the new tokens, pad after the
            end; N is the longest row's count.
        new_tokens: int64 [B, N], pad after the end.
        num_new_tokens: int64 [B].
        stop_reason: int64 [B], codes of `StopReason`; 0 in a row that could go on.
        scores: float32 [B], the score by which a search ranked the rows, or None.
        record: dict of [B, N] (or [B, N, …]) tensors, 0 after the end of a row.
        state: the final `GenerationState`, from which a generation may go on.
    """

    sequences: Tensor  # int64 [B, P + N]
    new_tokens: Tensor  # int64 [B, N]
    num_new_tokens: Tensor  # int64 [B]
    stop_reason: Tensor  # int64 [B]
    scores: Any  # float32 [B] or None
    record: dict[str, Tensor]  # [B, N]
    state: GenerationState

    @property
    def stop_reasons(self) -> list[str]:
        """The reasons by name, such as "EOS"; a code of your own as "code 107"."""
        known = {int(reason): reason.name for reason in StopReason}
        return [known.get(code, f"code {code}") for code in self.stop_reason.tolist()]


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoding strategy made concrete.

    Attributes:
        init: `init(params, prompt, *, rng_key=None, max_new_tokens) -> GenerationState`; checks the
            arguments, allocates, prefills. One that also takes `buckets` (and hands it to
            `begin`) lets a loop begin with a short cache and grow it.
        step: `step(params, state) -> (GenerationState, StepInfo)`; pure, traces as one graph.
        finish: `finish(state) -> GenerationOutput`.
        lockstep: bool, whether a step gives each running row exactly one token, or ends it, and feeds
            each cache once. A loop may then write the caches in place, all rows at one slot.
        tokens_per_step: int, the most tokens that a row feeds or gains in a step.
    """

    init: Callable[..., GenerationState]
    step: Callable[[Any, GenerationState], tuple[GenerationState, StepInfo]]
    finish: Callable[[GenerationState], GenerationOutput]
    lockstep: bool = False
    tokens_per_step: int = 1
