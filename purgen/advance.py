"""What one turn of a loop does: a step, a few steps in a row, or steps until all rows have stopped.

All work on a `Run`. The in-place ones end by writing the new leaves into the old: the compiler then
updates a cache where it lies, without a copy of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


def advance_while(step: Step, params: Any, run: Run, until: Tensor) -> None:
    """Makes steps until all rows have stopped, in one program, in place.

    The buffers are closed over and written in the body of the loop. Carried, they would be copied in
    each turn; what is carried is the count and whether a row runs.

    Args:
        step: `Decoder.step`.
        params: the parameters.
        run: with room for the steps; its buffers are written.
        until: int64 [], the loop ends when `run.made` is so many.
    """

    def goes_on(made: Tensor, live: Tensor) -> Tensor:
        return live & (made < until)

    def body(made: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        after = advance(step, params, replace(run, made=made))[0]
        _write_back(run, replace(after, made=run.made))
        return made + 1, ~after.state.stopped.all()

    made = while_loop(goes_on, body, (run.made.clone(), ~run.state.stopped.all()))[0]
    run.made.copy_(made)


def complete(step: Step, params: Any, state: GenerationState) -> GenerationState:
    """Generates until all rows have stopped: a pure function that is one program, for export.

    What a step changes is carried from turn to turn. Written in place, as in `advance_while`, it
    would be the program's own tensors, and the exporter's passes, which see no write in the body of a
    loop, would give equal ones the same memory.

    Args:
        step: `Decoder.step`.
        params: the parameters.
        state: a state whose caches have room for its whole budget.

    Returns:
        The final state.
    """
    leaves, structure = torch_pytree.tree_flatten(state)
    large = _is_large(state)
    once = torch_pytree.tree_leaves(step(params, state)[0])  # only tells what moves: no code
    moving = [index for index, leaf in enumerate(leaves) if once[index] is not leaf]

    def with_moved(values: Sequence[Tensor]) -> GenerationState:
        new = list(leaves)
        for index, value in zip(moving, values, strict=True):
            new[index] = value
        return torch_pytree.tree_unflatten(new, structure)

    def goes_on(*values: Tensor) -> Tensor:
        return ~with_moved(values).stopped.all()

    def body(*values: Tensor) -> tuple[Tensor, ...]:
        new = torch_pytree.tree_leaves(step(params, with_moved(values))[0])
        # A small one may be an old one, or a view of it, which the loop refuses.
        return tuple([_own(new[index], large[index]) for index in moving])

    begin = tuple([leaves[index].contiguous().clone() for index in moving])
    return with_moved(while_loop(goes_on, body, begin))


def _own(value: Tensor, large: bool) -> Tensor:
    return value.contiguous() if large else value.contiguous().clone()


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


def _is_large(tree: Any) -> list[bool]:
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

    return torch_pytree.tree_leaves(torch_pytree.tree_map(mark, tree, is_leaf=_has_slots))


def _has_slots(value: Any) -> bool:
    return isinstance(value, GenerationState | Cache | PerSlot)
