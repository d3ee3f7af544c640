r"""Normalised logits: $\ell_i \to \ell_i - \log \sum_j e^{\ell_j}$.

What a search that adds up scores of several steps assumes of them.
"""

from __future__ import annotations

from purgen.logits import log_softmax
from purgen.transforms.base import LogitsTransform, stateless

__all__ = ["log_normalize"]


def log_normalize() -> LogitsTransform:
    """Turns logits into log-probabilities. No probability changes.

    Tokens at +inf share all probability; a row in which every token is forbidden stays so.

    Returns:
        A `LogitsTransform`. Equal to `LogitNormalization`, which gives NaN for such rows.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.log_normalize()
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=2)
        >>> transform.apply(transform.init(view), torch.tensor([[7.0, 7.0]]), view)[0]
        tensor([[-0.6931, -0.6931]])
    """
    return stateless(lambda logits, view: log_softmax(logits).to(logits.dtype))
