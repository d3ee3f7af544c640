"""Transforms one after the other."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from purgen.transforms.base import LogitsTransform
from purgen.view import TokenView

__all__ = ["chain", "named_chain"]


def chain(*transforms: LogitsTransform) -> LogitsTransform:
    """Applies transforms in the order given; without any, the identity.

    Args:
        *transforms: the first sees the model's logits.

    Returns:
        A `LogitsTransform`; its state is a tuple of theirs.

    Raises:
        TypeError: an argument is no `LogitsTransform`.

    Example:
        >>> import purgen
        >>> warp = purgen.chain(purgen.temperature(0.8), purgen.top_k(50), purgen.top_p(0.95))
        >>> purgen.testing.check_transform(warp)
    """
    for index, transform in enumerate(transforms):
        _check(f"chain: transform {index}", transform)

    def init(context: TokenView) -> tuple[Any, ...]:
        return tuple([transform.init(context) for transform in transforms])

    def apply(
        tstate: tuple[Any, ...], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, tuple[Any, ...]]:
        after = []
        for transform, state in zip(transforms, tstate, strict=True):
            logits, state = transform.apply(state, logits, view)
            after.append(state)
        return logits, tuple(after)

    return LogitsTransform(init, apply)


def named_chain(
    *pairs: tuple[str, LogitsTransform], **transforms: LogitsTransform
) -> LogitsTransform:
    """Applies transforms in the order given and keeps their state by name.

    Args:
        *pairs: `(name, transform)`.
        **transforms: more of them, by keyword.

    Returns:
        A `LogitsTransform`; its state is a dict.

    Raises:
        TypeError: a value is no `LogitsTransform`.
        ValueError: a name is given twice.

    Example:
        >>> import purgen
        >>> warp = purgen.named_chain(heat=purgen.temperature(0.8), nucleus=purgen.top_p(0.95))
        >>> purgen.testing.check_transform(warp)
    """
    members: dict[str, LogitsTransform] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"named_chain: an argument must be (name, transform), not {pair!r}")
    for name, transform in (*pairs, *transforms.items()):
        _check(f"named_chain: {name!r}", transform)
        if name in members:
            raise ValueError(f"named_chain: the name {name!r} is given twice")
        members[name] = transform

    def init(context: TokenView) -> dict[str, Any]:
        return {name: transform.init(context) for name, transform in members.items()}

    def apply(
        tstate: dict[str, Any], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Any]]:
        after = {}
        for name, transform in members.items():
            logits, after[name] = transform.apply(tstate[name], logits, view)
        return logits, after

    return LogitsTransform(init, apply)


def _check(place: str, transform: Any) -> None:
    if not isinstance(transform, LogitsTransform):
        raise TypeError(
            f"{place} must be a LogitsTransform, not {type(transform).__name__}; "
            "purgen.stateless(fn) makes one of a function"
        )
