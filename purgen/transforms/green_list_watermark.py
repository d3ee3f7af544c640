r"""Green-list watermark: $\ell_v \to \ell_v + \delta$ for the tokens $v$ that a keyed hash calls green.

Kirchenbauer et al., "A watermark for large language models", ICML 2023, arXiv:2301.10226 (its soft
watermark).
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.positions import num_tokens
from purgen.view import TokenView
from purgen.watermark.green_list import (
    BELOW_ONE,
    HASHING_KEY,
    check_scheme,
    hashing_keys,
    is_green,
    thresholds,
)

__all__ = ["green_list_watermark"]

OWNER = "green_list_watermark"


def green_list_watermark(
    greenlist_ratio: float | Tensor = 0.25,
    *,
    bias: float | Tensor = 2.0,
    hashing_key: int | Tensor = HASHING_KEY,
    seeding_scheme: str = "lefthash",
    context_width: int = 1,
) -> LogitsTransform:
    """Adds `bias` to the logits of green tokens, for `purgen.watermark.detect_green_list` to count.

    A token is green iff a hash of key, context and token is below `greenlist_ratio`
    (`purgen.watermark.green_list`), so each step has that share of green tokens on average. A row with
    fewer tokens than the context needs is left alone; pads are no context.

    Args:
        greenlist_ratio: in (0, 1); a float, 0-d or [B] tensor.
        bias: finite; a float, 0-d or [B] tensor. 0 marks nothing.
        hashing_key: the secret, at least 0; an int, 0-d or [B] int64 tensor.
        seeding_scheme: "lefthash": the context is the `context_width` newest tokens, in order.
            "selfhash": it is the `context_width - 1` newest and the candidate itself, which withstands
            edits better.
        context_width: how many tokens make a context, at least 1.

    Returns:
        A `LogitsTransform`. It does what `WatermarkLogitsProcessor` does, with other lists: that one
        shuffles the vocabulary with a `torch.Generator` seeded for each row and step, which no graph
        can hold and which differs between devices, and its lists hold the exact share of tokens. Its
        "lefthash" looks at the newest token only, whatever the width, and its "selfhash" marks none
        but the 40 best candidates. A text marked by one is not found by the detector of the other.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a number out of range, an unknown scheme.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.green_list_watermark(0.5, bias=3.0)
        >>> view = purgen.testing.example_view([[5]], vocab_size=6)
        >>> transform.apply(transform.init(view), torch.zeros(1, 6), view)[0]
        tensor([[0., 0., 0., 3., 3., 3.]])
    """
    largest = torch.finfo(torch.float32).max
    ratio = setting(OWNER, "greenlist_ratio", greenlist_ratio, above=0.0, high=BELOW_ONE)
    boost = setting(OWNER, "bias", bias, low=-largest, high=largest)
    secret = setting(OWNER, "hashing_key", hashing_key, low=0, integer=True)
    width = check_scheme(OWNER, seeding_scheme, context_width)

    def init(context: TokenView) -> dict[str, Tensor]:
        return {
            "threshold": thresholds(per_row(OWNER, "greenlist_ratio", ratio, context)),
            "bias": per_row(OWNER, "bias", boost, context),
            "key": hashing_keys(per_row(OWNER, "hashing_key", secret, context)),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        place = torch.arange(width, device=logits.device)
        slots = (view.length - width)[:, None] + place
        context = view.tokens.gather(1, slots.clamp(min=0))
        vocab_size = logits.shape[-1]
        green = is_green(tstate["key"], context, vocab_size, tstate["threshold"], seeding_scheme)
        green = green & (num_tokens(view) >= width)[:, None]
        scores = forbid_nan(logits)
        boosted = (scores.float() + tstate["bias"][:, None]).to(logits.dtype)
        return torch.where(green, boosted, scores), tstate

    return LogitsTransform(init, apply)
