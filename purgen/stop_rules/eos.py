"""Stops at an end-of-sequence token."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from purgen.settings import check_vocabulary, token_ids
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView, last_token

__all__ = ["eos"]


def eos(eos_token_id: int | Iterable[int] | Tensor) -> StopRule:
    """Stops a row whose newest token is one of a set. The token stays in the output.

    Args:
        eos_token_id: an id or several.

    Returns:
        A `StopRule` with `StopReason.EOS`. Equal to `EosTokenCriteria`.

    Raises:
        ValueError: no id, a negative one, or one outside the vocabulary.

    Example:
        >>> import purgen
        >>> rule = purgen.eos([2, 5])
        >>> view = purgen.testing.example_view([[1, 2], [1, 3], [4, 5]])
        >>> rule.check(rule.init(view), view)[0]
        tensor([ True, False,  True])
    """
    ids = token_ids("eos", "eos_token_id", eos_token_id)

    def init(context: TokenView) -> Tensor:
        check_vocabulary("eos", "eos_token_id", ids, context)
        return ids.to(context.tokens.device).repeat(len(context.tokens), 1)  # int64 [B, n]

    def check(sstate: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        return (last_token(view)[:, None] == sstate).any(dim=1), sstate

    return StopRule(init, check, code=StopReason.EOS)
