r"""The green list: which tokens a context favours, and how many of them a text holds.

Token $v$ is green after a context $c$ iff $h(k, c, v) < \gamma$, where $h$ is a hash of the secret key
$k$, the context and the token, uniform on [0, 1). Of $T$ tokens of a text that knows nothing of $k$,
$\gamma T$ are green on average; the z-score of $g$ green ones is
$(g - \gamma T) / \sqrt{T \gamma (1 - \gamma)}$.

Kirchenbauer et al., "A watermark for large language models", ICML 2023, arXiv:2301.10226; the
schemes are those of Kirchenbauer et al., "On the reliability of watermarks for large language models",
ICLR 2024, arXiv:2306.04634.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen import random
from purgen.pytree import pytree_dataclass
from purgen.settings import setting
from purgen.watermark.windows import check_text, p_value, spread, windows

__all__ = [
    "BELOW_ONE",
    "HASHING_KEY",
    "GreenListScore",
    "check_scheme",
    "detect_green_list",
    "hashing_keys",
    "is_green",
    "thresholds",
]

HASHING_KEY = 15485863  # the millionth prime, the default of transformers
BELOW_ONE = 1 - 2**-24  # the greatest float32 below 1
SCHEMES = ("lefthash", "selfhash")


@pytree_dataclass
class GreenListScore:
    """What `detect_green_list` found.

    Attributes:
        num_tokens_scored: int64 [B], T.
        num_green_tokens: int64 [B], g.
        green_fraction: float32 [B], g / T; 0 where T is 0.
        z_score: float32 [B]; 0 where T is 0.
        p_value: float32 [B], probability of such a z-score or a greater one without a watermark.
    """

    num_tokens_scored: Tensor  # int64 [B]
    num_green_tokens: Tensor  # int64 [B]
    green_fraction: Tensor  # float32 [B]
    z_score: Tensor  # float32 [B]
    p_value: Tensor  # float32 [B]


def detect_green_list(
    tokens: Tensor,
    *,
    mask: Tensor | None = None,
    greenlist_ratio: float | Tensor = 0.25,
    hashing_key: int | Tensor = HASHING_KEY,
    seeding_scheme: str = "lefthash",
    context_width: int = 1,
    ignore_repeated_ngrams: bool = False,
) -> GreenListScore:
    """Counts the green tokens of a text.

    The settings are those of `purgen.green_list_watermark`, and must be those that it had. Tokens are
    scored from the first that has a whole context in `tokens`: best leave the prompt out.

    Args:
        tokens: int64 [B, L].
        mask: bool or 0/1 [B, L], False at pads; None where there are none.
        greenlist_ratio: gamma, in (0, 1); a float, 0-d or [B] tensor.
        hashing_key: the secret; an int, 0-d or [B] int64 tensor.
        seeding_scheme: "lefthash" or "selfhash".
        context_width: how many tokens make a context.
        ignore_repeated_ngrams: whether a run of context and token counts once only: text that
            repeats itself then is no more evidence than what it repeats.

    Returns:
        A `GreenListScore`.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a wrong value or shape.

    Example:
        >>> import torch, purgen
        >>> score = purgen.watermark.detect_green_list(torch.arange(400)[None])
        >>> score.num_tokens_scored, score.z_score.abs() < 3
        (tensor([399]), tensor([True]))
    """
    owner = "detect_green_list"
    tokens, mask = check_text(owner, tokens, mask)
    width = check_scheme(owner, seeding_scheme, context_width)
    ratio = setting(owner, "greenlist_ratio", greenlist_ratio, above=0.0, high=BELOW_ONE)
    ratio = spread(owner, "greenlist_ratio", ratio, tokens)
    secret = setting(owner, "hashing_key", hashing_key, low=0, integer=True)
    secret = spread(owner, "hashing_key", secret, tokens)
    grams, counts = windows(tokens, mask, width + 1)
    if ignore_repeated_ngrams:
        counts = counts & ~_repeated(grams, counts)
    green = is_green(
        hashing_keys(secret)[:, None].expand(*grams.shape[:2], 2).flatten(0, 1),
        grams[..., :-1].flatten(0, 1),
        grams[..., -1:].flatten(0, 1),
        thresholds(ratio)[:, None].expand(grams.shape[:2]).flatten(),
        seeding_scheme,
    )
    green = green.reshape(counts.shape) & counts
    scored, found = counts.sum(dim=1), green.sum(dim=1)
    deviation = (scored * ratio * (1 - ratio)).sqrt()
    z_score = torch.where(scored > 0, (found - ratio * scored) / deviation, 0.0)
    fraction = torch.where(scored > 0, found / scored, 0.0)
    return GreenListScore(scored, found, fraction, z_score, p_value(z_score))


def check_scheme(owner: str, seeding_scheme: str, context_width: int) -> int:
    """Checks a seeding scheme and returns how many tokens before the candidate it looks at.

    Raises:
        TypeError: `context_width` is no int.
        ValueError: an unknown scheme, a width below 1.
    """
    if seeding_scheme not in SCHEMES:
        raise ValueError(
            f"{owner}: seeding_scheme must be one of {SCHEMES}, not {seeding_scheme!r}"
        )
    if not isinstance(context_width, int) or isinstance(context_width, bool):
        kind = type(context_width).__name__
        raise TypeError(f"{owner}: context_width must be an int, not {kind} {context_width!r}")
    if context_width < 1:
        raise ValueError(f"{owner}: context_width must be at least 1, not {context_width}")
    return context_width - (seeding_scheme == "selfhash")


def hashing_keys(hashing_key: Tensor) -> Tensor:
    """Makes random keys int64 [B, 2] of secrets int64 [B], of which all bits count."""
    rows = random.key(0).to(hashing_key.device).expand(*hashing_key.shape, 2)
    return random.fold_in(random.fold_in(rows, hashing_key >> 32), hashing_key)


def thresholds(ratio: Tensor) -> Tensor:
    """Turns ratios float32 [B] into bounds of 32-bit words, int64 [B]."""
    return (ratio.double() * 2**32).round().to(torch.int64)


def is_green(
    key: Tensor, context: Tensor, token: Tensor | int, threshold: Tensor, seeding_scheme: str
) -> Tensor:
    """Tells which tokens are green after a context.

    "lefthash" hashes the context in order, then the token. "selfhash" hashes the candidate, and each
    token of the context with the candidate, and then the least of these hashes: an edit of the
    context changes the colour only where it touches the token of the least.

    Args:
        key: int64 [B, 2].
        context: int64 [B, w], the tokens before, oldest first; for "selfhash" w may be 0.
        token: int64 [B, C], candidates; or an int V, all of a vocabulary (C = V).
        threshold: int64 [B], as `thresholds` gives it.
        seeding_scheme: "lefthash" or "selfhash".

    Returns:
        bool [B, C].
    """
    if seeding_scheme == "lefthash":
        for place in range(context.shape[1]):
            key = random.fold_in(key, context[:, place])
        return _hash(key, token) < threshold[:, None]
    inner, outer = random.split(key).unbind(-2)
    least = _hash(inner, token)
    for place in range(context.shape[1]):
        before = random.fold_in(inner, context[:, place])
        least = torch.minimum(least, _hash(before, token))
    return _hash(outer, least) < threshold[:, None]


def _hash(key: Tensor, number: Tensor | int) -> Tensor:
    """Hashes numbers int64 [B, C], or those below an int C, to 32-bit words int64 [B, C]."""
    if isinstance(number, int):
        return random.bits(key, (number,))
    words = random.fold_in(key[:, None], number)  # of which `bits` is the sum without carry
    return words[..., 0] ^ words[..., 1]


def _repeated(grams: Tensor, counts: Tensor) -> Tensor:
    """Tells which windows [B, M, n] were there before, bool [B, M]."""
    same = (grams[:, :, None] == grams[:, None]).all(dim=-1) & counts[:, None]
    return torch.tril(same, diagonal=-1).any(dim=-1)
