"""What the hardware allows: how fast it reads memory and multiplies matrices.

    python benchmarks/limits.py [--bytes 538000000] [--dtype float32] [--device cpu]

A step of generation reads all weights once and multiplies each by every row: it takes at least the
greater of the two times. Keys and values are left out, so the limit is a little too kind.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor


def read_bandwidth(size: int, *, device: str = "cpu", repeats: int = 3) -> float:
    """Returns bytes a second, read from a buffer as large as the weights.

    The best of several readers, since none is the fastest everywhere: a dot product (of two halves,
    and of rows with a vector), and sums of floats and of integers.

    Args:
        size: bytes; caches hold the more of it the less it is, as they do for the weights.
        device: where.
        repeats: how often each reader runs.
    """
    buffer = torch.ones(max(size // 4, 2**14) // 2**13 * 2**13, device=device)
    first, second = buffer.chunk(2)
    rows, vector = buffer.view(-1, 4096), torch.ones(4096, device=device)
    readers = (
        lambda: torch.dot(first, second),
        lambda: torch.mv(rows, vector),
        buffer.sum,
        buffer.view(torch.int64).sum,
    )
    fastest = min(_fastest(reader, device, repeats) for reader in readers)
    return buffer.nbytes / fastest


def matmul_rate(dtype: torch.dtype, *, device: str = "cpu", repeats: int = 3) -> float:
    """Returns floating-point operations a second of a product of large square matrices."""
    sizes = (1024, 2048) if device == "cpu" else (4096, 8192)
    rates = []
    for size in sizes:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        rates.append(2 * size**3 / _fastest(lambda a=left, b=right: a @ b, device, repeats))
    return max(rates)


def weights_of(params: dict[str, Tensor], *, tied: bool) -> int:
    """Returns how many numbers a step reads: all, but for an embedding table that is only looked up."""
    counts = {name: tensor.numel() for name, tensor in params.items()}
    looked_up = 0 if tied else sum(n for name, n in counts.items() if "embed_tokens" in name)
    return sum(counts.values()) - looked_up


def _fastest(function: Callable[[], Tensor], device: str, repeats: int) -> float:
    def once() -> float:
        began = time.perf_counter()
        function()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    once()
    return min(once() for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=538_000_000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    bandwidth = read_bandwidth(arguments.bytes, device=arguments.device)
    rate = matmul_rate(getattr(torch, arguments.dtype), device=arguments.device)
    print(f"{torch.get_num_threads()} threads: reads {bandwidth / 1e9:.1f} GB/s, ", end="")
    print(f"multiplies {arguments.dtype} at {rate / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
