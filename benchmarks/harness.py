"""Running times in alternation: of functions in one process, of engines in one process each."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Spread:
    """A figure measured several times.

    Attributes:
        low: the least.
        median: the median.
        high: the greatest.
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Makes it of the single values, at least one."""
        ordered = sorted(values)
        return cls(ordered[0], statistics.median(ordered), ordered[-1])

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How long ours takes, as a share of theirs.

    Attributes:
        ours: seconds, median.
        theirs: seconds, median.
        spread: the ratios of neighbouring runs.
    """

    ours: float
    theirs: float
    spread: Spread

    def __str__(self) -> str:
        return f"{self.ours * 1e3:9.2f} ms {self.theirs * 1e3:9.2f} ms   {self.spread}"


def compare(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    repeats: int = 7,
    seconds: float = 0.1,
) -> Ratio:
    """Times two functions turn by turn.

    Args:
        ours: what is measured.
        theirs: what it is measured against.
        repeats: how many turns.
        seconds: how long each turn of each should take at least.

    Returns:
        The ratio with its spread.
    """

    def once(function: Callable[[], object], calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - began) / calls

    with torch.no_grad():
        calls = [max(1, round(seconds / min(once(f, 1), once(f, 1)))) for f in (ours, theirs)]
        turns = [(once(ours, calls[0]), once(theirs, calls[1])) for _ in range(repeats)]
    return Ratio(
        ours=statistics.median(a for a, _ in turns),
        theirs=statistics.median(b for _, b in turns),
        spread=Spread.of(a / b for a, b in turns),
    )


class WorkerError(Exception):
    """A worker could not do what it was asked; the message is its own."""


class Worker:
    """A process that runs `benchmarks/worker.py`; close it, or use it in a `with`.

    Args:
        threads: how many it computes with.
        inductor_cache: where its compiled programs are kept; None: in a new folder of its own, so
            that compiling takes what it takes the first time.
    """

    def __init__(self, *, threads: int, inductor_cache: str | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="purgen-benchmark-")
        cache = inductor_cache or str(Path(self._scratch.name, "inductor"))
        count = str(threads)
        variables = {
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        self._log = Path(self._scratch.name, "log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker"],
                cwd=ROOT,
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, do: str, *, timeout: float = 1800.0, **arguments: Any) -> dict[str, Any]:
        """Has one request answered.

        Args:
            do: name of the request, a method of the worker.
            timeout: seconds after which the process is ended.
            **arguments: of the method.

        Raises:
            WorkerError: the request failed, or the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(timeout, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise WorkerError(f"ended (code {self._process.wait()}) in {do}: {' '.join(last)}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._scratch.cleanup()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
