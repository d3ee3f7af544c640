"""Generation by purgen, transformers and CTranslate2, in turns, as ratios.

    python benchmarks/generation.py                        the cases that have a target
    python benchmarks/generation.py --quick                tiny model, a minute or two
    python benchmarks/generation.py --cases tiny/1 smollm2/1/bfloat16 smollm2/16/skewed
    python benchmarks/generation.py --cases all --json out.json

A process an engine; they take turns, so that the machine's drift hits all alike, and ratios are those
of neighbouring runs: median (least to greatest). Tokens are compared in every run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks.cases import DECODINGS, DTYPES, MODELS, TARGET_CASES, Case, everything
from benchmarks.measure import Options, measure, say
from benchmarks.report import case_table, target_table

PEERS = ("transformers/dynamic", "transformers/static", "transformers/compiled")
ENGINES = {
    "cpu": (
        "purgen/compiled", "purgen/compiled+freeze", "purgen/while", "purgen/auto", *PEERS,
        "ctranslate2",
    ),
    "cuda": ("purgen/compiled+reduce-overhead", "purgen/while", "purgen/auto", *PEERS),
}  # fmt: skip


def run(cases: Sequence[Case], options: Options, path: Path | None) -> list[dict[str, Any]]:
    """Measures cases, prints a table of each, and writes what there is after each.

    Args:
        cases: what to do.
        options: how; when its time is up, the cases left are skipped.
        path: where the JSON goes.

    Returns:
        The results.
    """
    results = []
    for case in cases:
        if time.monotonic() > options.until:
            say(f"{case.name}: skipped, the time is up")
            continue
        result = measure(case, options)
        print(case_table(result), end="\n\n", flush=True)
        results.append(result)
        if path is not None:
            written = {"environment": environment(options), "cases": results}
            path.write_text(json.dumps(written, indent=1) + "\n")
    print(target_table(results))
    return results


def environment(options: Options) -> dict[str, Any]:
    """Returns what a reader of the figures must know."""
    packages = ("torch", "transformers", "ctranslate2", "numpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    on_gpu = options.device != "cpu"
    return {
        **versions,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if on_gpu else platform.machine(),
        "cpus": os.cpu_count(),
        "threads": options.threads,
        "rounds": options.rounds,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; 1 if some tokens are wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        default=list(TARGET_CASES),
        metavar="CASE",
        help=f"MODEL/BATCH[/DTYPE][/DECODING] of {MODELS}, {DTYPES}, {DECODINGS}; or all",
    )
    parser.add_argument(
        "--engines", nargs="+", metavar="ENGINE", help="such as purgen/compiled+freeze"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--new-tokens", type=int, help="of a row, in place of each case's own number"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--starting", type=int, default=1, help="engines started at a time")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds in all")
    parser.add_argument("--inductor-cache", help="keep compiled programs here: warm starts")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="tiny/1 and tiny/8, 3 rounds, 32 tokens"
    )
    given = parser.parse_args(arguments)
    if given.quick:
        given.cases, given.rounds, given.new_tokens = ["tiny/1", "tiny/8/sample"], 3, 32
    names = [name for text in given.cases for name in (everything() if text == "all" else [text])]
    try:
        cases = [Case.parse(name, new_tokens=given.new_tokens) for name in names]
    except ValueError as error:
        parser.error(str(error))
    options = Options(
        engines=tuple(given.engines or ENGINES[given.device]),
        rounds=given.rounds,
        threads=given.threads,
        device=given.device,
        starting=given.starting,
        until=time.monotonic() + given.deadline,
        inductor_cache=given.inductor_cache,
    )
    results = run(cases, options, given.json)
    verdicts = [o.get("verdict", "") for result in results for o in result["engines"].values()]
    return int(any(verdict.startswith("WRONG") for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
