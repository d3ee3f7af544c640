r"""SynthID-Text: g-values of n-grams, and how high they are in a text.

A 64-bit linear congruential hash of an n-gram and of the key of a layer $l$ points into a table of
random bits: the g-value $g_l \in \{0, 1\}$ of the n-gram. Marking raises the probability of tokens with
g-values of 1, so a detector takes the mean of the g-values of a text, $1/2$ without a watermark. In
the weighted mean the first layers, which hold more of the evidence, count more.

Dathathri et al., "Scalable watermarking for identifying large language model outputs", Nature 634,
2024, doi:10.1038/s41586-024-08025-4. Hash and table are, bit for bit, those of transformers on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purgen.pytree import pytree_dataclass
from purgen.watermark.windows import check_text, p_value, windows

__all__ = [
    "SynthIDScore",
    "check_synthid",
    "detect_synthid",
    "g_value",
    "g_values",
    "hash_of",
    "make_table",
    "sampling_table",
]

_MULTIPLIER = 6364136223846793005  # of the generator in newlib and musl


@pytree_dataclass
class SynthIDScore:
    """What `detect_synthid` found.

    Attributes:
        num_tokens_scored: int64 [B].
        mean: float32 [B], mean g-value; 1/2 where nothing was scored.
        weighted_mean: float32 [B], mean with weights that fall from 10 to 1 over the layers; likewise.
        z_score: float32 [B], standard deviations of `weighted_mean` above 1/2; 0 likewise.
        p_value: float32 [B], probability of such a z-score or a greater one without a watermark.
    """

    num_tokens_scored: Tensor  # int64 [B]
    mean: Tensor  # float32 [B]
    weighted_mean: Tensor  # float32 [B]
    z_score: Tensor  # float32 [B]
    p_value: Tensor  # float32 [B]


def detect_synthid(
    tokens: Tensor,
    *,
    ngram_len: int,
    keys: Sequence[int],
    mask: Tensor | None = None,
    sampling_table_size: int = 2**16,
    sampling_table_seed: int = 0,
    sampling_table: Tensor | None = None,
    context_history_size: int = 1024,
) -> SynthIDScore:
    """Measures how high the g-values of a text are.

    The settings are those of `purgen.synthid_watermark`, and must be those that it had. Left out are,
    as in marking, tokens after a context that was there before. The trained (Bayesian) detector of
    the paper is not part of purgen.

    Args:
        tokens: int64 [B, L], best without the prompt.
        ngram_len: n, how many tokens are hashed together, at least 2.
        keys: the secret, a number a layer.
        mask: bool or 0/1 [B, L], False at pads; None where there are none.
        sampling_table_size: bits in the table.
        sampling_table_seed: what the table is made from.
        sampling_table: the table itself, integers 0 and 1 [size], in place of size and seed.
        context_history_size: how many contexts back a repetition is noticed.

    Returns:
        A `SynthIDScore`.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a wrong value or shape.

    Example:
        >>> import torch, purgen
        >>> keys = [654, 400, 836, 123, 340, 443, 597, 160, 57]
        >>> score = purgen.watermark.detect_synthid(torch.arange(400)[None], ngram_len=5, keys=keys)
        >>> score.num_tokens_scored, score.z_score.abs() < 3
        (tensor([396]), tensor([True]))
    """
    owner = "detect_synthid"
    tokens, mask = check_text(owner, tokens, mask)
    check_synthid(owner, ngram_len, keys, sampling_table_size, context_history_size)
    table = make_table(owner, sampling_table_size, sampling_table_seed, sampling_table)
    table = table.to(tokens.device)
    grams, counts = windows(tokens, mask, ngram_len)
    counts = counts & ~_repeated(hash_of(grams[..., :-1]), counts, context_history_size)
    values = g_values(hash_of(grams), keys, table).float()  # [B, M, depth]
    weight = torch.linspace(10.0, 1.0, len(keys), device=tokens.device)
    weight = weight / weight.sum()
    total = (values * counts[..., None]).sum(dim=1)  # [B, depth]
    scored = counts.sum(dim=1)
    some = scored > 0
    layers = torch.where(some[:, None], total / scored[:, None], 0.5)
    weighted = (layers * weight).sum(dim=-1)
    spread = (weight.square().sum() / 4 / scored).sqrt()  # of the mean of fair coins
    z_score = torch.where(some, (weighted - 0.5) / spread, 0.0)
    return SynthIDScore(scored, layers.mean(dim=-1), weighted, z_score, p_value(z_score))


def check_synthid(
    owner: str,
    ngram_len: int,
    keys: Sequence[int],
    sampling_table_size: int,
    context_history_size: int,
) -> None:
    """Raises TypeError or ValueError naming the setting that is wrong."""
    given = (
        ("ngram_len", ngram_len, 2, None),
        ("sampling_table_size", sampling_table_size, 1, 2**24),
        ("context_history_size", context_history_size, 0, None),
        *(("keys", key, -(2**63), 2**63 - 1) for key in keys),
    )
    for name, value, low, high in given:
        if not isinstance(value, int) or isinstance(value, bool):
            kind = type(value).__name__
            raise TypeError(f"{owner}: {name} must be an int, not {kind} {value!r}")
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ValueError(f"{owner}: {name} must be {limits}, not {value}")
    if not len(keys):
        raise ValueError(f"{owner}: keys is empty; it must hold a number a layer")


def sampling_table(size: int, seed: int) -> Tensor:
    """Makes the table of random bits int64 [size], from a generator of its own, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, (size,), generator=generator)


def make_table(owner: str, size: int, seed: int, given: Tensor | None) -> Tensor:
    """Returns the table that is given, checked, or else makes one of size and seed."""
    if given is None:
        return sampling_table(size, seed)
    if given.ndim != 1 or not len(given) or not bool(((given == 0) | (given == 1)).all()):
        raise ValueError(f"{owner}: sampling_table must hold 0 and 1, in one axis of at least 1")
    return given.to(torch.int64)


def hash_of(data: Tensor, begin: Tensor | int = 1) -> Tensor:
    """Hashes numbers into a running hash, modulo 2**64.

    Args:
        data: int64 [..., n], n at least 1.
        begin: int64, broadcasts with [...]; 1 begins a hash.

    Returns:
        int64 [...]. Hashing a, then b, is hashing both at once.
    """
    result = torch.as_tensor(begin)
    for place in range(data.shape[-1]):
        result = (result + data[..., place]) * _MULTIPLIER + 1
    return result


def g_value(hashed: Tensor, key: int, table: Tensor) -> Tensor:
    """Looks up the g-value of n-grams in one layer.

    Args:
        hashed: int64 [...], hashes of n-grams.
        key: of the layer.
        table: int64 [size], of 0 and 1.

    Returns:
        int64 [...].
    """
    return table[((hashed + key) * _MULTIPLIER + 1) % table.shape[0]]


def g_values(hashed: Tensor, keys: Sequence[int], table: Tensor) -> Tensor:
    """Looks up the g-values of n-grams in all layers: int64 [...] to int64 [..., depth]."""
    return torch.stack([g_value(hashed, key, table) for key in keys], dim=-1)


def _repeated(context: Tensor, counts: Tensor, history: int) -> Tensor:
    """Tells which contexts, as hashes [B, M], are among the `history` before them, bool [B, M]."""
    same = (context[:, :, None] == context[:, None]) & counts[:, None]
    place = torch.arange(context.shape[1], device=context.device)
    back = place[:, None] - place
    return (same & (back > 0) & (back <= history)).any(dim=-1)
