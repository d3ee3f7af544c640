"""The one error that says: this cannot be made pure, so it is refused."""

from __future__ import annotations

__all__ = ["Unsupported"]


class Unsupported(ValueError):
    """A model, processor or setting that bridge cannot turn into pure functions.

    The message names it and says why. Nothing is ever converted by guess.

    Example:
        >>> import bridge
        >>> raise bridge.Unsupported("model type 'rwkv' keeps its state outside a cache")
        Traceback (most recent call last):
        bridge.errors.Unsupported: model type 'rwkv' keeps its state outside a cache
    """
