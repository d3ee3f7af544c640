"""How many compiled programs torch keeps for one function.

Every decoder of a kind has the same `step` function, every chain the same `apply`, so that decoders
which differ only in settings share a program. Those that differ in more, and other shapes, each need
their own, and torch refuses the ninth of a function: too few for a notebook.
"""

from __future__ import annotations

import torch._dynamo.config as config

__all__ = ["keep_many_programs"]

PER_FUNCTION, TOGETHER = 256, 4096


def keep_many_programs() -> None:
    """Raises torch's limits on programs a function and in all, where they are lower."""
    config.recompile_limit = max(config.recompile_limit, PER_FUNCTION)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, TOGETHER)
