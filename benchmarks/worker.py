"""One engine in a process of its own, asked by JSON lines on stdin, answering on stdout.

`harness.Worker` starts it. Whatever a library prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.cases import Case
from benchmarks.checkpoints import config_of, folder_of
from benchmarks.limits import matmul_rate, read_bandwidth, weights_of


class Worker:
    """Answers one request a method."""

    engine: Any
    device = "cpu"

    def load(self, *, engine: str, case: dict[str, Any], device: str) -> dict[str, Any]:
        from benchmarks.engines import make_engine

        self.device = device
        began = time.perf_counter()
        parsed = Case(**case)
        self.engine = make_engine(engine, folder_of(parsed.model), parsed, device)
        return {"seconds": time.perf_counter() - began}

    def warm_up(self) -> dict[str, Any]:
        """The first run, and a second if the first compiled; then peak memory begins anew."""
        first = last = self.run()
        stats = torch._dynamo.utils.counters["stats"]
        if stats["unique_graphs"]:
            last = self.run()
        everything = self._peak()
        self._reset_peak()
        return {
            "first": first["seconds"],
            "last": last["seconds"],
            "tokens": last["tokens"],
            "graphs": stats["unique_graphs"],
            "peak_with_loading": everything,
        }

    def run(self) -> dict[str, Any]:
        self._synchronize()
        began = time.perf_counter()
        tokens = self.engine.generate()
        self._synchronize()
        return {"seconds": time.perf_counter() - began, "tokens": tokens}

    def first_token(self) -> dict[str, Any]:
        return {"seconds": self.engine.first_token()}

    def peak(self) -> dict[str, Any]:
        """Bytes at most since the warm-up."""
        return {"peak": self._peak()}

    def judge(self, *, tokens: list[list[int]]) -> dict[str, Any]:
        return {"rows": self.engine.judge(tokens)}

    def limit(self, *, weights: int, dtype: str, device: str) -> dict[str, Any]:
        """What the hardware gives just now."""
        kind = getattr(torch, dtype)
        return {
            "read": read_bandwidth(weights * kind.itemsize, device=device),
            "matmul": matmul_rate(kind, device=device),
        }

    def weights(self, *, model: str) -> dict[str, Any]:
        """How many numbers a step reads."""
        import transformers

        config = (
            config_of(model)
            if model in ("tiny", "shape")
            else transformers.AutoConfig.from_pretrained(folder_of(model))
        )
        with torch.device("meta"):
            module = transformers.AutoModelForCausalLM.from_config(config)
        tied = bool(config.tie_word_embeddings)
        return {"weights": weights_of(dict(module.named_parameters()), tied=tied)}

    def _synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _peak(self) -> int:
        if self.device != "cpu":
            return torch.cuda.max_memory_allocated()
        # Linux keeps the mark in VmHWM, which can be set back; other systems keep one for good.
        status = Path("/proc/self/status")
        if status.exists():
            marks = [line.split() for line in status.read_text().splitlines() if "VmHWM" in line]
            return int(marks[0][1]) * 1024
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def _reset_peak(self) -> None:
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        elif psutil.LINUX:
            Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that nothing but replies goes there
    warnings.filterwarnings("ignore")
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            first = str(error).strip().splitlines() or [""]
            reply = {"error": f"{type(error).__name__}: {first[0]}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
