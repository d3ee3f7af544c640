"""Random numbers as pure functions of a key.

Threefry-2x32: element `i` of a draw is a hash of the key and of the counter `i`, and of nothing
else. There is no generator and no state, so a draw is the same in any batch, any loop, any order
and on any device, and one element can be drawn without its neighbours (`gumbel_at`).

Keys, words, uniforms, Bernoulli draws and integers are bit for bit those of `jax.random` (its
default, partitionable threefry). Gumbel and exponential noise are within 1 float32 ulp of what jax
computes on a CPU, normal noise within 3, at every one of the 2**23 uniforms that there are.

A key is an int64 tensor [..., 2] that holds two 32-bit words. Every function takes batched keys:
each key draws its own block, as `torch.vmap` over the keys would. Use a key for one draw only, and
make others of it with `split` and `fold_in`.

Reference:
    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.logits import tame
from purgen.threefry import (
    UNIT_BITS,
    WORD,
    draw_at,
    gumbel_of,
    normal_of,
    threefry,
    unit_of,
    words_of,
)

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "exponential",
    "fold_in",
    "gumbel",
    "gumbel_at",
    "key",
    "normal",
    "randint",
    "split",
    "uniform",
]

_INT_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Gumbel noise spans 20.5, from the least to the greatest: no token further below the best can win.
_GUMBEL_RANGE = 21.0


def key(seed: int | Tensor) -> Tensor:
    """Make a key from a seed.

    A seed that fits in 32 bits, signed or not, fills the low word: -1 gives `[0, 2**32 - 1]`, as in
    jax. A longer seed fills both words (two's complement), as in jax with 64-bit types; without
    them jax drops the high word, so that different seeds give one key.

    Args:
        seed: int from -2**63 to 2**63 - 1, or an integer tensor [].

    Returns:
        int64 [2].

    Raises:
        TypeError: if `seed` is not an integer.
        ValueError: if `seed` is a tensor with axes, or does not fit in 64 bits.

    Example:
        >>> key(42)
        tensor([ 0, 42])
    """
    seed = _integer("seed", seed, -(2**63), 2**63 - 1)
    if seed.ndim:
        raise ValueError(f"seed must be one integer, got a tensor of shape {list(seed.shape)}")
    short = (seed >= -(2**31)) & (seed < 2**32)
    return torch.stack([torch.where(short, 0, seed >> 32), seed]) & WORD


def split(key: Tensor, num: int = 2) -> Tensor:
    """Make `num` independent keys from one. Key `i` is `fold_in(key, i)`, whatever `num` is.

    Args:
        key: int64 [..., 2].
        num: how many, at least 1.

    Returns:
        int64 [..., num, 2].

    Example:
        >>> split(key(0), 3)[1].equal(split(key(0), 2)[1])
        True
    """
    _check_key(key)
    if not isinstance(num, (int, torch.SymInt)) or num < 1:
        raise ValueError(f"num must be an int of at least 1, got {num!r}")
    return fold_in(key.unsqueeze(-2), torch.arange(num, device=key.device))


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """Make a new key from a key and a number, such as the index of a row or of a step.

    Args:
        key: int64 [..., 2].
        data: int from 0 to 2**32 - 1, or an integer tensor, of which the low 32 bits count. It
            broadcasts with the leading axes of `key`.

    Returns:
        int64 [..., 2], the leading axes broadcast.

    Example:
        >>> fold_in(split(key(0), 4), torch.arange(4)).shape
        torch.Size([4, 2])
    """
    _check_key(key)
    data = _integer("data", data, 0, WORD, device=key.device)
    words = threefry(*words_of(key, data & WORD))
    return torch.stack(words, -1).to(torch.int64) & WORD


def bits(key: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Draw 32-bit words.

    Args:
        key: int64 [..., 2].
        shape: shape of the draw of one key.

    Returns:
        int64 [..., *shape], from 0 to 2**32 - 1.

    Example:
        >>> bits(key(0), (2,))
        tensor([4070199207, 4202968722])
    """
    return _draw(key, shape, lambda x0, x1: (x0 ^ x1).to(torch.int64) & WORD)


def uniform(
    key: Tensor,
    shape: Sequence[int] = (),
    dtype: torch.dtype = torch.float32,
    minval: float | Tensor = 0.0,
    maxval: float | Tensor = 1.0,
) -> Tensor:
    """Draw uniformly from `[minval, maxval)`.

    A draw from [0, 1) is a random mantissa: in float32, a multiple of 2**-23. Other intervals are
    scaled from it: rounding may then give `maxval` itself, as in jax, and in bfloat16 and float64
    (not in float32) the last bit may not be jax's.

    Args:
        key: int64 [..., 2].
        shape: shape of the draw of one key.
        dtype: bfloat16, float16, float32 or float64.
        minval: lower bound, float or a tensor that broadcasts with the result.
        maxval: upper bound, likewise. Where tensors leave nothing between them, the draw is `minval`.

    Returns:
        `dtype` [..., *shape].

    Example:
        >>> uniform(key(0), (2,))
        tensor([0.9477, 0.9786])
    """
    _check_bounds(minval, maxval)
    if dtype not in UNIT_BITS:
        raise ValueError(f"dtype must be one of {list(UNIT_BITS)}, got {dtype}")
    unit = _draw(key, shape, lambda x0, x1: unit_of(x0, x1, dtype))
    low = torch.as_tensor(minval, dtype=dtype, device=key.device)
    span = torch.as_tensor(maxval, dtype=dtype, device=key.device) - low
    # Rounded once, like the fused multiply-add of XLA: the product is exact in float64.
    scaled = (unit.double() * span.double() + low.double()).to(dtype)
    return torch.maximum(scaled, low)


def gumbel(key: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Draw standard Gumbel noise, -log(-log(u)).

    Args:
        key: int64 [..., 2].
        shape: shape of the draw of one key.

    Returns:
        float32 [..., *shape], always finite: from -4.5 to 16.

    Example:
        >>> gumbel(key(0), (2,))
        tensor([2.9234, 3.8326])
    """
    return _draw(key, shape, gumbel_of)


def gumbel_at(key: Tensor, index: Tensor) -> Tensor:
    """Draw some elements of `gumbel(key, (V,))` only, such as those of the tokens that survive.

    Args:
        key: int64 [..., 2].
        index: int64 [..., C], positions in the draw; leading axes broadcast with those of `key`.

    Returns:
        float32 [..., C], bit for bit what the whole draw has at `index`.

    Example:
        >>> index = torch.tensor([7, 2])
        >>> gumbel_at(key(0), index).equal(gumbel(key(0), (100,))[index])
        True
    """
    _check_key(key)
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.ndim == 0:
        raise TypeError(f"index must be an int64 tensor [..., C], got {_describe(index)}")
    return draw_at(key, index, gumbel_of)


def normal(key: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Draw from the standard normal distribution.

    Args:
        key: int64 [..., 2].
        shape: shape of the draw of one key.

    Returns:
        float32 [..., *shape], from -5.5 to 5.5.

    Example:
        >>> normal(key(0), (2,))
        tensor([1.6226, 2.0253])
    """
    return _draw(key, shape, normal_of)


def exponential(key: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """Draw from the exponential distribution of rate 1, -log(1 - u).

    Args:
        key: int64 [..., 2].
        shape: shape of the draw of one key.

    Returns:
        float32 [..., *shape], from 0 to 16.

    Example:
        >>> exponential(key(0), (2,))
        tensor([2.9501, 3.8434])
    """
    return _draw(key, shape, lambda x0, x1: -torch.log1p(-unit_of(x0, x1).double()).float())


def bernoulli(key: Tensor, p: float | Tensor = 0.5, shape: Sequence[int] | None = None) -> Tensor:
    """Draw True with probability `p`.

    Args:
        key: int64 [..., 2].
        p: float from 0 to 1, or a floating tensor that broadcasts with the result.
        shape: shape of the draw of one key. None: that of `p`, which with batched keys begins with
            their axes (one `p` a row) or has none.

    Returns:
        bool [..., *shape].

    Example:
        >>> bernoulli(split(key(1), 3), torch.tensor([0.0, 0.5, 1.0]))
        tensor([False,  True,  True])
    """
    _check_key(key)
    if not isinstance(p, Tensor):
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p must be from 0 to 1, got {p}")
        p = torch.tensor(p, dtype=torch.float32, device=key.device)
    elif not p.is_floating_point():
        raise TypeError(f"p must be a float or a floating tensor, got {_describe(p)}")
    if shape is None:
        shape = _row_shape("p", p, key) if p.ndim else ()
    return _draw(key, shape, unit_of) < p.float()


def randint(
    key: Tensor, shape: Sequence[int], minval: int | Tensor, maxval: int | Tensor
) -> Tensor:
    """Draw integers from `[minval, maxval)`.

    Args:
        key: int64 [..., 2].
        shape: shape of the draw of one key.
        minval: least value, from -2**31: int, or an integer tensor that broadcasts with the result.
        maxval: one past the greatest, up to 2**31 - 1, likewise. Where tensors leave nothing
            between them, the draw is `minval`.

    Returns:
        int64 [..., *shape].

    Example:
        >>> randint(key(0), (3,), 0, 100)
        tensor([89,  0, 12])
    """
    _check_key(key)
    _check_bounds(minval, maxval)
    low = _integer("minval", minval, -(2**31), 2**31 - 1, device=key.device)
    high = _integer("maxval", maxval, -(2**31), 2**31 - 1, device=key.device)
    span = (high - low).clamp_min(1)
    upper, lower = (bits(half, shape) for half in split(key).unbind(-2))
    # The 64 bits modulo span, with 2**32 % span taken in 32 bits as jax does: 0 from 2**16 on.
    carry = (2**16 % span) ** 2 % 2**32 % span
    return low + (upper % span * carry + lower % span) % span


def categorical(key: Tensor, logits: Tensor) -> Tensor:
    """Draw an index from each row of logits by the Gumbel-max trick, argmax(logits + gumbel).

    -inf and NaN are never drawn. +inf is drawn before all that is finite, and evenly among several.
    A row where nothing is allowed gives 0: callers look for such rows first.

    Args:
        key: int64 [2], one draw of noise shaped like `logits`, as in jax; or int64 [*rows, 2], a
            key a row, so that no row depends on the others.
        logits: floating [..., V], or [*rows, ..., V]. The noise is float32, and so is the sum
            unless `logits` is float64.

    Returns:
        int64, `logits.shape` without the last axis.

    Raises:
        TypeError: if `logits` is not a floating tensor.
        ValueError: if `logits` has no last axis, or an empty one, or does not begin with the axes
            of the keys.

    Example:
        >>> categorical(key(0), torch.tensor([-torch.inf, 0.0, -torch.inf]))
        tensor(1)
    """
    _check_key(key)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a floating tensor [..., V], got {_describe(logits)}")
    shape = _row_shape("logits", logits, key)
    if not shape or shape[-1] == 0:
        raise ValueError(f"logits must be [..., V] with V > 0, got {_describe(logits)}")
    logits = tame(logits)  # among infinities the noise alone decides
    possible = logits >= logits.amax(-1, keepdim=True) - _GUMBEL_RANGE
    # A look at the candidates; on other devices than the CPU it would cost more than the noise.
    if is_concrete(key, possible) and logits.device.type == "cpu":
        place = possible.flatten().nonzero()[:, 0]  # ascending
        if 4 * len(place) < possible.numel():
            return _draw_among(key, logits, place)
    return torch.argmax(logits + _draw(key, shape, gumbel_of), -1)


def _draw_among(key: Tensor, logits: Tensor, place: Tensor) -> Tensor:
    """Draw as `categorical` does, with noise for the tokens at `place` [n] of all logits alone."""
    keys, vocab_size = key.reshape(-1, 2), logits.shape[-1]
    block = logits.numel() // len(keys)
    noise = draw_at(keys[place // block], (place % block)[:, None], gumbel_of)[:, 0]
    scores = logits.flatten()[place] + noise
    row, token = place // vocab_size, place % vocab_size
    empty = scores.new_full((logits.numel() // vocab_size,), -torch.inf)
    best = empty.scatter_reduce(0, row, scores, "amax")
    # Of equal scores the first wins, as in argmax.
    token = torch.where(scores == best[row], token, vocab_size - 1)
    first = torch.full_like(empty, vocab_size - 1, dtype=torch.int64)
    return first.scatter_reduce(0, row, token, "amin").reshape(logits.shape[:-1])


def _draw(key: Tensor, shape: Sequence[int], convert: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Draw `shape` for each key: element `i`, in row-major order, comes from counter `i`."""
    _check_key(key)
    if not isinstance(shape, (tuple, list)) or any(size < 0 for size in shape):
        raise ValueError(f"shape must be a tuple of sizes, got {shape!r}")
    index = torch.arange(math.prod(shape), device=key.device)
    return draw_at(key, index, convert).reshape((*key.shape[:-1], *shape))


def _check_key(key: Tensor) -> None:
    if not isinstance(key, Tensor) or key.dtype != torch.int64 or key.shape[-1:] != (2,):
        raise TypeError(
            f"key must be an int64 tensor [..., 2], such as random.key(0), got {_describe(key)}"
        )


def _check_bounds(minval: float | Tensor, maxval: float | Tensor) -> None:
    if isinstance(minval, Tensor) or isinstance(maxval, Tensor):
        return  # tensors are never read: under torch.compile and vmap they have no value yet
    if not -math.inf < minval < maxval < math.inf:
        raise ValueError(f"minval must be less than maxval, got {minval} and {maxval}")


def _integer(
    name: str, value: int | Tensor, least: int, most: int, device: torch.device | None = None
) -> Tensor:
    """Return an integer as an int64 tensor. The bounds hold for Python numbers only."""
    if isinstance(value, Tensor):
        if value.dtype not in _INT_DTYPES:
            raise TypeError(f"{name} must be an integer, got {_describe(value)}")
        return value.to(torch.int64)
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {value}")
    return torch.tensor(value, device=device)


def _row_shape(name: str, value: Tensor, key: Tensor) -> torch.Size:
    """Return the shape of `value` behind the axes that it shares with the keys."""
    rows = key.shape[:-1]
    if value.shape[: len(rows)] != rows:
        raise ValueError(
            f"{name} must begin with the axes of the keys, {list(rows)}, got {_describe(value)}"
        )
    return value.shape[len(rows) :]


def _describe(value: object) -> str:
    """Name a wrong argument in an error: dtype and shape of a tensor, never its values."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
