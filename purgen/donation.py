"""Buffers that a loop owns, and may therefore write in place.

A pure step returns a new cache, and eagerly that is a copy of the whole. A loop that made the buffers
itself, and lets nobody see them between two steps, says so with `donating`; `write` then changes them
where they lie. A compiled program needs none of this: the compiler sees that the old value is dead.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["donating", "write"]

_owned: contextvars.ContextVar[WeakIdKeyDictionary | None] = contextvars.ContextVar(
    "owned", default=None
)


@contextlib.contextmanager
def donating(*trees: Any) -> Iterator[None]:
    """Lets `write` change some tensors in place, until the end of the block.

    Args:
        *trees: pytrees whose tensors nobody else holds or will look at. Each must be used once: a
            step that feeds one cache twice is not to be run so.

    Example:
        >>> import torch
        >>> buffer = torch.zeros(3)
        >>> with donating(buffer):
        ...     write(buffer, [torch.tensor([1])], torch.ones(1)) is buffer
        True
        >>> buffer
        tensor([0., 1., 0.])
    """
    owned = WeakIdKeyDictionary()
    for leaf in tree_leaves(trees):
        if isinstance(leaf, Tensor):
            owned[leaf] = True
    token = _owned.set(owned)
    try:
        yield
    finally:
        _owned.reset(token)


def write(buffer: Tensor, indices: list[Tensor | None], values: Tensor) -> Tensor:
    """Returns `buffer` with `values` written at some indices: `buffer` itself where it is donated.

    `aten.index_put`, because the compiler turns exactly this into a write in place where the old
    value is dead.

    Args:
        buffer: any tensor.
        indices: int64 index tensors, None for a whole dimension, as in `buffer[indices]`.
        values: what to write, of the buffer's dtype.

    Returns:
        A tensor of the shape and strides of `buffer`.

    Example:
        >>> import torch
        >>> write(torch.zeros(3), [torch.tensor([1])], torch.ones(1))
        tensor([0., 1., 0.])
    """
    if not torch.compiler.is_compiling():
        owned = _owned.get()
        if owned is not None and buffer in owned:
            return torch.ops.aten.index_put_(buffer, indices, values)
    return torch.ops.aten.index_put(buffer, indices, values)
