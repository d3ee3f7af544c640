"""What the transforms share that single tokens out by their ids."""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.settings import token_ids

__all__ = ["forbid", "is_one_of", "one_id"]


def one_id(owner: str, name: str, value: int | Tensor) -> int:
    """Checks a token id at the place where it is given.

    Args:
        owner: the factory's name, for messages.
        name: the argument's name.
        value: an id, or a tensor that holds one.

    Returns:
        The id.

    Raises:
        TypeError: no integer.
        ValueError: negative, or more than one.
    """
    ids = token_ids(owner, name, value).tolist()
    if len(ids) != 1:
        raise ValueError(f"{owner}: {name} must be one token id, not {ids}")
    return int(ids[0])


def is_one_of(ids: Tensor, logits: Tensor) -> Tensor:
    """Tells which tokens of the vocabulary belong to a set.

    Args:
        ids: int64 [n], below V.
        logits: [..., V].

    Returns:
        bool [V].
    """
    nothing = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    return nothing.index_fill(0, ids.to(logits.device), True)


def forbid(logits: Tensor, forbidden: Tensor) -> Tensor:
    """Gives tokens the logit -inf.

    Args:
        logits: floating [B, V].
        forbidden: bool, broadcasts with [B, V].

    Returns:
        The same shape and dtype as `logits`.
    """
    return torch.where(forbidden, -torch.inf, logits)
