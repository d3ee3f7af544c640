"""Choices that depend on data: a Python branch where the data can be read, `torch.cond` where not.

`torch.cond` has traps. It compiles its branches even in eager mode, refuses registered dataclasses,
fails where a branch returns an operand, the same tensor twice or strides of its own, and under `vmap`
keeps only the first output of a branch. They end here: operands and results are any pytrees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

from purgen.concrete import is_concrete

__all__ = ["branch", "choose"]

T = TypeVar("T")


def branch(
    predicate: Tensor,
    if_true: Callable[..., T],
    if_false: Callable[..., T],
    operands: tuple[Any, ...] = (),
    *,
    like: T | None = None,
) -> T:
    """Computes one of two functions and, where possible, not the other.

    Args:
        predicate: bool [], 0-d.
        if_true: `if_true(*operands) -> pytree of tensors`, pure.
        if_false: likewise, with a result of the same structure, shapes and dtypes.
        operands: pytrees that both get.
        like: anything of the structure of the result, needed where that holds a state type; a tensor,
            tuple, list or dict of them needs none.

    Returns:
        The result of the one that `predicate` says. Eagerly it alone runs; in a compiled program, too,
        by `torch.cond`; under `vmap` both run and the result is selected lane by lane. In a compiled
        program it shares no memory with the operands.

    Raises:
        TypeError: the results differ in structure, where both run.

    Example:
        >>> import torch
        >>> branch(torch.tensor(True), torch.sin, torch.cos, (torch.zeros(2),))
        tensor([0., 0.])
    """
    if torch.compiler.is_compiling() and not _is_batched(predicate, operands):
        return _cond(predicate, if_true, if_false, operands, like)
    if is_concrete(predicate):
        return if_true(*operands) if bool(predicate) else if_false(*operands)
    return choose(predicate, if_true(*operands), if_false(*operands))


def choose(predicate: Tensor, if_true: T, if_false: T) -> T:
    """Returns one of two pytrees of tensors, whole.

    Args:
        predicate: bool [], 0-d; under `vmap` one a lane.
        if_true: a pytree of tensors.
        if_false: one of the same structure, shapes and dtypes.

    Returns:
        The one that `predicate` says, leaf by leaf. `purgen.where_rows` chooses row by row.

    Raises:
        TypeError: the structures differ.

    Example:
        >>> import torch
        >>> choose(torch.tensor(False), (torch.ones(1),), (torch.zeros(1),))
        (tensor([0.]),)
    """
    left, structure = torch_pytree.tree_flatten(if_true)
    right, other = torch_pytree.tree_flatten(if_false)
    if structure != other:
        raise TypeError(f"branches return different structures: {structure} and {other}")
    leaves = [
        a if a is b else torch.where(predicate, a, b) for a, b in zip(left, right, strict=True)
    ]
    return torch_pytree.tree_unflatten(leaves, structure)


def _cond(
    predicate: Tensor,
    if_true: Callable[..., T],
    if_false: Callable[..., T],
    operands: tuple[Any, ...],
    like: T | None,
) -> T:
    leaves, structure = torch_pytree.tree_flatten(operands)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def fresh(leaf: Any) -> Any:
        # Refused as results: an operand, a view of one, a tensor twice, strides that differ.
        return leaf.clone(memory_format=torch.contiguous_format)

    def plain(function: Callable[..., T]) -> Callable[..., Any]:
        def run(*tensors: Tensor) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            result = function(*torch_pytree.tree_unflatten(filled, structure))
            if like is None:
                return torch_pytree.tree_map(fresh, result)
            return tuple([fresh(leaf) for leaf in torch_pytree.tree_leaves(result)])

        return run

    tensors = tuple([leaves[place] for place in places])
    result = torch.cond(predicate, plain(if_true), plain(if_false), tensors)
    if like is None:
        return result
    return torch_pytree.tree_unflatten(list(result), torch_pytree.tree_structure(like))


def _is_batched(*trees: Any) -> bool:
    return any(
        torch._C._functorch.is_batchedtensor(leaf)
        for leaf in torch_pytree.tree_leaves(trees)
        if isinstance(leaf, Tensor)
    )
