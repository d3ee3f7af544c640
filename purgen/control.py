"""Choices that depend on data: a Python branch where the data can be read, `torch.cond` where not.

`torch.cond` has traps: it compiles its branches even in eager mode, refuses registered dataclasses
as operands, and under `vmap` keeps only the first output of a branch. They end here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from purgen.concrete import is_concrete

__all__ = ["branch"]


def branch(
    predicate: Tensor,
    if_true: Callable[..., Tensor],
    if_false: Callable[..., Tensor],
    operands: tuple[Tensor, ...],
) -> Tensor:
    """Computes one of two functions and, where possible, not the other.

    Args:
        predicate: bool [], 0-d.
        if_true: `if_true(*operands) -> Tensor`, pure.
        if_false: likewise, with a result of the same shape and dtype.
        operands: tensors that both get.

    Returns:
        The result of the one that `predicate` says. Eagerly it alone runs; in a compiled program, too,
        by `torch.cond`; under `vmap` both run and the result is selected lane by lane.

    Example:
        >>> import torch
        >>> branch(torch.tensor(True), torch.sin, torch.cos, (torch.zeros(2),))
        tensor([0., 0.])
    """
    if torch.compiler.is_compiling():
        return torch.cond(predicate, if_true, if_false, operands)
    if is_concrete(predicate):
        return if_true(*operands) if bool(predicate) else if_false(*operands)
    return torch.where(predicate, if_true(*operands), if_false(*operands))
