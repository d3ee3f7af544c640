"""The form of a model's caches: the specs of its layers, put together."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from bridge.layers.base import LayerSpec, lengthened
from purgen.cache import Cache
from purgen.pytree import replace

__all__ = ["Layout"]


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """`purgen.CacheLayout` of caches `{"valid": bool [B, T], "layers": [entry, …]}`.

    `valid` says which slots hold real tokens, so that a call without a mask knows the pads. Where a
    layer cannot go back to every slot (a state without slots, a ring), `"fed"` int64 [B] says besides
    how far it has been, so that a rewind that is wrong is noticed.

    Attributes:
        specs: one a layer.
        device: torch.device of the caches.
    """

    specs: tuple[LayerSpec, ...]
    device: torch.device

    @property
    def slot_addressed(self) -> bool:
        """Whether a row can be rewound by lowering its position: no layer keeps anything else."""
        return all(spec.slot_addressed for spec in self.specs)

    @property
    def rewind(self) -> int | None:
        """How many slots lowering the position may go back; None: as many as there are."""
        limits = [spec.rewind for spec in self.specs if spec.rewind is not None]
        return min(limits) if limits else None  # torch.export has no rule for `default`

    @property
    def block(self) -> int | None:
        """How many tokens an empty cache may be fed at once, further ones singly; None: any number."""
        limits = [getattr(spec, "block", None) for spec in self.specs]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    def empty(self, batch_size: int, max_length: int) -> Cache:
        """Returns an empty cache.

        Args:
            batch_size: B, at least 1.
            max_length: T, slots of a row, at least 1.

        Returns:
            A `purgen.Cache` whose `layers` are described at the top of this class.

        Raises:
            ValueError: either is below 1.
        """
        for name, value in (("batch_size", batch_size), ("max_length", max_length)):
            if value < 1:
                raise ValueError(f"init_cache: {name} must be at least 1, not {value}")
        layers: dict[str, Any] = {
            "valid": torch.zeros(batch_size, max_length, dtype=torch.bool, device=self.device),
            "layers": [spec.empty(batch_size, max_length) for spec in self.specs],
        }
        if self.rewind is not None:
            layers["fed"] = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        return Cache(
            layers=layers,
            cache_position=torch.zeros(batch_size, dtype=torch.int64, device=self.device),
            layout=self,
        )

    def capacity(self, cache: Cache) -> int:
        """Returns how many slots a row has room for."""
        return int(cache.layers["valid"].shape[1])

    def resized(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache of `max_length` slots with the same content.

        Args:
            cache: a cache of this layout.
            max_length: T, at least as many as the cache has filled.

        Returns:
            A new cache; nothing of it shares memory with the old one.
        """
        return self._with(
            cache,
            valid=lengthened(cache.layers["valid"], max_length, dim=1),
            layers=[
                spec.resized(entry, max_length)
                for spec, entry in zip(self.specs, cache.layers["layers"], strict=True)
            ],
        )

    def kept(self, moves: Tensor, after: Cache, before: Cache) -> Cache:
        """Returns `after` in rows where `moves` (bool [B]) holds, what `before` means elsewhere."""
        entries = zip(self.specs, after.layers["layers"], before.layers["layers"], strict=True)
        changes: dict[str, Any] = {
            "layers": [spec.kept(moves, new, old) for spec, new, old in entries]
        }
        if self.rewind is not None:
            changes["fed"] = torch.where(moves, after.layers["fed"], before.layers["fed"])
        return self._with(after, **changes)

    def seen(self, cache: Cache, layer: int) -> Tensor:
        """Returns int64 [B], how many slots of each row the layer has been fed."""
        self._spec(layer)
        return cache.cache_position

    def held(self, cache: Cache, layer: int) -> Tensor:
        """Returns int64 [B], how many of them it can still attend to."""
        return self._spec(layer).held(cache.layers["layers"][layer], cache.cache_position)

    def bytes_per_token(self, layer: int | None = None) -> int:
        """Returns what one more slot of a row costs in a layer or in all, in bytes.

        That of a long row: a layer that is bounded costs nothing more once it is full.
        """
        long = 1 << 24
        return self.bytes_per_row(long + 1, layer) - self.bytes_per_row(long, layer)

    def bytes_per_row(self, max_length: int, layer: int | None = None) -> int:
        """Returns what a row of `max_length` slots costs in a layer or in all, in bytes."""
        specs = self.specs if layer is None else (self._spec(layer),)
        return sum(spec.num_bytes(max_length) for spec in specs)

    def _spec(self, layer: int) -> LayerSpec:
        if not 0 <= layer < len(self.specs):
            raise ValueError(f"layer must be 0 to {len(self.specs) - 1}, not {layer}")
        return self.specs[layer]

    def _with(self, cache: Cache, **changes: Any) -> Cache:
        return replace(cache, layers={**cache.layers, **changes})
