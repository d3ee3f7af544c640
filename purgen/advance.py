"""Ways to take a generation some steps further: what differs between the loops.

An `Advance` takes a state that its caller gives up and returns one that is further on. `pure` leaves
its argument alone; the others write the buffers that the loop owns, `chunked` and `whole` as one
compiled program each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from purgen.cache import caches_of
from purgen.decoder import StepInfo
from purgen.donation import donating
from purgen.state import GenerationState

__all__ = ["Advance", "Progress", "chunked", "owned", "pure", "whole"]

Step = Callable[[Any, GenerationState], tuple[GenerationState, StepInfo]]


@dataclasses.dataclass(frozen=True)
class Progress:
    """What happened on the way.

    Attributes:
        recorded: dict of [B, S, …], what was asked for by `record=`, S steps or more.
        steps: int64 [] or int, how many steps found a row running.
        info: `StepInfo` of a single step, else None.
    """

    recorded: dict[str, Tensor]
    steps: Tensor | int
    info: StepInfo | None = None


Advance = Callable[[Any, GenerationState], tuple[GenerationState, Progress]]


def pure(step: Step) -> Advance:
    """One step; the state that it began from stays as it was."""

    def advance(params: Any, state: GenerationState) -> tuple[GenerationState, Progress]:
        state, info = step(params, state)
        return state, _one(info)

    return advance


def owned(step: Step) -> Advance:
    """One step in Python that may write the caches in place."""

    def advance(params: Any, state: GenerationState) -> tuple[GenerationState, Progress]:
        with donating(caches_of(state)):
            state, info = step(params, state)
        return state, _one(info)

    return advance


def chunked(step: Step, size: int, run: Callable[..., Any]) -> Advance:
    """`size` steps as one program.

    Args:
        step: a decoder's step.
        size: how many steps; those after all rows have stopped change nothing.
        run: `run(program, *arguments)`, which compiles it.
    """

    def advance(params: Any, state: GenerationState) -> tuple[GenerationState, Progress]:
        recorded, steps = run(_chunk, step, params, state, size)
        return state, Progress(recorded, steps)

    return advance


def whole(step: Step, room: Callable[[GenerationState], int], run: Callable[..., Any]) -> Advance:
    """As many steps as there is room for, until all rows have stopped, as one program.

    Args:
        step: a decoder's step.
        room: how many steps the buffers of a state have room for.
        run: `run(program, *arguments)`, which compiles it.
    """

    def advance(params: Any, state: GenerationState) -> tuple[GenerationState, Progress]:
        most = room(state)
        recorded = _buffers(state, most)
        until = torch.tensor(most, device=state.length.device)
        steps = run(_while, step, params, state, recorded, until)
        return state, Progress(recorded, steps)

    return advance


def _one(info: StepInfo) -> Progress:
    return Progress({name: value[:, None] for name, value in info.recorded.items()}, 1, info)


def _chunk(step: Step, params: Any, state: GenerationState, size: int) -> Any:
    """The program of `chunked`: writes the state that it is given."""
    now, running, recorded = state, [], []
    for _ in range(size):
        running.append((~now.stopped).any())
        now, info = step(params, now)
        recorded.append(info.recorded)
    _write_back(state, now)
    names = recorded[0]
    return (
        {name: torch.stack([each[name] for each in recorded], dim=1) for name in names},
        torch.stack(running).sum(),
    )


def _while(
    step: Step,
    params: Any,
    state: GenerationState,
    recorded: dict[str, Tensor],
    until: Tensor,
) -> Tensor:
    """The program of `whole`: writes the state and the records that it is given.

    Only two numbers are carried through the loop: what a loop carries is copied in each iteration,
    what it closes over can be written in place.
    """
    leaves, spec = tree_flatten(state)

    def going(running: Tensor, steps: Tensor) -> Tensor:
        return running & (steps < until)

    def body(running: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        before = tree_unflatten(leaves, spec)
        after, info = step(params, before)
        for name, buffer in recorded.items():
            buffer.copy_(
                torch.ops.aten.index_put(buffer, [None, steps[None]], info.recorded[name][:, None])
            )
        _write_back(before, after)
        return (~after.stopped).any(), steps + 1

    start = (~state.stopped).any(), torch.zeros_like(until)
    _, steps = while_loop(going, body, start)
    return steps


def _write_back(old: GenerationState, new: GenerationState) -> None:
    """Writes the leaves of `new` into those of `old`: the compiler makes this a write in place."""
    for before, after in zip(tree_leaves(old), tree_leaves(new), strict=True):
        if after is not before:
            before.copy_(after)


def _buffers(state: GenerationState, steps: int) -> dict[str, Tensor]:
    """Returns a buffer [B, steps, …] for each recorder of a state."""
    rows, device = len(state.length), state.length.device
    logits = torch.empty(rows, _ANY_VOCABULARY, device="meta")
    token = torch.empty(rows, dtype=torch.int64, device="meta")
    shapes = {each.name: each.measure(logits, logits, token) for each in state.record}
    return {
        name: torch.zeros(rows, steps, *shape.shape[1:], dtype=shape.dtype, device=device)
        for name, shape in shapes.items()
    }


_ANY_VOCABULARY = 1 << 16  # what is recorded of a step has the same shape whatever it is
