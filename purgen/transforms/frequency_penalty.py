r"""Frequency penalty: tokens become less likely each time they are chosen.

$\ell_i \to \ell_i - \alpha c_i$, where token $i$ occurs $c_i$ times in the row.

OpenAI API reference, "Frequency and presence penalties"; the same in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from purgen.transforms.base import LogitsTransform
from purgen.transforms.subtracting import subtract_from_seen

__all__ = ["frequency_penalty"]


def frequency_penalty(
    penalty: float | Tensor,
    *,
    scope: str = "generated",
    exempt: int | Iterable[int] | Tensor = (),
) -> LogitsTransform:
    """Subtracts `penalty` from the logit of a token for each time that the row holds it.

    `presence_penalty` does not count. Pads never count. Infinite logits stay.

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
        >>> transform = purgen.frequency_penalty(1.0)
        >>> view = purgen.testing.example_view([[0, 1, 2, 1]], vocab_size=4, num_new_tokens=3)
        >>> transform.apply(transform.init(view), torch.full((1, 4), 4.0), view)[0]
        tensor([[4., 2., 3., 4.]])
    """
    return subtract_from_seen(
        "frequency_penalty", penalty, scope=scope, exempt=exempt, each_time=True
    )
