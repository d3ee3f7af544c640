r"""Classifier-free guidance over paired rows: $\ell = \ell_u + s (\ell_c - \ell_u)$.

Sanchez et al., "Stay on topic with classifier-free guidance", 2023, arXiv:2306.17806; as used by
Copet et al., "Simple and controllable music generation" (MusicGen), NeurIPS 2023, arXiv:2306.05284.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.pairs import both_halves, check_pairs, combine, halves
from purgen.view import TokenView

__all__ = ["guidance"]


def guidance(guidance_scale: float | Tensor) -> LogitsTransform:
    """Guides conditional rows away from their unconditional partners.

    The batch is `[2B]`: row `i` of the first half is conditional, row `i` of the second its
    unconditional partner. Both get the guided logits, so both emit the same token and stay in step
    (with a strategy that draws, give them the same key: `rng_key=keys.repeat(2, 1)` with `keys`
    [B, 2]). A row thus depends on its partner, an exception to the independence of rows: whoever
    selects rows must select pairs.

    Scale 1 is plain decoding of the conditional rows, bitwise; 0 that of the unconditional ones, but
    for tokens that the condition forbids. Where a logit of a pair is infinite, the conditional one
    stands. `purgen.guided` does the same as a strategy, without doubling the batch.

    Args:
        guidance_scale: at least 0; a float, 0-d or [2B] tensor, of which the conditional half counts.

    Returns:
        A `LogitsTransform`. Its conditional half is equal to `ClassifierFreeGuidanceLogitsProcessor`,
        which returns that half only, allows no scale of 1 or less, and has NaN for two infinities.

    Raises:
        ValueError: `guidance_scale` negative or infinite; an odd number of rows.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.guidance(3.0)
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=3)
        >>> logits = torch.tensor([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[ 1.,  4., -2.],
                [ 1.,  4., -2.]])
    """
    largest = torch.finfo(torch.float32).max
    strength = setting("guidance", "guidance_scale", guidance_scale, low=0.0, high=largest)

    def init(context: TokenView) -> Tensor:
        check_pairs("guidance", context)
        return per_row("guidance", "guidance_scale", strength, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        plain, other = halves(forbid_nan(logits))
        scale = halves(tstate)[0][:, None]
        guided = combine(other.float(), plain.float(), other.float(), scale, logits.dtype)
        return both_halves(torch.where(scale == 1, plain, guided)), tstate

    return LogitsTransform(init, apply)
