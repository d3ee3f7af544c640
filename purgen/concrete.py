"""Whether a tensor's numbers may be looked at: checks that vanish when a program is traced."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["is_concrete"]


def is_concrete(*tensors: Tensor) -> bool:
    """Tells whether the numbers in all of `tensors` can be read now.

    They cannot while `torch.compile` or `torch.export` traces, under `torch.func` transformations, on
    the meta device, in fake tensors, and while a CUDA graph is captured. A check on values is made
    where this is True, and costs nothing in a compiled program.

    Args:
        *tensors: any tensors.

    Returns:
        True if `tensor.item()` and `bool(tensor.any())` are allowed for each.

    Example:
        >>> import torch
        >>> is_concrete(torch.ones(2)), is_concrete(torch.ones(2, device="meta"))
        (True, False)
    """
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    return not any(
        tensor.is_meta
        or isinstance(tensor, FakeTensor)
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        for tensor in tensors
    )
