"""Graphs compiled in a run of 20 prompts of 20 lengths and 10 settings.

    python benchmarks/compiles.py [--loops compiled while] [--budget 64] [--smallest 256]

At most one prefill a bucket of prompt lengths and one step a bucket of cache lengths may be compiled,
whatever the lengths, settings and keys. Buckets double from the smallest. Counted is what dynamo
compiled, by the function's name.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pandas
import torch

import bridge
import purgen
from benchmarks.checkpoints import module_of

LENGTHS = tuple(range(5, 605, 30))
SETTINGS = tuple((0.5 + 0.1 * index, 0.5 + 0.05 * index) for index in range(10))


def count(loop: str, budget: int, smallest: int) -> dict[str, str]:
    """Generates once a length, and returns a line of the table."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    model = bridge.load(module_of("tiny"))
    generator = torch.Generator().manual_seed(0)
    began = time.perf_counter()
    for index, length in enumerate(LENGTHS):
        temperature, top_p = SETTINGS[index % len(SETTINGS)]
        warp = purgen.chain(purgen.temperature(temperature), purgen.top_p(top_p))
        decoder = purgen.sample(model, transform=warp, stop=purgen.any_of())
        row = torch.randint(16, model.vocab_size, (length,), generator=generator).tolist()
        out = purgen.generate(
            decoder,
            model.params,
            purgen.Prompt.from_lists([row], pad_token_id=0),
            rng_key=purgen.random.key(index),
            max_new_tokens=budget,
            loop=loop,
        )
        assert out.num_new_tokens.tolist() == [budget]
    graphs, allowed = (
        torch._dynamo.utils.counters["stats"]["unique_graphs"],
        allowance(budget, smallest),
    )
    names = collections.Counter(_compiled()).most_common()
    return {
        "loop": loop,
        "graphs": str(graphs),
        "allowed": str(allowed),
        "reached": "yes" if graphs <= allowed else "NO",
        "of": ", ".join(f"{name} {times}" for name, times in names),
        "seconds": f"{time.perf_counter() - began:.0f}",
    }


def allowance(budget: int, smallest: int) -> int:
    """Returns how many graphs there may be: buckets of prompt lengths, and of cache lengths."""

    def bucket(slots: int) -> int:
        return max(smallest, 1 << (slots - 1).bit_length())

    prompts = {bucket(length) for length in LENGTHS}
    caches = {bucket(length + new) for length in LENGTHS for new in range(budget + 1)}
    return len(prompts) + len(caches)


def _compiled() -> list[str]:
    """Returns the names of the functions that dynamo compiled, a name a graph."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    return [metric.co_name for metric in metrics if metric.co_name and not metric.fail_type]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if there are more graphs than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", nargs="+", default=["compiled", "while"])
    parser.add_argument("--budget", type=int, default=64, help="new tokens of each prompt")
    parser.add_argument("--smallest", type=int, default=256, help="slots of the smallest bucket")
    given = parser.parse_args(arguments)
    lines: list[dict[str, str]] = []
    for loop in given.loops:
        try:
            lines.append(count(loop, given.budget, given.smallest))
        except ValueError as error:  # a loop that does not exist
            lines.append({"loop": loop, "of": f"not available: {error}"})
    print(f"{len(LENGTHS)} prompts of {len(LENGTHS)} lengths, {len(SETTINGS)} settings, tiny Llama")
    print(pandas.DataFrame(lines).fillna("").to_string(index=False, justify="left"))
    return int(any(line.get("reached") == "NO" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
