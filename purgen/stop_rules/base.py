"""The seam of stop rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from purgen.state import StopReason
from purgen.view import TokenView

__all__ = ["StopRule", "reason_of"]


@dataclasses.dataclass(frozen=True)
class StopRule:
    """A pure test, row by row, whether a generation is over.

    It is asked after each new token. A row that has stopped is not asked again.

    Attributes:
        init: `init(context) -> sstate`. `context` is the view of the prompt, with `vocab_size` and
            `max_new_tokens`; `sstate` is any pytree of tensors with rows first.
        check: `check(sstate, view) -> (stop bool [B], sstate)`.
        code: what `stop_reason` says of a row that this rule stopped: an int above 0
            (`purgen.StopReason` names some), or a function `sstate -> int64 [B]`.

    Example:
        >>> import purgen
        >>> def check(sstate, view):
        ...     newest = view.tokens.gather(1, view.length[:, None] - 1)[:, 0]
        ...     return newest == 7, sstate
        >>> seven = purgen.StopRule(lambda context: (), check, code=107)
        >>> purgen.testing.check_stop_rule(seven)
    """

    init: Callable[[TokenView], Any]
    check: Callable[[Any, TokenView], tuple[Tensor, Any]]
    code: int | Callable[[Any], Tensor] = StopReason.CUSTOM

    def __post_init__(self) -> None:
        if not callable(self.code) and int(self.code) <= 0:
            raise ValueError(f"StopRule: code must be above 0, not {int(self.code)}; 0 is running")


def reason_of(rule: StopRule, sstate: Any, stop: Tensor) -> Tensor:
    """Returns the code of a rule for each row.

    Args:
        rule: the rule.
        sstate: its state, as `check` returned it.
        stop: bool [B], what `check` returned.

    Returns:
        int64 [B]; it means something where `stop` holds.
    """
    if callable(rule.code):
        return rule.code(sstate)
    return torch.full_like(stop, int(rule.code), dtype=torch.int64)
