"""Several stop rules as one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purgen.stop_rules.base import StopRule, reason_of
from purgen.view import TokenView

__all__ = ["all_of", "any_of"]


def any_of(*rules: StopRule) -> StopRule:
    """Stops a row when one of the rules does; without any rule, never.

    Args:
        *rules: in order of precedence: `stop_reason` is that of the first which fires.

    Returns:
        A `StopRule`.

    Raises:
        TypeError: an argument is no `StopRule`.

    Example:
        >>> import purgen
        >>> purgen.testing.check_stop_rule(purgen.any_of(purgen.eos(2), purgen.max_length(20)))
    """
    return _combine("any_of", rules, torch.logical_or)


def all_of(*rules: StopRule) -> StopRule:
    """Stops a row when all of the rules do, at the same token.

    Args:
        *rules: at least one; `stop_reason` is that of the first.

    Returns:
        A `StopRule`.

    Raises:
        TypeError: an argument is no `StopRule`.
        ValueError: no rule is given.

    Example:
        >>> import purgen
        >>> purgen.testing.check_stop_rule(purgen.all_of(purgen.eos(2), purgen.max_new_tokens(4)))
    """
    if not rules:
        raise ValueError("all_of: at least one rule is needed")
    return _combine("all_of", rules, torch.logical_and)


def _combine(owner: str, rules: tuple[StopRule, ...], join: Any) -> StopRule:
    for index, rule in enumerate(rules):
        if not isinstance(rule, StopRule):
            raise TypeError(f"{owner}: rule {index} must be a StopRule, not {type(rule).__name__}")

    def init(context: TokenView) -> dict[str, Any]:
        return {
            "rules": tuple([rule.init(context) for rule in rules]),
            "code": torch.zeros_like(context.length),  # int64 [B], of the rule that fired
        }

    def check(sstate: dict[str, Any], view: TokenView) -> tuple[Tensor, dict[str, Any]]:
        code = torch.zeros_like(view.length)
        stops, after = [], []
        for rule, state in zip(rules, sstate["rules"], strict=True):
            stop, state = rule.check(state, view)
            code = torch.where((code == 0) & stop, reason_of(rule, state, stop), code)
            stops.append(stop)
            after.append(state)
        together = torch.zeros_like(view.length, dtype=torch.bool) if not stops else stops[0]
        for stop in stops[1:]:
            together = join(together, stop)
        return together, {"rules": tuple(after), "code": code}

    return StopRule(init, check, code=lambda sstate: sstate["code"])
