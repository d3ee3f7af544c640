"""What a person calls: `generate`, `stream`, `resume`, each a use of the one driver."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from purgen.advance import Run
from purgen.auto import device_of, pick_loop
from purgen.buckets import Buckets, parts_of
from purgen.buffers import handed_out
from purgen.decoder import Decoder, GenerationOutput, StepInfo
from purgen.driver import Way, drive, way_of
from purgen.program import Compiler
from purgen.prompt import Prompt
from purgen.pytree import replace
from purgen.record import Recorder, resolve_record
from purgen.state import GenerationState

__all__ = [
    "DEFAULT",
    "Plan",
    "Record",
    "begin_run",
    "drive_run",
    "generate",
    "plan_of",
    "resume",
    "stream",
]

Record = str | Recorder | Iterable[str | Recorder]

DEFAULT = Buckets()


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
    buckets: Buckets | None = DEFAULT,
    chunk: int | None = None,
    backend: str = "inductor",
    freeze: bool = False,
) -> GenerationOutput:
    """Generates until every row has stopped.

    Args:
        decoder: the strategy.
        params: the model's parameters (a dict by argument name for a strategy over several models).
        prompt: B prompts.
        rng_key: int64 [2], or [B, 2] for a key a row; required where the strategy draws.
        max_new_tokens: the most new tokens of a row, at least 1.
        loop: "eager" runs the step in Python, the reference; "compiled" runs a few steps as one
            compiled graph; "while" runs all of them as one program, which ends when every row has
            stopped; "auto" picks by device and size and says so (logger "purgen"). All give the same
            tokens.
        record: what to keep of each step, by name ("logprob", "entropy", "model_logprob",
            "model_entropy", "rank", "top_logprobs", "top_tokens", "token") or as `Recorder`s.
        progress: whether to show a bar (on stderr) with the tokens per second, and to say when
            something is compiled.
        buckets: how buffers are lengthened as they fill, and how lengths share programs; None: they
            have room for the whole budget at once, and other lengths need other programs.
        chunk: the most steps between two looks at the stop flags and the clock. None: 1 in "eager",
            1 in "compiled" too, since each more takes as long again to compile; in "while" as many
            as take 0.1 s, after the first 8.
        backend: what `torch.compile` makes programs with.
        freeze: whether the parameters are built into the programs of a compiled loop as constants. On
            a CPU the compiler then lays them out as the processor likes, and finds for each product of
            matrices, at this number of rows, by measuring whether torch's or one of its own is the
            faster. But compiling takes half as long again, other parameters need other programs, which
            keep both layouts in memory, and what is written into `params` later in place makes a new
            program. It pays in "compiled": in the body of "while" torch lays out nothing anew. Eagerly
            it changes nothing.

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
    plan = plan_of(
        decoder,
        params,
        loop,
        buckets,
        chunk,
        backend,
        progress,
        steps=max_new_tokens,
        freeze=freeze,
    )
    recorders = resolve_record(record)
    state = begin_run(plan, params, prompt, rng_key, max_new_tokens, recorders)
    output = _complete(plan, params, state, _filled(state), fresh=True)
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
    buckets: Buckets | None = DEFAULT,
    chunk: int | None = None,
    backend: str = "inductor",
) -> Iterator[tuple[GenerationState, StepInfo]]:
    """Generates and yields `(state, info)` after each step.

    Every state is a value: keep any of them, go on from it with `resume`, or stop looking.

    Args:
        decoder: see `generate`, like all others.
        params: the model's parameters.
        prompt: B prompts.
        rng_key: int64 [2] or [B, 2].
        max_new_tokens: the most new tokens of a row.
        loop: "eager", "compiled" (a step is a graph) or "auto".
        record: what `info.recorded` holds.
        progress: whether to show a bar.
        buckets: see `generate`.
        chunk: None or 1, since each step is shown.
        backend: see `generate`.

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
    plan = plan_of(
        decoder, params, loop, buckets, chunk, backend, progress, steps=max_new_tokens, streams=True
    )
    state = begin_run(plan, params, prompt, rng_key, max_new_tokens, resolve_record(record))
    return _handed_out(drive_run(plan, params, state, fresh=True), _filled(state))


def resume(
    decoder: Decoder,
    params: Any,
    state: GenerationState,
    *,
    loop: str = "eager",
    record: Record = (),
    progress: bool = False,
    buckets: Buckets | None = DEFAULT,
    chunk: int | None = None,
    backend: str = "inductor",
    freeze: bool = False,
) -> GenerationOutput:
    """Goes on from a state until every row has stopped.

    Args:
        decoder: the strategy that made the state, or another with the same kinds of state.
        params: the model's parameters.
        state: any state of a generation.
        loop: see `generate`, like all that follow.
        record: what to keep of each step from here on.
        progress: whether to show a bar.
        buckets: how buffers are lengthened.
        chunk: the most steps between two looks.
        backend: what `torch.compile` makes programs with.
        freeze: whether the parameters are built into the programs.

    Returns:
        A `GenerationOutput`; its tokens are all tokens, its `record` begins here. `state` is not
        changed, and not kept.

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
    steps = int((state.limit - state.length).clamp(min=0).max())
    plan = plan_of(
        decoder, params, loop, buckets, chunk, backend, progress, steps=steps, freeze=freeze
    )
    state = replace(state, record=resolve_record(record))
    widths = [part.tokens.shape[1] for part in parts_of(state)]
    return _complete(plan, params, state, widths, fresh=False)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a generation is run."""

    decoder: Decoder
    way: Way
    buckets: Buckets
    progress: bool


def plan_of(
    decoder: Decoder,
    params: Any,
    loop: str,
    buckets: Buckets | None,
    chunk: int | None,
    backend: str,
    progress: bool,
    *,
    steps: int,
    streams: bool = False,
    freeze: bool = False,
) -> Plan:
    """Checks how a generation is to be run."""
    if not isinstance(decoder, Decoder):
        raise TypeError(
            f"decoder must be a purgen.Decoder, such as purgen.greedy(model), not "
            f"{type(decoder).__name__}"
        )
    if buckets is not None and not isinstance(buckets, Buckets):
        raise TypeError(
            f"buckets must be a purgen.Buckets or None, not {type(buckets).__name__} {buckets!r}"
        )
    whole = isinstance(chunk, int) and not isinstance(chunk, bool)
    if chunk is not None and (not whole or chunk < 1):
        raise ValueError(f"chunk must be an int of at least 1 or None, not {chunk!r}")
    if streams and chunk not in (None, 1):
        raise ValueError(f"chunk must be 1 or None, not {chunk}: stream hands out each state")
    picked, _ = pick_loop(loop, params, steps=steps, streams=streams, freeze=freeze)
    buckets = Buckets(grow=False, exact=True) if buckets is None else buckets
    if picked == "eager":
        buckets = dataclasses.replace(buckets, exact=True)
    way = way_of(
        decoder,
        picked,
        streams=streams,
        chunk=chunk,
        compiler=Compiler.of(backend, device_of(params), freeze=freeze),
        announce=progress,
    )
    return Plan(decoder, way, buckets, progress)


def begin_run(
    plan: Plan,
    params: Any,
    prompt: Prompt,
    rng_key: Tensor | None,
    max_new_tokens: int,
    recorders: tuple[Recorder, ...],
) -> GenerationState:
    """Returns the state before the first step, with buffers as the plan wants them."""
    init = plan.decoder.init
    takes_buckets = "buckets" in inspect.signature(init).parameters
    options = {"buckets": plan.buckets} if takes_buckets else {}
    with torch.no_grad():
        state = init(params, prompt, rng_key=rng_key, max_new_tokens=max_new_tokens, **options)
    return replace(state, record=recorders)


def drive_run(
    plan: Plan, params: Any, state: GenerationState, *, fresh: bool
) -> Iterator[tuple[Run, StepInfo | None]]:
    """Drives a generation as planned (`purgen.driver.drive`)."""
    return drive(
        plan.way,
        plan.decoder,
        params,
        state,
        buckets=plan.buckets,
        fresh=fresh,
        progress=plan.progress,
    )


def _complete(
    plan: Plan, params: Any, state: GenerationState, widths: list[int], *, fresh: bool
) -> GenerationOutput:
    record: dict[str, Tensor] = {}
    run: Run | None = None
    for run, _ in drive_run(plan, params, state, fresh=fresh):
        state = run.state
    if run is not None:
        made = int(run.made)
        record = {name: kept.values[:, :made].contiguous() for name, kept in run.record.items()}
    output = plan.decoder.finish(handed_out(state, widths))
    return replace(output, record=record)


def _handed_out(
    runs: Iterator[tuple[Run, StepInfo | None]], widths: list[int]
) -> Iterator[tuple[GenerationState, StepInfo]]:
    for run, info in runs:
        assert info is not None
        yield handed_out(run.state, widths), info


def _filled(state: GenerationState) -> list[int]:
    """Returns how many slots of `tokens` can be filled, in a state and each one nested in it."""
    return [int(part.limit.max()) for part in parts_of(state)]
