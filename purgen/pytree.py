"""Immutable state types, registered as pytrees once, for PyTorch and for optree.

Every state type in purgen is a frozen dataclass made by `pytree_dataclass`. Because such a value is
a pytree, `torch.compile`, `torch.func.vmap`, `optree.tree_map` and `torch.utils._pytree` all see
through it, and because it is frozen, keeping an old one is a rewind.

The functions on rows rest on one rule: every leaf has the rows as its first axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import optree
import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

from purgen.concrete import is_concrete

__all__ = [
    "pytree_dataclass",
    "repeat_rows",
    "replace",
    "select_rows",
    "static_field",
    "where_rows",
]

T = TypeVar("T")

# optree keeps types that every namespace sees under a sentinel object.
_EVERY_NAMESPACE: Any = vars(optree.registry)["__GLOBAL_NAMESPACE"]


def static_field(**options: Any) -> Any:
    """Marks a field of a `pytree_dataclass` as part of the structure, not a leaf.

    A static field must be hashable. It is compared when two trees are combined, and `torch.compile`
    specialises on it: a value that changes from step to step belongs in a tensor instead.

    Args:
        **options: what `dataclasses.field` takes (`default`, `default_factory`, …).

    Returns:
        A dataclass field.
    """
    return dataclasses.field(**options, metadata={"static": True})


@dataclass_transform(frozen_default=True, kw_only_default=False, field_specifiers=(static_field,))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass and registers it as a pytree (class decorator).

    Registered for `torch.utils._pytree` (so for `torch.func`, `torch.compile`, `torch.export`) and
    for optree in every namespace. Fields made by `static_field` are structure, all others children.

    Args:
        cls: a class with annotated fields.

    Returns:
        The dataclass. Its `repr` shows shapes and dtypes in place of numbers.

    Raises:
        TypeError: on assignment to a field of an instance (`dataclasses.FrozenInstanceError`).

    Example:
        >>> import torch, purgen
        >>> @purgen.pytree_dataclass
        ... class Counter:
        ...     count: torch.Tensor  # int64 [B]
        ...     name: str = purgen.static_field(default="steps")
        >>> state = Counter(count=torch.zeros(3, dtype=torch.int64))
        >>> state
        Counter(count=int64[3], name='steps')
        >>> optree.tree_map(lambda leaf: leaf + 1, state).count
        tensor([1, 1, 1])
    """
    data: Any = dataclasses.dataclass(frozen=True, repr=False, eq=False)(cls)
    fields = dataclasses.fields(data)
    children = tuple(field.name for field in fields if not field.metadata.get("static"))
    static = tuple(field.name for field in fields if field.metadata.get("static"))

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        leaves = [getattr(value, name) for name in children]
        return leaves, tuple([getattr(value, name) for name in static])

    def unflatten(leaves: Any, context: Any) -> Any:
        # Not through __init__: a transformation may put any object in place of a leaf, and checks
        # that __post_init__ makes are for people.
        value = object.__new__(data)
        for name, leaf in zip(children, leaves, strict=True):
            object.__setattr__(value, name, leaf)
        for name, setting in zip(static, context, strict=True):
            object.__setattr__(value, name, setting)
        return value

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves, context = flatten(value)
        keys = [torch_pytree.GetAttrKey(name) for name in children]
        return list(zip(keys, leaves, strict=True)), context

    torch_pytree.register_pytree_node(
        data,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=flatten_with_keys,
    )
    optree.register_pytree_node(
        data,
        lambda value: (*flatten(value), children),
        lambda context, leaves: unflatten(leaves, context),
        namespace=_EVERY_NAMESPACE,
    )
    data.__repr__ = _repr
    return data


