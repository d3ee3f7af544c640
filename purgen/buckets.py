"""How long buffers are made, so that lengths share programs and a step costs what is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

from purgen.cache import Cache
from purgen.pytree import pytree_dataclass, replace, static_field
from purgen.state import GenerationState

__all__ = ["Buckets", "PerSlot", "parts_of", "room_of", "with_slots"]


# The tokens themselves cost 8 bytes a slot: their buckets are wide, so that they add no programs.
_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The policy by which caches grow and lengths are rounded up.

    A cache begins with the bucket that holds the prompt and grows to the next as it fills. A compiled
    step exists once a bucket: at most log2(budget / smallest) programs, whatever prompts and budgets
    come. Few wide buckets compile less, many narrow ones leave less memory unused.

    Attributes:
        smallest: int, slots of the first bucket, at least 1.
        factor: float above 1, how much larger the next one is.
        sizes: tuple of ints, the buckets themselves, in place of these two.
        grow: bool, whether caches grow; if not, they have room for the whole budget at once.
        exact: bool, whether nothing is made longer than the budget: less memory, but compiled loops
            then need a program for each length. The eager loop always has it so.

    Raises:
        ValueError: a wrong number.

    Example:
        >>> import purgen
        >>> [purgen.Buckets(smallest=64).fit(slots) for slots in (1, 64, 65, 300)]
        [64, 64, 128, 512]
        >>> purgen.Buckets(sizes=(48, 500)).fit(49)
        500
    """

    smallest: int = 256
    factor: float = 2
    sizes: tuple[int, ...] = ()
    grow: bool = True
    exact: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.smallest, int) or self.smallest < 1:
            raise ValueError(
                f"Buckets: smallest must be an int of at least 1, not {self.smallest!r}"
            )
        if not self.factor > 1:
            raise ValueError(f"Buckets: factor must be above 1, not {self.factor!r}")
        sizes = tuple(self.sizes)
        if list(sizes) != sorted(set(sizes)) or (sizes and sizes[0] < 1):
            raise ValueError(f"Buckets: sizes must be positive and ascending, not {sizes}")
        object.__setattr__(self, "sizes", sizes)

    def fit(self, slots: int) -> int:
        """Returns the smallest bucket of at least `slots` slots.

        Args:
            slots: int.

        Returns:
            int.

        Raises:
            ValueError: the largest of `sizes` has fewer.
        """
        if self.sizes:
            if slots > self.sizes[-1]:
                raise ValueError(
                    f"buckets: prompt and budget take {slots} slots; the largest of sizes is "
                    f"{self.sizes[-1]}"
                )
            return min(size for size in self.sizes if size >= slots)
        size = self.smallest
        while size < slots:
            size = max(int(size * self.factor), size + 1)
        return size

    def fit_tokens(self, slots: int) -> int:
        """Returns how many slots the token buffer gets where `slots` can be filled."""
        self.fit(slots)  # refuses what would not fit in the end
        if self.exact:
            return slots
        if self.sizes:
            return self.sizes[-1]
        return Buckets(self.smallest * _TOKENS, self.factor**2).fit(slots)

    def fit_cache(self, filled: int, slots: int) -> int:
        """Returns how many slots a cache gets.

        Args:
            filled: how many must be there now.
            slots: how many can be filled at all.
        """
        size = self.fit(min(filled, slots) if self.grow else slots)
        return min(size, slots) if self.exact else size


@pytree_dataclass
class PerSlot:
    """A part of a state that has a column for each slot of `tokens`.

    A transform or strategy that keeps such a thing wraps it, so that a loop which widens `tokens` can
    widen it too.

    Attributes:
        values: [B, T, …].
        fill: number (static), what a slot without a token holds.

    Example:
        >>> import torch, purgen
        >>> purgen.PerSlot(torch.ones(2, 5, dtype=torch.int64))
        PerSlot(values=int64[2, 5], fill=0)
    """

    values: Tensor  # [B, T, …]
    fill: float = static_field(default=0)

    def resized(self, slots: int) -> PerSlot:
        """Returns one of `slots` columns, cut or filled at the end."""
        return replace(self, values=resized(self.values, slots, self.fill))


def resized(values: Tensor, slots: int, fill: float) -> Tensor:
    """Cuts the second axis of [B, T, …] to `slots` columns, or fills it up."""
    missing = slots - values.shape[1]
    if missing == 0:
        return values
    if missing < 0:
        return values[:, :slots].contiguous()
    more = values.new_full((values.shape[0], missing, *values.shape[2:]), fill)
    return torch.cat([values, more], dim=1)


def parts_of(state: GenerationState) -> Iterator[GenerationState]:
    """Yields a state and those nested in it: a strategy may run several generations at once.

    Args:
        state: the generation.

    Returns:
        An iterator, the state itself first.
    """
    yield state
    for value in _own_values(state):
        if isinstance(value, GenerationState):
            yield from parts_of(value)


def room_of(state: GenerationState) -> int | None:
    """Returns how many slots the shortest cache of a generation has, nested generations apart.

    Args:
        state: the generation.

    Returns:
        int; None where there is no telling and no lengthening, since a cache keeps its form to itself.
    """
    rooms = []
    for cache in _own_values(state):
        if not isinstance(cache, Cache):
            continue
        if cache.layout is None:
            return None
        rooms.append(cache.layout.capacity(cache))
    return min(rooms, default=state.tokens.shape[1])


def with_slots(
    state: GenerationState, slots: Callable[[GenerationState], tuple[int, int]]
) -> GenerationState:
    """Gives a generation, and those nested in it, other numbers of slots.

    Args:
        state: the generation.
        slots: tells for each of them how many `tokens` and `PerSlot` get, and how many its caches get
            at least. Where a cache keeps its form to itself, nothing changes.

    Returns:
        The state; what had the right number before is not copied. `limit` stays.
    """
    if room_of(state) is None:
        return state
    width, room = slots(state)

    def change(value: Any) -> Any:
        if isinstance(value, GenerationState):
            return with_slots(value, slots)
        if isinstance(value, PerSlot):
            return value.resized(width)
        if isinstance(value, Cache) and value.layout is not None:
            enough = value.layout.capacity(value) >= room
            return value if enough else value.layout.resized(value, room)
        return value

    children = {
        name: torch_pytree.tree_map(change, getattr(state, name), is_leaf=_is_part)
        for name in _CHILDREN
    }
    return replace(state, tokens=resized(state.tokens, width, state.pad_token_id), **children)


_CHILDREN = ("cache", "transform", "stop", "extra")


def _own_values(state: GenerationState) -> list[Any]:
    values = [getattr(state, name) for name in _CHILDREN]
    return torch_pytree.tree_leaves(values, is_leaf=_is_part)


def _is_part(value: Any) -> bool:
    return isinstance(value, Cache | PerSlot | GenerationState)
