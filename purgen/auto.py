"""Which loop `loop="auto"` stands for."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

__all__ = ["LOOPS", "device_of", "pick_loop"]

LOOPS = ("eager", "compiled", "while", "auto")

CACHED = 16_000_000  # bytes of parameters that a processor's caches hold from step to step
WORTH_COMPILING = 96  # steps; with fewer, compiling takes longer than it saves in a first run

log = logging.getLogger("purgen")


def pick_loop(
    loop: str, params: Any, *, steps: int, streams: bool = False, freeze: bool = False
) -> tuple[str, str]:
    """Says which loop runs, and why.

    "auto" is "while" on a CPU, where a program that needs nobody in between is the fastest, but
    "compiled" where large parameters are constants, since torch lays out anew none that is used in the
    body of a `while_loop`; "compiled" on a GPU, where `while_loop` waits for the device at each step;
    and "eager" elsewhere, and where there are too few steps to be worth compiling. The choice is logged
    by the logger "purgen" (INFO).

    Args:
        loop: "eager", "compiled", "while" or "auto".
        params: the parameters, for their device.
        steps: how many steps there may be.
        streams: whether each state is handed out.
        freeze: whether the parameters are constants.

    Returns:
        `(loop, reason)`.

    Raises:
        ValueError: another loop, or one that cannot stream.

    Example:
        >>> import torch
        >>> pick_loop("auto", torch.ones(1), steps=500)
        ('while', 'on a CPU, 500 steps')
    """
    if loop not in LOOPS:
        raise ValueError(f"loop must be one of {LOOPS}, not {loop!r}")
    if loop == "while" and streams:
        raise ValueError(
            "loop: stream hands out the state after each step, and 'while' makes many in one program; "
            "use 'compiled' or 'eager'"
        )
    if loop != "auto":
        return loop, "asked for"
    device = device_of(params).type
    if steps < WORTH_COMPILING:
        picked, reason = "eager", f"{steps} steps are not worth compiling"
    elif device == "cpu" and freeze and _num_bytes(params) > CACHED:
        picked, reason = "compiled", f"on a CPU, {steps} steps with large constants"
    elif device == "cpu":
        picked, reason = "compiled" if streams else "while", f"on a CPU, {steps} steps"
    elif device == "cuda":
        picked, reason = "compiled", f"on a GPU, {steps} steps"
    else:
        picked, reason = "eager", f"device {device!r}"
    log.info("loop='auto' is %r: %s", picked, reason)
    return picked, reason


def _num_bytes(params: Any) -> int:
    leaves = torch_pytree.tree_leaves(params)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def device_of(params: Any) -> torch.device:
    """Returns the device of the first tensor in a pytree; the CPU where there is none."""
    leaves = torch_pytree.tree_leaves(params)
    return next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), torch.device("cpu"))
