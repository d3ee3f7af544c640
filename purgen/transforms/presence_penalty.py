r"""Presence penalty: tokens that are there already become less likely, by a constant.

$\ell_i \to \ell_i - \alpha$ for each token $i$ that the row holds.

OpenAI API reference, "Frequency and presence penalties"; the same in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from purgen.transforms.base import LogitsTransform
from purgen.transforms.subtracting import subtract_from_seen

__all__ = ["presence_penalty"]


def presence_penalty(
    penalty: float | Tensor,
    *,
    scope: str = "generated",
    exempt: int | Iterable[int] | Tensor = (),
) -> LogitsTransform:
    """Subtracts `penalty` from the logits of the tokens that the row holds.

    Each token is penalised once, however often it occurs; `frequency_penalty` counts. Pads never
    count. Infinite logits stay.

    Args:
        penalty: finite; above 0 discourages, below 0 encourages. A float, 0-d or [B] tensor. The API
            of OpenAI allows -2 to 2.
        scope: which tokens count: "all", those of the "prompt", or those "generated".
        exempt: ids that are never penalised.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: `penalty` is not finite, an unknown `scope`, an id outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.presence_penalty(1.0)
        >>> view = purgen.testing.example_view([[0, 1, 2, 1]], vocab_size=4, num_new_tokens=3)
        >>> transform.apply(transform.init(view), torch.full((1, 4), 4.0), view)[0]
        tensor([[4., 3., 3., 4.]])
    """
    return subtract_from_seen(
        "presence_penalty", penalty, scope=scope, exempt=exempt, each_time=False
    )
