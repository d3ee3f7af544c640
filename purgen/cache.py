"""What a model remembers of the tokens it was fed, as a value that knows its own position."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from torch.utils._pytree import tree_leaves

from purgen.pytree import pytree_dataclass, static_field

__all__ = ["Cache", "CacheLayout", "caches_of"]


class CacheLayout(Protocol):
    """What a model knows of the form of its caches: hashable, the same object for all of them.

    A model without one (five lines in a test) still decodes; its caches are as long as the budget
    from the start.
    """

    def capacity(self, cache: Cache) -> int:
        """Returns how many slots a row has room for."""
        ...

    def resized(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache of `max_length` slots with the same content."""
        ...

    def kept(self, moves: Tensor, after: Cache, before: Cache) -> Cache:
        """Returns `after` in rows where `moves` (bool [B]) holds, what `before` means elsewhere.

        What is addressed by slot need not be copied: beyond its position it means nothing.
        """
        ...

    def seen(self, cache: Cache, layer: int) -> Tensor:
        """Returns int64 [B], how many slots of each row the layer has been fed."""
        ...

    def held(self, cache: Cache, layer: int) -> Tensor:
        """Returns int64 [B], how many of them it can still attend to."""
        ...

    def bytes_per_token(self, layer: int | None = None) -> int:
        """Returns what one more slot of a row costs, in bytes, in a layer or in all."""
        ...

    def bytes_per_row(self, max_length: int, layer: int | None = None) -> int:
        """Returns what a row of `max_length` slots costs, in bytes."""
        ...


@pytree_dataclass
class Cache:
    """What a model remembers of the tokens it was fed.

    Attributes:
        layers: any pytree of tensors with rows first; its form belongs to the model.
        cache_position: int64 [B], how many slots of each row the cache holds. The next token of a
            row goes to this slot; what lies at or beyond it is not defined and never attended to.
            Lowering it rewinds the cache where `layers` are addressed by slot (attention).
        layout: `CacheLayout` (static) of the model that made it, or None.
    """

    layers: Any  # pytree, leaves [B, …]
    cache_position: Tensor  # int64 [B]
    layout: Any = static_field(default=None)

    def seen(self, layer: int = 0) -> Tensor:
        """Returns how many slots of each row a layer has been fed, pads among them.

        It is read from a value that travels with the cache, never inferred from what the buffers
        hold, and so is right before, between and after compiled calls.

        Args:
            layer: index of the layer.

        Returns:
            int64 [B].

        Example:
            >>> import torch
            >>> Cache(layers=(), cache_position=torch.tensor([4, 2])).seen()
            tensor([4, 2])
        """
        return self.cache_position if self.layout is None else self.layout.seen(self, layer)

    def held(self, layer: int = 0) -> Tensor:
        """Returns how many of the slots seen a layer still holds: fewer where it has a window.

        Args:
            layer: index of the layer.

        Returns:
            int64 [B].
        """
        return self.cache_position if self.layout is None else self.layout.held(self, layer)


def caches_of(tree: Any) -> list[Cache]:
    """Returns every cache in a state: that of the model, and those that a strategy keeps besides."""
    leaves = tree_leaves(tree, is_leaf=lambda value: isinstance(value, Cache))
    return [leaf for leaf in leaves if isinstance(leaf, Cache)]
