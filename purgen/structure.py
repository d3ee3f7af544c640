"""What two functions or states have in common when they can share a compiled program."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

__all__ = ["form_of", "structure_of"]

_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def structure_of(value: Any) -> Any:
    """Describes what a program made of a function would have built into it.

    Two closures of one definition are alike where they close over like things; so decoders that differ
    in settings, which are tensors in their states, are alike. What cannot be looked into is known by
    its identity. The description is no proof: torch checks with guards of its own that a program may
    be used, and compiles another where not.

    Args:
        value: a function, or anything that one may close over.

    Returns:
        A hashable value.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> cold, hot = (
        ...     purgen.sample(model, transform=purgen.temperature(t)).step for t in (0.5, 2)
        ... )
        >>> structure_of(cold) == structure_of(hot)
        True
        >>> structure_of(cold) == structure_of(purgen.greedy(model).step)
        False
    """
    return _describe(value, {})


def form_of(tree: Any) -> tuple[Any, ...]:
    """Returns the tree structure of a pytree and the form of each tensor in it, hashable."""
    leaves, structure = torch_pytree.tree_flatten(tree)
    return structure, tuple([_form(leaf) for leaf in leaves])


def _form(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return type(leaf), leaf.dtype, leaf.device, tuple(leaf.shape), leaf.stride()
    return leaf


def _describe(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, _VALUES):
        return type(value), repr(value) if isinstance(value, float | complex) else value
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.device, tuple(value.shape), value.stride()
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, types.FunctionType):
        cells = [_describe(_content(cell), seen) for cell in value.__closure__ or ()]
        defaults = _describe((value.__defaults__, value.__kwdefaults__), seen)
        return "function", value.__code__, tuple(cells), defaults
    if isinstance(value, types.MethodType):
        return "method", _describe(value.__func__, seen), _describe(value.__self__, seen)
    if isinstance(value, functools.partial):
        return "partial", _describe((value.func, value.args, value.keywords), seen)
    if isinstance(value, tuple | list):
        return type(value), tuple([_describe(item, seen) for item in value])
    if isinstance(value, dict):
        items = [(_describe(key, seen), _describe(item, seen)) for key, item in value.items()]
        return type(value), tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [
            _describe(getattr(value, field.name), seen) for field in dataclasses.fields(value)
        ]
        return type(value), tuple(fields)
    return type(value), id(value)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
