"""Ratios of running times, measured in alternation in one process."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How long ours takes, as a share of theirs.

    Attributes:
        ours: seconds, median.
        theirs: seconds, median.
        low: least ratio of neighbouring runs.
        median: median ratio.
        high: greatest.
    """

    ours: float
    theirs: float
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.ours * 1e3:9.2f} ms {self.theirs * 1e3:9.2f} ms   "
            f"{self.median:6.3f} ({self.low:.3f} to {self.high:.3f})"
        )


def compare(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    repeats: int = 7,
    seconds: float = 0.1,
) -> Ratio:
    """Times two functions turn by turn.

    Args:
        ours: what is measured.
        theirs: what it is measured against.
        repeats: how many turns.
        seconds: how long each turn of each should take at least.

    Returns:
        The ratio with its spread.
    """

    def once(function: Callable[[], object], calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - began) / calls

    with torch.no_grad():
        calls = [max(1, round(seconds / min(once(f, 1), once(f, 1)))) for f in (ours, theirs)]
        turns = [(once(ours, calls[0]), once(theirs, calls[1])) for _ in range(repeats)]
    ratios = sorted(a / b for a, b in turns)
    return Ratio(
        ours=statistics.median(a for a, _ in turns),
        theirs=statistics.median(b for _, b in turns),
        low=ratios[0],
        median=statistics.median(ratios),
        high=ratios[-1],
    )
