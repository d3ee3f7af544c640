"""The one loop that drives every strategy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from purgen.decoder import Decoder, GenerationOutput, StepInfo
from purgen.prompt import Prompt
from purgen.pytree import replace
from purgen.record import Recorder, resolve_record
from purgen.state import GenerationState

__all__ = ["generate", "resume", "stream"]

LOOPS = ("eager", "compiled")

Record = str | Recorder | Iterable[str | Recorder]
Step = Callable[[Any, GenerationState], tuple[GenerationState, StepInfo]]


def generate(
    decoder: Decoder,
    params: Any,
    prompt: Prompt,
    *,
    rng_key: Tensor | None = None,
    max_new_tokens: int,
    loop: str = "eager",
    record: Record = (),
    progress: bool = False,
) -> GenerationOutput:
    """Generates until every row has stopped.

    Args:
        decoder: the strategy.
        params: the model's parameters (a dict by argument name for a strategy over several models).
        prompt: B prompts.
        rng_key: int64 [2], or [B, 2] for a key a row; required where the strategy draws.
        max_new_tokens: the most new tokens of a row, at least 1.
        loop: "eager" runs the step in Python, the reference; "compiled" runs it as one compiled
            graph a step. Both give the same tokens.
        record: what to keep of each step, by name ("logprob", "entropy", "model_logprob",
            "model_entropy", "rank", "top_logprobs", "top_tokens", "token") or as `Recorder`s.
        progress: whether to show a bar (on stderr) with the tokens per second.

    Returns:
        A `GenerationOutput`; its `record` holds a tensor [B, N] (or [B, N, …]) a name.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a wrong value; the message names it. Before any work is done.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> prompt = purgen.Prompt.from_lists([[1, 2], [3]], pad_token_id=0)
        >>> out = purgen.generate(
        ...     purgen.greedy(model), model.params, prompt, max_new_tokens=5, record=["logprob"]
        ... )
        >>> out.record["logprob"].shape, out.stop_reasons
        (torch.Size([2, 5]), ['MAX_NEW_TOKENS', 'MAX_NEW_TOKENS'])
    """
    step, recorders = _step_of(decoder, loop), resolve_record(record)
    state = _begin(decoder, params, prompt, rng_key, max_new_tokens, recorders)
    output = _complete(decoder, _drive(step, params, state, progress), state)
    # The prompt as it was given, pads included: rows may be several for each prompt.
    given = prompt.tokens.long().repeat_interleave(
        len(output.sequences) // len(prompt.tokens), dim=0
    )
    sequences = torch.cat([given.to(output.sequences.device), output.new_tokens], dim=1)
    return replace(output, sequences=sequences)


def stream(
    decoder: Decoder,
    params: Any,
    prompt: Prompt,
    *,
    rng_key: Tensor | None = None,
    max_new_tokens: int,
    loop: str = "eager",
    record: Record = (),
    progress: bool = False,
) -> Iterator[tuple[GenerationState, StepInfo]]:
    """Generates and yields `(state, info)` after each step.

    Every state is a value: keep any of them, go on from it with `resume`, or stop looking.

    Args:
        decoder: see `generate`, like all others.
        params: the model's parameters.
        prompt: B prompts.
        rng_key: int64 [2] or [B, 2].
        max_new_tokens: the most new tokens of a row.
        loop: "eager" or "compiled".
        record: what `info.recorded` holds.
        progress: whether to show a bar.

    Returns:
        An iterator. The prompt is read, and bad arguments are refused, when it is made.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> prompt = purgen.Prompt.from_lists([[1, 2], [3]], pad_token_id=0)
        >>> steps = purgen.stream(purgen.greedy(model), model.params, prompt, max_new_tokens=3)
        >>> [int(info.num_tokens.sum()) for state, info in steps]
        [2, 2, 2]
    """
    step, recorders = _step_of(decoder, loop), resolve_record(record)
    state = _begin(decoder, params, prompt, rng_key, max_new_tokens, recorders)
    return _drive(step, params, state, progress)


def resume(
    decoder: Decoder,
    params: Any,
    state: GenerationState,
    *,
    loop: str = "eager",
    record: Record = (),
    progress: bool = False,
) -> GenerationOutput:
    """Goes on from a state until every row has stopped.

    Args:
        decoder: the strategy that made the state, or another with the same kinds of state.
        params: the model's parameters.
        state: any state of a generation.
        loop: "eager" or "compiled".
        record: what to keep of each step from here on.
        progress: whether to show a bar.

    Returns:
        A `GenerationOutput`; its tokens are all tokens, its `record` begins here.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> prompt, decoder = (
        ...     purgen.Prompt.from_lists([[1, 2]], pad_token_id=0),
        ...     purgen.greedy(model),
        ... )
        >>> states = purgen.stream(decoder, model.params, prompt, max_new_tokens=6)
        >>> second = [next(states) for _ in range(2)][-1][0]
        >>> whole = purgen.generate(decoder, model.params, prompt, max_new_tokens=6)
        >>> rest = purgen.resume(decoder, model.params, second)
        >>> bool((whole.sequences == rest.sequences).all())
        True
    """
    step = _step_of(decoder, loop)
    state = replace(state, record=resolve_record(record))
    return _complete(decoder, _drive(step, params, state, progress), state)


def _step_of(decoder: Decoder, loop: str) -> Step:
    if not isinstance(decoder, Decoder):
        raise TypeError(
            f"decoder must be a purgen.Decoder, such as purgen.greedy(model), not "
            f"{type(decoder).__name__}"
        )
    if loop not in LOOPS:
        raise ValueError(f"loop must be one of {LOOPS}, not {loop!r}")
    if loop == "compiled":
        return torch.compile(decoder.step, fullgraph=True, dynamic=False)
    return decoder.step


def _begin(
    decoder: Decoder,
    params: Any,
    prompt: Prompt,
    rng_key: Tensor | None,
    max_new_tokens: int,
    recorders: tuple[Recorder, ...],
) -> GenerationState:
    with torch.no_grad():
        state = decoder.init(params, prompt, rng_key=rng_key, max_new_tokens=max_new_tokens)
    return replace(state, record=recorders)


def _drive(
    step: Step, params: Any, state: GenerationState, progress: bool
) -> Iterator[tuple[GenerationState, StepInfo]]:
    room = (state.limit - state.length) * ~state.stopped
    full = (~state.stopped & (room < 1)).nonzero()[:, 0].tolist()
    if full:
        raise ValueError(
            f"state: row {full[0]} runs on, and its {int(state.limit[full[0]])} slots are full; begin "
            "with a larger max_new_tokens"
        )
    with tqdm(total=int(room.sum()), unit="token", disable=not progress) as bar:
        began, before = time.monotonic(), state.elapsed
        while not bool(state.stopped.all()):
            state = replace(state, elapsed=before + (time.monotonic() - began))
            with torch.no_grad():
                state, info = step(params, state)
            if progress:
                bar.update(int(info.num_tokens.sum()))
            yield state, info


def _complete(
    decoder: Decoder, steps: Iterator[tuple[GenerationState, StepInfo]], state: GenerationState
) -> GenerationOutput:
    recorded: dict[str, list[Tensor]] = {recorder.name: [] for recorder in state.record}
    for last, info in steps:
        state = last
        for name, value in info.recorded.items():
            recorded[name].append(value)
    output = decoder.finish(state)
    record = {name: torch.stack(values, dim=1) for name, values in recorded.items() if values}
    return replace(output, record=record)
