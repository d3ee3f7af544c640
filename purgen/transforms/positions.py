"""What the transforms share that act when a row has so many tokens.

transformers counts columns, left pads among them; here only real tokens count, so that a row begins
and ends at the same token alone and in a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.settings import per_row, setting
from purgen.view import TokenView

__all__ = ["begin_per_row", "end_per_row", "num_tokens", "optional_setting"]


def num_tokens(view: TokenView) -> Tensor:
    """Returns how many tokens each row has, prompt and new ones, int64 [B]."""
    return view.length - view.start


def optional_setting(
    owner: str, name: str, value: int | Tensor | None, *, low: int = 0
) -> Tensor | None:
    """Checks a count that may be left out: like `setting`, and None stays None."""
    return None if value is None else setting(owner, name, value, low=low, integer=True)


def begin_per_row(owner: str, name: str, begin: Tensor | None, context: TokenView) -> Tensor:
    """Lays out how many tokens a row has when it begins.

    Args:
        owner: the factory's name, for messages.
        name: the argument's name.
        begin: int64, 0-d or [B]; None stands for the length of the prompt.
        context: the view a generation begins with.

    Returns:
        int64 [B].
    """
    if begin is None:
        return context.prompt_length - context.start
    return per_row(owner, name, begin, context)


def end_per_row(owner: str, name: str, limit: Tensor | None, context: TokenView) -> Tensor:
    """Lays out how many tokens a row has when it ends: a limit, or the budget if that is less.

    Args:
        owner: the factory's name, for messages.
        name: the argument's name.
        limit: int64, 0-d or [B]; None stands for the budget alone.
        context: the view a generation begins with; a budget of 0 counts as unknown.

    Returns:
        int64 [B].

    Raises:
        ValueError: neither is known.
    """
    budget = context.prompt_length - context.start + context.max_new_tokens
    if limit is None:
        if context.max_new_tokens < 1:
            raise ValueError(
                f"{owner}: {name} is None, which stands for the budget of the generation, and that "
                f"is not known here; give {name}"
            )
        return budget
    limits = per_row(owner, name, limit, context)
    return torch.minimum(limits, budget) if context.max_new_tokens else limits
