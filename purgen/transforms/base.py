"""The seam of logits transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from purgen.view import TokenView

__all__ = ["LogitsTransform", "stateless"]


@dataclasses.dataclass(frozen=True)
class LogitsTransform:
    """A pure change of next-token logits, with state where it needs one.

    Attributes:
        init: `init(context) -> tstate`. `context` is the view of the prompt, with `vocab_size` and
            `max_new_tokens`; `tstate` is any pytree of tensors with rows first.
        apply: `apply(tstate, logits [B, V], view) -> (logits [B, V], tstate)`, same shapes and dtypes.

    Example:
        >>> import purgen
        >>> def init(context):  # how often each token was the best
        ...     return context.tokens.new_zeros(len(context.start), context.vocab_size)
        >>> def apply(wins, logits, view):
        ...     best = logits == logits.amax(dim=-1, keepdim=True)
        ...     return logits - wins, wins + best
        >>> jealous = purgen.LogitsTransform(init, apply)
        >>> purgen.testing.check_transform(jealous)
    """

    init: Callable[[TokenView], Any]
    apply: Callable[[Any, Tensor, TokenView], tuple[Tensor, Any]]


def stateless(fn: Callable[[Tensor, TokenView], Tensor]) -> LogitsTransform:
    """Makes a transform of a pure function of logits and view.

    Args:
        fn: `fn(logits [B, V], view) -> logits [B, V]`.

    Returns:
        A `LogitsTransform` with empty state.

    Example:
        >>> import purgen
        >>> halve = purgen.stateless(lambda logits, view: logits / 2)
        >>> purgen.testing.check_transform(halve)
    """
    if not callable(fn):
        raise TypeError(f"stateless: fn must be a function, not {type(fn).__name__}")
    return LogitsTransform(
        lambda context: (), lambda tstate, logits, view: (fn(logits, view), tstate)
    )
