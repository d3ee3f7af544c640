"""What a loop does to the buffers of a generation before it steps, and when they are full."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

from purgen.advance import Run
from purgen.buckets import Buckets, PerSlot, parts_of, room_of, with_slots
from purgen.cache import Cache, caches_of
from purgen.pytree import replace
from purgen.state import GenerationState

__all__ = ["fitted", "handed_out", "in_lockstep", "owned", "recording", "storages"]

UNBOUNDED = 1 << 62


def fitted(
    state: GenerationState, buckets: Buckets, *, steps: int, tokens_per_step: int
) -> tuple[GenerationState, int]:
    """Gives a generation slots for some steps more.

    Args:
        state: the generation, with a row that runs.
        buckets: how many slots they get.
        steps: int, how many steps there must be room for.
        tokens_per_step: int, see `Decoder`.

    Returns:
        `(state, room)`: how many steps there is room for now; where a row cannot outgrow its slots
        before its limit, more than there will be.
    """
    # All generations in a state get slots for the longest: fewer sizes, fewer programs.
    filled = max(_longest(part) for part in parts_of(state)) + steps * tokens_per_step

    def slots(part: GenerationState) -> tuple[int, int]:
        total = _limit(part)
        width = max(buckets.fit_tokens(total), part.tokens.shape[1])
        return width, buckets.fit_cache(filled, total)

    state = with_slots(state, slots)
    rooms = []
    for part in parts_of(state):
        room = room_of(part)
        if room is not None and room < _limit(part):
            rooms.append((room - _longest(part)) // tokens_per_step)
    return state, min(rooms, default=UNBOUNDED)


def handed_out(state: GenerationState, widths: list[int]) -> GenerationState:
    """Returns a state as the eager loop would give it, with `tokens` no wider than they can be filled.

    Args:
        state: a state in a loop.
        widths: the slots of `tokens`, of the state and of each one nested in it.

    Returns:
        The state with other `tokens` and `PerSlot`, and without `lockstep`.
    """
    width_of = {id(part): width for part, width in zip(parts_of(state), widths, strict=True)}
    return replace(with_slots(state, lambda part: (width_of[id(part)], 0)), lockstep=False)


def in_lockstep(state: GenerationState) -> bool:
    """Tells whether all rows that run are at one slot, in each cache, and no other row is beyond it."""
    running = ~state.stopped
    for part in parts_of(state):
        length = part.length[running]
        if length.numel() and not bool((length == part.length.max()).all()):
            return False
    for cache in caches_of(state):
        position = cache.cache_position[running]
        if position.numel() and not bool((position == position[0]).all()):
            return False
    return bool((state.cache_position == state.length - 1)[running].all())


def storages(*trees: Any) -> set[int]:
    """Returns the addresses of the memory that the tensors of some pytrees lie in."""
    leaves = torch_pytree.tree_leaves(trees)
    return {leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, Tensor)}


def owned(run: Run, theirs: set[int]) -> Run:
    """Returns a run whose tensors nobody else holds, contiguous, each in memory of its own.

    Args:
        run: the run.
        theirs: memory that others hold (`storages`); what lies there is copied.

    Returns:
        The run; its other tensors are the same.
    """
    taken = set(theirs)

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        memory = leaf.untyped_storage().data_ptr()
        if memory in taken or not leaf.is_contiguous():
            leaf = leaf.clone(memory_format=torch.contiguous_format)
            memory = leaf.untyped_storage().data_ptr()
        taken.add(memory)
        return leaf

    return torch_pytree.tree_map(own, run)


def recording(run: Run, recorded: dict[str, Tensor]) -> Run:
    """Returns a run that keeps records, the first step among them.

    Args:
        run: a run after one step.
        recorded: dict of [B, …], what that step recorded.

    Returns:
        The run with a `PerSlot` for each.
    """
    record = {
        name: PerSlot(value[:, None].contiguous()).resized(run.state.tokens.shape[1])
        for name, value in recorded.items()
    }
    return replace(run, record=record)


def caches_apart(state: GenerationState) -> Any:
    """Returns a state without what its caches hold: a pytree of all other tensors."""
    return torch_pytree.tree_map(
        lambda value: None if isinstance(value, Cache) else value,
        state,
        is_leaf=lambda value: isinstance(value, Cache),
    )


def _longest(state: GenerationState) -> int:
    """The length of the longest row that runs."""
    return int(torch.where(state.stopped, 0, state.length).max())


def _limit(state: GenerationState) -> int:
    return int(torch.where(state.stopped, 0, state.limit).max())