def replace(value: T, **changes: Any) -> T:
    """Returns a copy of a state (or a Decoder, or a Model) with some fields changed.

    Args:
        value: any dataclass instance of purgen.
        **changes: new values by field name. `cache_position` reaches into the cache of a
            `GenerationState`, since it is stored once, there.

    Returns:
        A new value of the same type; the old one is untouched.

    Raises:
        TypeError: `value` is no dataclass instance, or has no field of that name.

    Example:
        >>> import torch, purgen
        >>> cache = purgen.Cache(layers=(), cache_position=torch.tensor([4]))
        >>> purgen.replace(cache, cache_position=torch.tensor([2])).cache_position
        tensor([2])
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"replace: value must be a purgen state, not {type(value).__name__}")
    names = [field.name for field in dataclasses.fields(value)]
    if "cache_position" in changes and "cache_position" not in names and "cache" in names:
        cache = changes.get("cache", getattr(value, "cache"))  # noqa: B009 (field known by name)
        position = changes.pop("cache_position")
        changes["cache"] = dataclasses.replace(cache, cache_position=position)
    unknown = sorted(set(changes) - set(names))
    if unknown:
        raise TypeError(
            f"replace: {type(value).__name__} has no field {unknown[0]!r}; its fields are {names}"
        )
    return dataclasses.replace(value, **changes)


def select_rows(tree: T, index: Tensor) -> T:
    """Returns the rows `index` of a state: beams reordered, particles resampled, rows dropped.

    Args:
        tree: any pytree whose leaves have rows first (`[B, …]`).
        index: int64 [R], rows to take, in any order and number; or bool [B], rows to keep.

    Returns:
        The same structure with leaves `[R, …]`.

    Raises:
        TypeError: `index` is no tensor of integers or bools.
        ValueError: it holds a row that is not there.

    Example:
        >>> import torch, purgen
        >>> purgen.select_rows({"a": torch.tensor([5, 6, 7])}, torch.tensor([2, 0]))
        {'a': tensor([7, 5])}
    """
    index = torch.as_tensor(index)
    if index.dtype == torch.bool:
        index = index.nonzero()[:, 0]
    if index.is_floating_point() or index.ndim != 1:
        raise TypeError(
            "select_rows: index must be int64 [R] or bool [B], "
            f"not {index.dtype} of shape {list(index.shape)}"
        )

    def take(leaf: Tensor) -> Tensor:
        if is_concrete(index) and bool(((index < 0) | (index >= len(leaf))).any()):
            raise ValueError(
                f"select_rows: index holds {index.tolist()}; there are {len(leaf)} rows"
            )
        return leaf.index_select(0, index.to(leaf.device))

    return _map(take, tree)


def repeat_rows(tree: T, n: int) -> T:
    """Returns every row `n` times, copies side by side: one prefill, many continuations.

    Args:
        tree: any pytree whose leaves have rows first (`[B, …]`).
        n: copies of each row, at least 1.

    Returns:
        The same structure with leaves `[B * n, …]`; row `i` becomes rows `i * n … i * n + n - 1`.
        Copies carry the same random key: give each its own (`purgen.random.split`) before sampling.

    Raises:
        ValueError: `n` is below 1.

    Example:
        >>> import torch, purgen
        >>> purgen.repeat_rows(torch.tensor([5, 6]), 2)
        tensor([5, 5, 6, 6])
    """
    if n < 1:
        raise ValueError(f"repeat_rows: n must be at least 1, not {n}")
    return _map(lambda leaf: leaf.repeat_interleave(n, dim=0), tree)


def where_rows(mask: Tensor, a: T, b: T) -> T:
    """Returns, row by row, `a` where `mask` holds and `b` elsewhere.

    Args:
        mask: bool [B].
        a: any pytree whose leaves have rows first (`[B, …]`).
        b: a pytree of the same structure, shapes and dtypes.

    Returns:
        The same structure.

    Raises:
        ValueError: the structures differ, or `mask` is not bool [B].

    Example:
        >>> import torch, purgen
        >>> purgen.where_rows(
        ...     torch.tensor([True, False]), torch.tensor([1, 2]), torch.tensor([8, 9])
        ... )
        tensor([1, 9])
    """
    if mask.dtype != torch.bool or mask.ndim != 1:
        raise ValueError(
            f"where_rows: mask must be bool [B], not {mask.dtype} of shape {list(mask.shape)}"
        )

    def choose(left: Tensor, right: Tensor) -> Tensor:
        if left is right:
            return left
        if left.shape[:1] != mask.shape or left.shape != right.shape:
            raise ValueError(
                f"where_rows: mask has shape {list(mask.shape)}, leaves have {list(left.shape)} and "
                f"{list(right.shape)}; all must have the same rows"
            )
        return torch.where(mask.reshape(-1, *[1] * (left.ndim - 1)), left, right)

    return _map(choose, a, b)


def _map(function: Callable[..., Any], *trees: Any) -> Any:
    """Maps over tensors; a field that is None stays None."""
    return torch_pytree.tree_map(
        lambda *leaves: None if leaves[0] is None else function(*leaves), *trees
    )


def _repr(self: Any) -> str:
    fields = [
        f"{field.name}={_describe(getattr(self, field.name))}"
        for field in dataclasses.fields(self)
        if not (field.metadata.get("static") and getattr(self, field.name) is None)
    ]
    return f"{type(self).__name__}({', '.join(fields)})"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        parts = [_describe(item) for item in value]
        text = ", ".join(_shorten(parts))
        return f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(parts) == 1)})"
    return repr(value)


def _shorten(parts: list[str]) -> list[str]:
    """Folds equal neighbours: thirty layers of one shape read as one."""
    folded: list[tuple[str, int]] = []
    for part in parts:
        if folded and folded[-1][0] == part:
            folded[-1] = (part, folded[-1][1] + 1)
        else:
            folded.append((part, 1))
    return [part if count == 1 else f"{part} × {count}" for part, count in folded]
