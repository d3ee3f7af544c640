"""What it takes to compare runs: exact equality, untouched inputs, untouched generators, one graph."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

__all__ = [
    "CompileCounter",
    "check_rows_first",
    "check_same_structure",
    "clone_tree",
    "difference",
    "no_global_randomness",
    "require",
    "stack_trees",
    "unchanged",
    "unstack_tree",
]


def require(holds: bool, law: str, text: str) -> None:
    """Raises AssertionError with `law: text` unless `holds`."""
    if not holds:
        raise AssertionError(f"{law}: {text}")


def difference(a: Any, b: Any, *, tolerance: float = 0.0) -> str | None:
    """Tells where two pytrees differ, or None where they do not. NaN equals NaN.

    Args:
        a: a pytree of tensors.
        b: another.
        tolerance: absolute and relative, for floating tensors; 0 compares exactly.

    Returns:
        A description of the first difference.
    """
    left, structure = torch_pytree.tree_flatten_with_path(a)
    right, other = torch_pytree.tree_flatten_with_path(b)
    if structure != other:
        return f"structures differ: {structure} and {other}"
    for (path, x), (_, y) in zip(left, right, strict=True):
        name = torch_pytree.keystr(path) or "value"
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            if x != y:
                return f"{name}: {x!r} and {y!r}"
            continue
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{name}: {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}"
        if x.is_floating_point():
            close = torch.isclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            close = x == y
        if not bool(close.all()):
            place = (~close).nonzero()[0].tolist()
            return f"{name} at {place}: {x[tuple(place)].item()} and {y[tuple(place)].item()}"
    return None


def clone_tree(tree: Any) -> Any:
    """Copies every tensor of a pytree."""
    return torch_pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree
    )


def stack_trees(*trees: Any) -> Any:
    """Stacks pytrees of one structure along a new first axis, for vmap."""
    return torch_pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)


def unstack_tree(tree: Any, index: int) -> Any:
    """Takes one lane of what vmap returned."""
    return torch_pytree.tree_map(lambda leaf: leaf[index], tree)


@contextmanager
def unchanged(law: str, **inputs: Any) -> Iterator[None]:
    """Requires that a block changes no bit of its inputs."""
    before = clone_tree(inputs)
    yield
    found = difference(before, inputs)
    require(found is None, law, f"an input was changed in place: {found}")


@contextmanager
def no_global_randomness(law: str) -> Iterator[None]:
    """Requires that a block draws nothing from the generators of torch, numpy and Python."""

    def generators() -> dict[str, Any]:
        return {
            "torch": torch.get_rng_state().tolist(),
            "numpy": str(np.random.get_state()),  # noqa: NPY002
            "Python": python_random.getstate(),
        }

    before = generators()
    yield
    for name, state in generators().items():
        drawn = state != before[name]
        require(not drawn, law, f"a number was drawn from the global generator of {name}")


def check_rows_first(tree: Any, batch_size: int, law: str, name: str) -> None:
    """Requires that every leaf is a tensor with the rows as its first axis."""
    for path, leaf in torch_pytree.tree_flatten_with_path(tree)[0]:
        where = f"{name}{torch_pytree.keystr(path)}"
        require(isinstance(leaf, Tensor), law, f"{where} is a {type(leaf).__name__}, not a tensor")
        shape = list(leaf.shape)
        require(
            shape[:1] == [batch_size], law, f"{where} has shape {shape}; the first axis must be B"
        )


def check_same_structure(before: Any, after: Any, law: str, name: str) -> None:
    """Requires equal tree structure, shapes and dtypes."""
    old, structure = torch_pytree.tree_flatten_with_path(before)
    new, other = torch_pytree.tree_flatten_with_path(after)
    require(structure == other, law, f"{name} changed its structure: {structure} to {other}")
    for (path, x), (_, y) in zip(old, new, strict=True):
        where = f"{name}{torch_pytree.keystr(path)}"
        require(isinstance(y, Tensor), law, f"{where} became a {type(y).__name__}")
        require(
            x.shape == y.shape and x.dtype == y.dtype,
            law,
            f"{where} changed from {x.dtype}{list(x.shape)} to {y.dtype}{list(y.shape)}",
        )


class CompileCounter:
    """Compiles a function as one full graph and counts how often that happens.

    Attributes:
        graphs: how many graphs were compiled so far.
    """

    def __init__(self, function: Callable[..., Any], backend: str = "aot_eager") -> None:
        from torch._dynamo import lookup_backend  # takes seconds to import

        self.graphs = 0
        inner = lookup_backend(backend)

        def count(graph: Any, example_inputs: Any) -> Any:
            self.graphs += 1
            return inner(graph, example_inputs)

        # A function object of its own: compiled code is kept by function, and the count must not
        # depend on what was compiled before.
        def program(*args: Any) -> Any:
            return function(*args)

        program.__code__ = program.__code__.replace(co_name=f"program_{id(self)}")
        self._compiled = torch.compile(program, fullgraph=True, dynamic=False, backend=count)

    def __call__(self, *args: Any) -> Any:
        """Runs the compiled function."""
        return self._compiled(*args)
