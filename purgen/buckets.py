"""How long buffers are made, so that lengths share programs and a step costs what is used."""

from __future__ import annotations

import dataclasses

__all__ = ["Buckets"]

# The tokens themselves cost 8 bytes a slot: their buckets are wide, so that they add no programs.
_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The policy by which caches grow and lengths are rounded up.

    A cache begins with the bucket that holds the prompt and grows to the next as it fills, so that
    attention passes over what is used rather than over the whole budget. A compiled step exists once
    a bucket: at most log2(budget / smallest) programs, whatever prompts and budgets come.

    Attributes:
        smallest: int, slots of the first bucket.
        factor: int, at least 2, how much larger the next one is.
        grow: bool, whether caches grow; if not, they have room for the whole budget at once.

    Raises:
        ValueError: `smallest` is below 1 or `factor` below 2.

    Example:
        >>> buckets = Buckets(smallest=64)
        >>> [buckets.fit(slots) for slots in (1, 64, 65, 300)]
        [64, 64, 128, 512]
    """

    smallest: int = 64
    factor: int = 2
    grow: bool = True

    def __post_init__(self) -> None:
        for name, least in (("smallest", 1), ("factor", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"Buckets: {name} must be an int of at least {least}, not {value!r}"
                )

    def fit(self, slots: int) -> int:
        """Returns the smallest bucket of at least `slots` slots."""
        size = self.smallest
        while size < slots:
            size *= self.factor
        return size

    def fit_tokens(self, slots: int) -> int:
        """Returns how many slots the token buffer gets where `slots` can be filled."""
        return Buckets(self.smallest * _TOKENS, self.factor**2).fit(slots)

    def fit_cache(self, filled: int, slots: int) -> int:
        """Returns how many slots a cache gets.

        Args:
            filled: how many must be there now.
            slots: how many can be filled at all.
        """
        return self.fit(filled if self.grow else slots)
