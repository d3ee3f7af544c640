r"""Dia's classifier-free guidance: $\ell = \ell_c + s (\ell_c - \ell_u)$, and what it ranks best.

Nari Labs, "Dia", 2025, https://github.com/nari-labs/dia
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import keep_only
from purgen.transforms.pairs import both_halves, check_pairs, combine, halves
from purgen.transforms.positions import optional_setting
from purgen.transforms.top_k import top_k
from purgen.view import TokenView

__all__ = ["dia_guidance"]


def dia_guidance(
    guidance_scale: float | Tensor, *, guidance_top_k: int | Tensor | None = None
) -> LogitsTransform:
    """Guides conditional rows, centred on them, and keeps their own logits of the guided best.

    Rows are paired as in `purgen.guidance`, and both of a pair get the same logits: an exception to
    the independence of rows. Scale 0 is plain here (it is 1 there). Where a logit of a pair is
    infinite, the conditional one stands.

    Args:
        guidance_scale: at least 0; a float, 0-d or [2B] tensor, of which the conditional half counts.
        guidance_top_k: where given, only the k tokens with the best guided logits stay, with their
            conditional logits; at least 1; an int, 0-d or [2B] int64 tensor. Tokens tied with the
            k-th stay, more than V means all (see `purgen.top_k`).

    Returns:
        A `LogitsTransform`. Its conditional half is equal to that of transformers,
        `DiaClassifierFreeGuidanceLogitsProcessor`, which returns no other, demands a scale above 1,
        and of tied tokens keeps some.

    Raises:
        TypeError: `guidance_top_k` is no integer.
        ValueError: a number out of range, an odd number of rows.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.dia_guidance(3.0, guidance_top_k=1)
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=3)
        >>> logits = torch.tensor([[1.0, 2.0, 0.0], [1.0, 3.0, 1.0]])
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[1., -inf, -inf],
                [1., -inf, -inf]])
    """
    owner = "dia_guidance"
    largest = torch.finfo(torch.float32).max
    strength = setting(owner, "guidance_scale", guidance_scale, low=0.0, high=largest)
    count = optional_setting(owner, "guidance_top_k", guidance_top_k, low=1)
    best = None if count is None else top_k(count)

    def init(context: TokenView) -> dict[str, Any]:
        check_pairs(owner, context)
        tstate = {"scale": per_row(owner, "guidance_scale", strength, context)}
        if count is not None:
            tstate["count"] = per_row(owner, "guidance_top_k", count, context)
        return tstate

    def apply(tstate: dict[str, Any], logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        plain, other = halves(forbid_nan(logits))
        scale = halves(tstate["scale"])[0][:, None]
        dtype = logits.dtype if best is None else torch.float32
        guided = combine(plain.float(), plain.float(), other.float(), scale, dtype)
        if best is None:
            return both_halves(guided), tstate
        kept, _ = best.apply(halves(tstate["count"])[0], guided, view)
        return both_halves(keep_only(plain, kept > -torch.inf, -torch.inf)), tstate

    return LogitsTransform(init, apply)
