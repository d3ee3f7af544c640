"""Numeric settings: a number, a 0-d tensor, or a tensor with one number a row.

A setting is checked when a factory is called and laid out as `[B]` when a generation begins, in the
state of the transform or rule. So it moves with its row, it is an input of a compiled program, and a
sweep over settings is one batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.view import TokenView

__all__ = ["check_vocabulary", "per_row", "setting", "token_ids"]


def setting(
    owner: str,
    name: str,
    value: float | Tensor,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    integer: bool = False,
) -> Tensor:
    """Checks a numeric setting at the place where it is made.

    Args:
        owner: the factory's name, for messages.
        name: the argument's name.
        value: a number, a 0-d tensor or a tensor [B].
        low: least allowed value.
        high: greatest allowed value.
        above: a bound that the value must exceed.
        integer: whether the setting counts something (int64), else it is float32.

    Returns:
        int64 or float32, 0-d or [B].

    Raises:
        TypeError: not a number, or not an integer where one is needed.
        ValueError: out of range, NaN, or a tensor with more than one axis.
    """
    wanted = "an int" if integer else "a float"
    if isinstance(value, Tensor):
        right_kind = not (value.dtype == torch.bool or value.is_complex())
        right_kind &= not (integer and value.is_floating_point())
    else:
        right_kind = isinstance(value, int if integer else (int, float))
        right_kind &= not isinstance(value, bool)
    if not right_kind:
        kind = value.dtype if isinstance(value, Tensor) else f"{type(value).__name__} {value!r}"
        raise TypeError(f"{owner}: {name} must be {wanted} or a tensor of one a row, not {kind}")
    tensor = torch.as_tensor(value, dtype=torch.int64 if integer else torch.float32)
    tensor = tensor.clone() if tensor is value else tensor  # the caller may change theirs
    if tensor.ndim > 1:
        raise ValueError(
            f"{owner}: {name} must be a number, a 0-d or a [B] tensor, not {list(tensor.shape)}"
        )
    if is_concrete(tensor):
        numbers = torch.as_tensor(value, dtype=torch.float64)
        limits = (("at least", low, numbers < (low or 0)), ("at most", high, numbers > (high or 0)))
        for words, limit, wrong in (*limits, ("above", above, numbers <= (above or 0))):
            if limit is not None and bool((wrong | numbers.isnan()).any()):
                bad = numbers[wrong | numbers.isnan()].flatten()[0].item()
                shown = int(bad) if integer else bad
                raise ValueError(f"{owner}: {name} must be {words} {limit}, not {shown}")
    return tensor


def per_row(owner: str, name: str, value: Tensor, context: TokenView) -> Tensor:
    """Lays a setting out as one number a row.

    Args:
        owner: the factory's name, for messages.
        name: the argument's name.
        value: 0-d or [B], as `setting` returns it.
        context: the view a generation begins with.

    Returns:
        [B], contiguous, on the device of the tokens.

    Raises:
        ValueError: a tensor [n] where the batch has another number of rows.
    """
    rows = context.tokens.shape[0]
    if value.ndim == 1 and value.shape[0] != rows:
        raise ValueError(
            f"{owner}: {name} has {value.shape[0]} numbers, one a row, and the batch has {rows} rows"
        )
    return value.to(context.tokens.device).expand(rows).clone(memory_format=torch.contiguous_format)


def token_ids(
    owner: str, name: str, value: int | Iterable[int] | Tensor, *, empty: bool = False
) -> Tensor:
    """Checks a set of token ids at the place where it is given.

    Args:
        owner: the factory's name, for messages.
        name: the argument's name.
        value: an id, several, or a tensor of them.
        empty: whether no id at all is allowed.

    Returns:
        int64 [n], sorted, each id once.

    Raises:
        TypeError: something else than integers.
        ValueError: a negative id, or none where one is needed.
    """
    given = value.flatten().tolist() if isinstance(value, Tensor) else value
    ids = [given] if isinstance(given, int) else list(given)
    for item in ids:
        if not isinstance(item, int) or isinstance(item, bool):
            raise TypeError(f"{owner}: {name} must hold ints, not {item!r}")
        if item < 0:
            raise ValueError(f"{owner}: {name} holds {item}; a token id is at least 0")
    if not ids and not empty:
        raise ValueError(f"{owner}: {name} is empty; it must hold a token id")
    return torch.tensor(sorted(set(ids)), dtype=torch.int64)


def check_vocabulary(owner: str, name: str, ids: Tensor, context: TokenView) -> None:
    """Raises ValueError if one of `ids` [n] lies outside the vocabulary of the context."""
    if not context.vocab_size or not ids.numel() or not is_concrete(ids):
        return
    if int(ids.max()) >= context.vocab_size:
        raise ValueError(
            f"{owner}: {name} holds {int(ids.max())}, outside the vocabulary "
            f"[0, {context.vocab_size})"
        )
