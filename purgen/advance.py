"""What one turn of a loop does: a step, a few steps in a row, or steps until all rows have stopped.

All work on a `Run`. The in-place ones end by writing the new leaves into the old: the compiler then
updates a cache where it lies, without a copy of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from purgen.buckets import PerSlot
from purgen.cache import Cache
from purgen.decoder import StepInfo
from purgen.donation import write
from purgen.pytree import pytree_dataclass, replace
from purgen.state import GenerationState

__all__ = ["Run", "Step", "advance", "advance_many", "advance_while", "complete"]

Step = Callable[[Any, GenerationState], tuple[GenerationState, StepInfo]]


@pytree_dataclass
class Run:
    """A generation in a loop that owns its buffers.

    Attributes:
        state: the generation.
        record: dict of `PerSlot` [B, R, …], a column a step; empty where nothing is kept.
        made: int64 [], how many steps were made with a row running.
    """

    state: GenerationState
    record: dict[str, PerSlot]  # [B, R, …]
    made: Tensor  # int64 []


def advance(step: Step, params: Any, run: Run) -> tuple[Run, StepInfo]:
    """Makes one step and writes its record.

    Args:
        step: `Decoder.step`.
        params: the parameters.
        run: with at least one row that runs, or the step changes nothing.

    Returns:
        `(run, info)`.
    """
    live = ~run.state.stopped.all()
    state, info = step(params, run.state)
    column = run.made[None]
    record = {
        name: replace(kept, values=write(kept.values, [None, column], info.recorded[name][:, None]))
        for name, kept in run.record.items()
    }
    return Run(state=state, record=record, made=run.made + live.long()), info


def advance_many(step: Step, params: Any, run: Run, steps: int) -> None:
    """Makes some steps in one graph, in place; those after the end change nothing.

    Args:
        step: `Decoder.step`.
        params: the parameters.
        run: with room for so many steps; its buffers are written.
        steps: int (static), how many.
    """
    after = run
    for _ in range(steps):
        after, _ = advance(step, params, after)
    _write_back(run, after)


def advance_while(
    step: Step, params: Any, run: Run, until: Tensor, gives: tuple[str, ...] = ()
) -> tuple[Tensor, ...] | None:
    """Makes steps until all rows have stopped, in one program, in place.

    The buffers are closed over and written in the body of the loop. Carried, they would be copied in
    each turn; what is carried is the count and whether a row runs.

    Args:
        step: `Decoder.step`.
        params: the parameters.
        run: with room for the steps; its buffers are written.
        until: int64 [], the loop ends when `run.made` is so many.
        gives: fields of the state that the loop carries besides and that are returned. (An exported
            package of torch 2.13 that reads a buffer after a loop finds what it held before.)

    Returns:
        The fields `gives` of the final state; None if there are none.
    """

    def goes_on(made: Tensor, live: Tensor, *_: Tensor) -> Tensor:
        return live & (made < until)

    def body(made: Tensor, live: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        after = advance(step, params, replace(run, made=made))[0]
        # Copied before the buffers are written: some of these are the buffers.
        given = [getattr(after.state, name).clone() for name in gives]
        live = ~after.state.stopped.all()
        _write_back(run, replace(after, made=run.made))
        return (made + 1, live, *given)

    given = [getattr(run.state, name).clone() for name in gives]
    start = (run.made.clone(), ~run.state.stopped.all(), *given)
    end: tuple[Tensor, ...] = while_loop(goes_on, body, start)
    run.made.copy_(end[0])
    return end[2:] if gives else None


def complete(step: Step, params: Any, state: GenerationState) -> GenerationState:
    """Generates until all rows have stopped: a pure function that is one program.

    Args:
        step: `Decoder.step`.
        params: the parameters.
        state: a state whose caches have room for its whole budget.

    Returns:
        The final state. Its input is unchanged: the buffers are copied once, before the loop.
    """
    leaves, structure = torch_pytree.tree_flatten(state)
    copies = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    made = torch.zeros((), dtype=torch.int64, device=state.length.device)
    run = Run(state=torch_pytree.tree_unflatten(copies, structure), record={}, made=made)
    advance_while(step, params, run, torch.full_like(made, torch.iinfo(torch.int64).max))
    return run.state


def _write_back(run: Run, after: Run) -> None:
    """Writes the leaves of `after` over those of `run`."""
    old, new = torch_pytree.tree_leaves(run), torch_pytree.tree_leaves(after)
    # A small leaf may be another old one under a new name, or a view of it: all are copied before
    # any is written. What is large is new, or stays where it is.
    new = [
        value if value is kept or large or not isinstance(value, Tensor) else value.clone()
        for value, kept, large in zip(new, old, _is_large(run), strict=True)
    ]
    for value, kept in zip(new, old, strict=True):
        if value is not kept and isinstance(value, Tensor):
            kept.copy_(value)


def _is_large(run: Run) -> list[bool]:
    """Tells of each leaf whether it is of a kind that a step writes some slots of."""

    def mark(value: Any) -> Any:
        if isinstance(value, GenerationState):
            extra = torch_pytree.tree_map(mark, value.extra, is_leaf=_has_slots)
            rest = torch_pytree.tree_map(lambda _: False, replace(value, extra=()))
            cache = torch_pytree.tree_map(lambda _: True, value.cache)
            return replace(rest, tokens=True, cache=cache, extra=extra)
        if isinstance(value, Cache | PerSlot):
            return torch_pytree.tree_map(lambda _: True, value)
        return False

    return torch_pytree.tree_leaves(torch_pytree.tree_map(mark, run, is_leaf=_has_slots))


def _has_slots(value: Any) -> bool:
    return isinstance(value, GenerationState | Cache | PerSlot)
