r"""Numbers only: NaN becomes 0, and infinities the largest numbers of the dtype.

From transformers (`remove_invalid_values`), for loops that break where a logit is no number. None
here does.
"""

from __future__ import annotations

import torch

from purgen.transforms.base import LogitsTransform, stateless

__all__ = ["remove_invalid"]


def remove_invalid() -> LogitsTransform:
    """Replaces every logit that is not a finite number.

    It is the one transform for which NaN is not a forbidden token, and it makes forbidden tokens
    possible again: in a row where all are forbidden, each then is as likely as any other. So put it
    first in a chain, if anywhere.

    Returns:
        A `LogitsTransform`. Equal to `InfNanRemoveLogitsProcessor`.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.remove_invalid()
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> logits = torch.tensor([[torch.nan, torch.inf, -torch.inf]])
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[ 0.0000e+00,  3.4028e+38, -3.4028e+38]])
    """
    return stateless(lambda logits, view: torch.nan_to_num(logits, nan=0.0))
