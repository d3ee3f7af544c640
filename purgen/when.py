"""Transforms and stop rules that act on some rows, at some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from purgen.pytree import where_rows
from purgen.stop_rules.base import StopRule
from purgen.transforms.base import LogitsTransform
from purgen.view import TokenView

__all__ = ["when"]

Piece = TypeVar("Piece", LogitsTransform, StopRule)


def when(condition: Callable[[TokenView], Tensor], piece: Piece) -> Piece:
    """Applies a transform, or asks a stop rule, where a condition holds.

    Elsewhere logits pass unchanged (a rule does not fire) and the piece's state stays as it was.

    Args:
        condition: `condition(view) -> bool [B]`, a pure function.
        piece: a `LogitsTransform` or a `StopRule`.

    Returns:
        A piece of the same kind.

    Raises:
        TypeError: `condition` is no function, or `piece` is neither kind.

    Example:
        >>> import purgen
        >>> careful_start = purgen.when(
        ...     lambda view: view.num_new_tokens < 5, purgen.temperature(0.3)
        ... )
        >>> purgen.testing.check_transform(careful_start)
        >>> late = purgen.when(lambda view: view.num_new_tokens > 2, purgen.eos(1))
        >>> purgen.testing.check_stop_rule(late)
    """
    if not callable(condition):
        raise TypeError(f"when: condition must be a function, not {type(condition).__name__}")
    made: Any
    if isinstance(piece, LogitsTransform):
        made = _when_transform(condition, piece)
    elif isinstance(piece, StopRule):
        made = _when_rule(condition, piece)
    else:
        kind = type(piece).__name__
        raise TypeError(f"when: piece must be a LogitsTransform or StopRule, not {kind}")
    return made


def _when_transform(
    condition: Callable[[TokenView], Tensor], transform: LogitsTransform
) -> LogitsTransform:
    def apply(tstate: Any, logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        holds = condition(view)
        return where_rows(holds, transform.apply(tstate, logits, view), (logits, tstate))

    return LogitsTransform(transform.init, apply)


def _when_rule(condition: Callable[[TokenView], Tensor], rule: StopRule) -> StopRule:
    def check(sstate: Any, view: TokenView) -> tuple[Tensor, Any]:
        holds = condition(view)
        stop, after = rule.check(sstate, view)
        return stop & holds, where_rows(holds, after, sstate)

    return StopRule(rule.init, check, code=rule.code)
