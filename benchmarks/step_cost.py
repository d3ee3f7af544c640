"""What a step costs, by the budget that it is part of: room that is not used must cost nothing.

    python benchmarks/step_cost.py [--loops eager compiled while] [--budgets 256 4096]

Random weights in the shape of SmolLM2; the rows stop long before the budget. A step's time is the
difference of two generations, of few and of more tokens around length 128, over their difference in
length, so that prefill and allocation do not count. All budgets take turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pandas
import torch

import bridge
import purgen
from benchmarks.checkpoints import module_of
from benchmarks.harness import Spread

LENGTH = 128  # in the middle of the steps that are timed
STEPS = 32  # that are timed
PROMPT = LENGTH - STEPS // 2 - 4
ALLOWED = 1.25  # times the cost with the first budget


def step_seconds(
    model: bridge.HFModel, prompt: purgen.Prompt, loop: str, budget: int
) -> Callable[[], float]:
    """Returns a function that times a step, all it runs compiled."""
    options: dict[str, Any] = {"max_new_tokens": budget - prompt.tokens.shape[1], "loop": loop}
    few, more = (
        purgen.greedy(model, stop=purgen.max_new_tokens(count)) for count in (4, 4 + STEPS)
    )

    def once(decoder: purgen.Decoder, count: int) -> float:
        began = time.perf_counter()
        out = purgen.generate(decoder, model.params, prompt, **options)
        seconds = time.perf_counter() - began
        if out.num_new_tokens.tolist() != [count] * len(prompt.tokens):
            raise AssertionError(f"{out.num_new_tokens.tolist()} new tokens in place of {count}")
        return seconds

    def measured() -> float:
        before = once(few, 4)
        return (once(more, 4 + STEPS) - before) / STEPS

    measured()
    return measured


def measure(
    loop: str, budgets: Sequence[int], *, shape: str, batch: int, rounds: int
) -> list[dict[str, str]]:
    """Returns a line of the table a budget."""
    model = bridge.load(module_of(shape))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(16, model.vocab_size, (batch, PROMPT), generator=generator)
    prompt = purgen.Prompt.from_lists(tokens.tolist(), pad_token_id=0)
    steps = [step_seconds(model, prompt, loop, budget) for budget in budgets]
    times = [[step() for step in steps] for _ in range(rounds)]
    lines = []
    for index, budget in enumerate(budgets):
        share = Spread.of(turn[index] / turn[0] for turn in times)
        lines.append(
            {
                "loop": loop,
                "budget": str(budget),
                "ms a step": f"{Spread.of(turn[index] for turn in times).median * 1e3:.2f}",
                f"of the cost with {budgets[0]}": str(share),
                f"at most {ALLOWED}": "yes" if share.median <= ALLOWED else "NO",
            }
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a larger budget costs more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", nargs="+", default=["eager", "compiled", "while"])
    parser.add_argument("--budgets", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--shape", choices=("shape", "tiny"), default="shape")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    lines: list[dict[str, str]] = []
    for loop in given.loops:
        try:
            lines += measure(
                loop, given.budgets, shape=given.shape, batch=given.batch, rounds=given.rounds
            )
        except ValueError as error:  # a loop that does not exist
            lines.append({"loop": loop, "ms a step": f"not available: {error}"})
    print(f"length {LENGTH}, batch {given.batch}, {torch.get_num_threads()} threads")
    print(pandas.DataFrame(lines).fillna("").to_string(index=False, justify="left"))
    return int(any("NO" in line.values() for line in lines))


if __name__ == "__main__":
    sys.exit(main())
