"""The hash behind `purgen.random`, and what its words become: uniform, Gumbel and normal numbers.

Threefry-2x32 turns a key and a counter into two 32-bit words. Everything here is elementwise, so one
element can be had without its neighbours.

Reference:
    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = [
    "UNIT_BITS",
    "WORD",
    "draw_at",
    "gumbel_of",
    "normal_of",
    "threefry",
    "unit_of",
    "words_of",
]

WORD = 0xFFFFFFFF  # the low 32 bits
# The random bits jax spends on a uniform, and how many of them, the upper ones, make its mantissa.
UNIT_BITS = {
    torch.bfloat16: (8, 7),
    torch.float16: (16, 10),
    torch.float32: (32, 23),
    torch.float64: (64, 52),
}
_BLOCK = 32768  # elements that a thread works on at a time, few enough to stay in its cache


def draw_at(key: Tensor, index: Tensor, convert: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Convert the pair of words that each key [..., 2] has at each `index` [..., C]."""
    words = words_of(key.unsqueeze(-2), index)
    if torch.compiler.is_compiling() or key.device.type != "cpu":
        return convert(*threefry(*words))
    # In eager mode a CPU waits for memory: one block after another is twice as fast.
    shape, block = words[0].shape, _BLOCK * torch.get_num_threads()
    if shape.numel() <= block:
        return convert(*threefry(*words))
    axis = next(axis for axis, size in enumerate(shape) if size > 1)
    rows = max(1, block * shape[axis] // shape.numel())
    blocks = zip(*(word.split(rows, axis) for word in words), strict=True)
    return torch.cat([convert(*threefry(*block)) for block in blocks], axis)


def words_of(key: Tensor, counter: Tensor) -> Sequence[Tensor]:
    """Lay out keys [..., 2] and 64-bit counters [...] as four int32 words [...], broadcast."""
    high, low = (counter >> 32).to(torch.int32), counter.to(torch.int32)
    return torch.broadcast_tensors(*key.to(torch.int32).unbind(-1), high, low)


def threefry(key0: Tensor, key1: Tensor, x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor]:
    """Hash counters with keys in 20 rounds: int32 words of one shape, elementwise."""
    schedule = (key0, key1, key0 ^ key1 ^ 0x1BD11BDA)
    x0, x1 = x0 + key0, x1 + key1  # new tensors: from here on they may change in place
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = x0.add_(x1)
            # A shift to the right copies the sign, hence the mask; one to the left is a product.
            wrapped = (x1 >> (32 - rotation)).bitwise_and_((1 << rotation) - 1)
            x1 = wrapped.add_(x1, alpha=1 << rotation).bitwise_xor_(x0)
            if torch.compiler.is_compiling():
                # Nothing but a hint: inductor gives the argument of this operation a name. Without
                # one it writes x1 out at each use, round within round, and compiles 5 times longer.
                x1 = torch.as_strided_copy(x1, x1.shape, x1.stride())
        x0 = x0.add_(schedule[(group + 1) % 3])
        x1 = x1.add_(schedule[(group + 2) % 3]).add_(group + 1)
    return x0, x1


def unit_of(x0: Tensor, x1: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Make a uniform in [0, 1) of two int32 words, exactly."""
    width, mantissa = UNIT_BITS[dtype]
    if width == 64:
        word = ((x0.to(torch.int64) & WORD) << 20) | ((x1 >> 12) & 0xFFFFF)
    else:
        word = ((x0 ^ x1) >> (width - mantissa)) & ((1 << mantissa) - 1)
    return word.to(dtype) * 2.0**-mantissa


def gumbel_of(x0: Tensor, x1: Tensor) -> Tensor:
    """Compute -log(-log(u)) to the last bit of jax's but one.

    Near 0 all bits of the noise hang on the last one of the inner logarithm, and XLA's is not the
    true one at every seventh u: so the inner one is XLA's own, Cephes' polynomial in float32 with
    fused multiply-adds. Those are float64 sums rounded to float32 here, and the outer logarithm is
    float64, so that every compiler and device gives the same float32.
    """
    u = unit_of(x0, x1).clamp_min(torch.finfo(torch.float32).tiny)
    word = u.view(torch.int32)
    exponent = (word - 0x3F3504F3) >> 23  # such that u / 2**exponent is in [sqrt(1/2), sqrt(2))
    x = (word - (exponent << 23)).view(torch.float32) - 1.0
    e, square = exponent.float(), x * x
    x1, x3 = x.double(), (square * x).double()

    def fma(a: Tensor, b: float | Tensor, c: float | Tensor) -> Tensor:
        return (a * b).add_(c).float().double()

    # The constants are float32 numbers, in full: products with them are exact in float64.
    y0 = fma(fma(x1, 0.07037683576345444, -0.11514610052108765), x1, 0.11676998436450958)
    y1 = fma(fma(x1, -0.12420140951871872, 0.14249323308467865), x1, -0.16668057441711426)
    y2 = fma(fma(x1, 0.2000071406364441, -0.24999994039535522), x1, 0.3333333134651184)
    y = fma(fma(fma(y0, x3, y1), x3, y2), x3, (e * -0.00021219444170128554).double()).float()
    inner = x - square * 0.5 + y + e * 0.693359375
    return -torch.log(-inner.double()).float()


def normal_of(x0: Tensor, x1: Tensor) -> Tensor:
    """Compute sqrt(2) * erfinv(u) for u in (-1, 1), by the polynomials of Giles, as XLA does.

    Reference:
        Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2010.
    """
    u = (unit_of(x0, x1) * 2.0 - (1.0 - 2.0**-24)).clamp_min(2.0**-24 - 1.0)
    w = -torch.log1p(-(u * u).double())  # of a float32 square, as in XLA: it shows in the tails

    def polynomial(x: Tensor, *coefficients: float) -> Tensor:
        y = torch.zeros_like(x)
        for coefficient in coefficients:
            y = y * x + coefficient
        return y

    centre = polynomial(
        w - 2.5,
        *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
        *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    )
    tail = polynomial(
        w.sqrt() - 3.0,
        *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
        *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
    )
    return (torch.where(w < 5.0, centre, tail) * u.double() * 1.4142135381698608).float()
