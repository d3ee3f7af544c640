"""The one loop that drives every strategy, whatever a turn of it is.

A turn takes a generation some steps further: one step in Python, one compiled step, a few in one graph,
or as many as there is room for in one program. Between two turns the driver looks at the stop flags,
stamps the time, moves the bar, and gives the buffers more slots when they are full.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from purgen.advance import Run, advance
from purgen.buckets import Buckets
from purgen.buffers import caches_apart, fitted, in_lockstep, owned, recording, storages
from purgen.cache import caches_of
from purgen.decoder import Decoder, StepInfo
from purgen.donation import donating
from purgen.program import Bound, Compiler
from purgen.programs import PROGRAMS
from purgen.pytree import replace
from purgen.state import GenerationState

__all__ = ["Way", "drive", "way_of"]

Turn = Callable[[Run, int, Tensor], tuple[Run, StepInfo | None]]

CHUNK = 1  # steps of a graph of the compiled loop: each more takes as long again to compile

# A loop that may make any number of steps in a turn begins with a few and goes on with as many as take
# so long: the clock of `purgen.max_time`, the bar and Ctrl-C are as coarse as that.
FIRST_STEPS, SECONDS = 8, 0.1


@dataclasses.dataclass(frozen=True)
class Way:
    """What a turn of a loop is.

    Attributes:
        prepare: `prepare(params, run) -> turn`, and `turn(run, until, elapsed) -> (run, info or None)`
            serves until the run is given other buffers.
        steps: int, how many steps a turn makes; 0: it goes on until `until` are made.
        owns: bool, whether it writes the buffers of the run, so that they must be the loop's own.
        streams: bool, whether each step is handed out, and no record is kept.
        chunk: int or None, the most steps of a turn.
    """

    prepare: Callable[[Any, Run], Turn]
    steps: int
    owns: bool
    streams: bool
    chunk: int | None = None


def way_of(
    decoder: Decoder,
    loop: str,
    *,
    streams: bool,
    chunk: int | None,
    compiler: Compiler,
    announce: bool,
) -> Way:
    """Returns what a turn is.

    Args:
        decoder: the strategy.
        loop: "eager", "compiled" or "while".
        streams: whether each state is handed out, and so must be a value of its own.
        chunk: the most steps of a turn, or None.
        compiler: how programs are compiled.
        announce: whether to say on stderr that one is.

    Returns:
        A `Way`.
    """
    if loop == "eager":
        owns = decoder.lockstep and not streams

        def in_python(params: Any, run: Run) -> Turn:
            return lambda run, until, elapsed: step_in_python(
                decoder, params, _stamped(run, elapsed), owns=owns
            )

        return Way(in_python, 1, owns, streams)

    def prepare_step(params: Any, run: Run) -> Turn:
        program = PROGRAMS.find("step", decoder.step, params, run, compiler=compiler)
        return lambda run, until, elapsed: program(
            decoder.step, params, _stamped(run, elapsed), announce=announce
        )

    def prepare(params: Any, run: Run) -> Turn:
        goal = torch.zeros_like(run.made)
        rest = (goal,) if loop == "while" else (size,)
        program = PROGRAMS.find(kind, decoder.step, params, run, *rest, compiler=compiler)
        bound = Bound(program, decoder.step, params, run, *rest, announce=announce)

        def turn(same: Run, until: int, elapsed: Tensor) -> tuple[Run, None]:
            goal.fill_(until)
            run.state.elapsed.copy_(elapsed)
            bound()
            return run, None

        return turn

    if streams:
        return Way(prepare_step, 1, False, True)
    size = chunk or CHUNK
    kind = "while" if loop == "while" else "chunk"
    return Way(prepare, 0 if loop == "while" else size, True, False, chunk)


def _stamped(run: Run, elapsed: Tensor) -> Run:
    return replace(run, state=replace(run.state, elapsed=elapsed))


def step_in_python(decoder: Decoder, params: Any, run: Run, *, owns: bool) -> tuple[Run, StepInfo]:
    """Makes one step, and writes the caches in place where they are the loop's own."""
    if not owns or not decoder.lockstep:
        return advance(decoder.step, params, run)
    layers = [cache.layers for cache in caches_of(run.state) if cache.layout is not None]
    with donating(layers, run.record):
        return advance(decoder.step, params, run)


def drive(
    way: Way,
    decoder: Decoder,
    params: Any,
    state: GenerationState,
    *,
    buckets: Buckets,
    fresh: bool,
    progress: bool,
) -> Iterator[tuple[Run, StepInfo | None]]:
    """Drives a generation until every row has stopped.

    Args:
        way: what a turn is.
        decoder: the strategy.
        params: the parameters.
        state: where to begin.
        buckets: how buffers are lengthened.
        fresh: whether nobody else holds the caches of `state`.
        progress: whether to show a bar.

    Yields:
        The run after each turn, and the info of its step where it streams.

    Raises:
        ValueError: a row runs on although its slots are full.
    """
    total = _budget(state)
    least, size = max(way.steps, 1), way.chunk or FIRST_STEPS
    theirs = storages(caches_apart(state) if fresh else state)
    state = replace(state, lockstep=decoder.lockstep and in_lockstep(state))
    run = Run(state=state, record={}, made=torch.zeros_like(state.length[0]))
    began, before, filled = time.monotonic(), state.elapsed, state.length.sum()
    made, room = 0, 0
    turn: Turn | None = None
    info: StepInfo | None
    with tqdm(total=total, unit="token", disable=not progress) as bar, torch.no_grad():
        while not bool(run.state.stopped.all()):
            if room < least:
                state, room = fitted(
                    run.state, buckets, steps=least, tokens_per_step=decoder.tokens_per_step
                )
                run, turn = replace(run, state=state), None
                run = owned(run, theirs) if way.owns and made == 0 else run
            now = time.monotonic()
            elapsed = before + (now - began)
            if run.state.record and not run.record and not way.streams:
                # The first step shows what form the records have.
                run, first = step_in_python(decoder, params, _stamped(run, elapsed), owns=way.owns)
                run, info, steps = recording(run, first.recorded), first, 1
                run = owned(run, storages(caches_apart(run.state))) if way.owns else run
            else:
                turn = turn or way.prepare(params, run)
                run, info = turn(run, made + min(room, size), elapsed)
                steps = way.steps or int(run.made) - made
                if way.steps == 0 and way.chunk is None:
                    size = max(1, int(steps * SECONDS / (time.monotonic() - now)))
            made, room = made + steps, room - steps
            if progress:
                bar.update(int(run.state.length.sum() - filled) - bar.n)
            yield run, info


def _budget(state: GenerationState) -> int:
    """Returns how many tokens the running rows may gain; ValueError if one can gain none."""
    left = (state.limit - state.length) * ~state.stopped
    full = (~state.stopped & (left < 1)).nonzero()[:, 0].tolist()
    if full:
        raise ValueError(
            f"state: row {full[0]} runs on, and its {int(state.limit[full[0]])} slots are full; begin "
            "with a larger max_new_tokens"
        )
    return int(left.sum())
