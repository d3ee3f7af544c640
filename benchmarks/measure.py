"""One case by all engines: started, warmed up, run in turns, and their tokens checked."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
from tqdm.auto import tqdm

from benchmarks.cases import TOP_P, Case, Rows
from benchmarks.harness import Worker, WorkerError

REFERENCE = "transformers/dynamic"  # whose float32 tokens are the right ones
# How far a token's logit may be below the greatest that eager purgen has there: in bfloat16 two steps
# of the number format at logits from 16 to 32, where near ties fall either way; in float32 nothing.
LOGIT_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
# And how much probability may lie above a token that was drawn, beyond top-p.
MASS_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.03}
PAUSE = 0.25  # seconds until the threads of the engine before have stopped spinning


@dataclasses.dataclass(frozen=True)
class Options:
    """How cases are measured.

    Attributes:
        engines: names of those that run.
        rounds: how often each runs.
        threads: how many each computes with.
        device: "cpu" or "cuda".
        starting: how many engines are started at a time; more than one makes compile times longer.
        until: when to end, by `time.monotonic`.
        inductor_cache: folder of compiled programs that stays; None: compiled anew by each engine.
    """

    engines: tuple[str, ...]
    rounds: int = 5
    threads: int = 2
    device: str = "cpu"
    starting: int = 1
    until: float = float("inf")
    inductor_cache: str | None = None

    def left(self) -> float:
        """Seconds left for one request; at least one, at most half an hour."""
        return min(max(self.until - time.monotonic(), 1.0), 1800.0)


def measure(case: Case, options: Options) -> dict[str, Any]:
    """Runs a case.

    Args:
        case: what to do.
        options: how.

    Returns:
        What goes into the JSON: of each engine its times a round and what else was measured, or under
        "error" why there is nothing.
    """
    result: dict[str, Any] = {"case": case.name, "new_tokens": case.new_tokens, "engines": {}}
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(Worker(threads=options.threads))
        weights = bare.ask("weights", model=case.model)["weights"]
        with ThreadPoolExecutor(options.starting) as pool:
            started = list(pool.map(lambda name: _start(name, case, options), options.engines))
        workers: dict[str, Worker] = {}
        for name, (worker, outcome) in zip(options.engines, started, strict=True):
            result["engines"][name] = outcome
            if worker is not None:
                workers[name] = stack.enter_context(worker)
        result["hardware"] = _rounds(case, options, workers, bare, weights, result["engines"])
        for name, worker in workers.items():
            with _kept(result["engines"][name]):
                result["engines"][name] |= worker.ask("peak", timeout=options.left())
        _first_tokens(options, workers, result["engines"])
    _check(case, options, result["engines"])
    for outcome in result["engines"].values():
        outcome.pop("tokens", None)
    return result


def _start(name: str, case: Case, options: Options) -> tuple[Worker | None, dict[str, Any]]:
    """Starts an engine and warms it up."""
    say(f"{case.name}: {name} starts")
    worker = Worker(threads=options.threads, inductor_cache=options.inductor_cache)
    fields = dataclasses.asdict(case)
    try:
        worker.ask("load", timeout=options.left(), engine=name, case=fields, device=options.device)
        warm = worker.ask("warm_up", timeout=options.left())
    except WorkerError as error:
        worker.close()
        say(f"{case.name}: {name} not available: {error}")
        return None, {"error": str(error)}
    count = sum(map(len, warm["tokens"]))
    say(f"{case.name}: {name} {count / warm['last']:.1f} tokens/s, first run {warm['first']:.1f} s")
    warm["compile"] = warm["first"] - warm["last"]
    return worker, {**warm, "count": count, "stable": True, "seconds": []}


@contextlib.contextmanager
def _kept(outcome: dict[str, Any]) -> Iterator[None]:
    """Notes an engine's failure, and lets the others go on."""
    try:
        yield
    except WorkerError as error:
        outcome.setdefault("error", str(error))


def _rounds(
    case: Case,
    options: Options,
    workers: dict[str, Worker],
    bare: Worker,
    weights: int,
    outcomes: dict[str, Any],
) -> dict[str, Any]:
    """Has the engines run in turns, each round beginning with another; returns what the hardware gave.

    The limit of a round is the time of as many steps as there are new tokens, each reading the weights
    once and multiplying them by all rows. "others" is how busy the processors are, in percent, while
    all engines wait: other work, which makes figures doubtful.
    """
    hardware: dict[str, Any] = {"weights": weights}
    hardware |= {name: [] for name in ("read", "matmul", "seconds", "others")}
    width = {"float32": 4, "bfloat16": 2}[case.dtype]
    names = list(workers)
    for turn in tqdm(range(options.rounds), desc=case.name, disable=None, leave=False):
        order = names[turn % max(len(names), 1) :] + names[: turn % max(len(names), 1)]
        for name in order:
            outcome = outcomes[name]
            hardware["others"].append(psutil.cpu_percent(PAUSE))
            with _kept(outcome):
                run = workers[name].ask("run", timeout=options.left())
                outcome["seconds"].append(run["seconds"])
                outcome["stable"] &= run["tokens"] == outcome["tokens"]
        time.sleep(PAUSE)
        with _kept(hardware):
            kind = {"weights": weights, "dtype": case.dtype, "device": options.device}
            limit = bare.ask("limit", timeout=options.left(), **kind)
            reading = weights * width / limit["read"]
            multiplying = 2 * weights * case.batch / limit["matmul"]
            hardware["read"].append(limit["read"])
            hardware["matmul"].append(limit["matmul"])
            hardware["seconds"].append(case.new_tokens * max(reading, multiplying))
    return hardware


def _first_tokens(options: Options, workers: dict[str, Worker], outcomes: dict[str, Any]) -> None:
    """Measures the time until a first token, after a run that does not count."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(4):
        for name, worker in workers.items():
            time.sleep(PAUSE)
            with contextlib.suppress(WorkerError):  # the case itself was measured all the same
                times[name].append(worker.ask("first_token", timeout=options.left())["seconds"])
    for name, values in times.items():
        if len(values) > 1:
            outcomes[name]["first_token"] = statistics.median(values[1:])


def _check(case: Case, options: Options, outcomes: dict[str, Any]) -> None:
    """Compares all tokens, and has those that differ judged by eager purgen."""
    reference = outcomes.get(REFERENCE, {}).get("tokens")
    ran = {name: outcome for name, outcome in outcomes.items() if "tokens" in outcome}
    for outcome in ran.values():
        if reference is not None and case.decoding != "sample":
            pairs = zip(outcome["tokens"], reference, strict=True)
            outcome["equal_rows"] = sum(ours == theirs for ours, theirs in pairs)
            outcome["rows"] = len(reference)
    if case.decoding != "penalty":  # there the model's own logits say nothing
        _judge(case, options, ran)
    for name, outcome in ran.items():
        lengths = set(map(len, outcome["tokens"]))
        outcome["full"] = case.decoding == "skewed" or lengths == {case.new_tokens}
        outcome["verdict"] = verdict(case, name, outcome)


def _judge(case: Case, options: Options, ran: dict[str, Any]) -> None:
    """Adds "distance" to each outcome: 0, or how far its tokens are from those of eager purgen."""
    judged: dict[str, float] = {}  # engines often give the very same tokens
    with Worker(threads=options.threads) as judge:
        try:
            judge.ask(
                "load",
                timeout=options.left(),
                engine="purgen/eager",
                case=dataclasses.asdict(case),
                device=options.device,
            )
            for outcome in ran.values():
                tokens: Rows = outcome["tokens"]
                if str(tokens) not in judged:
                    rows = judge.ask("judge", timeout=options.left(), tokens=tokens)["rows"]
                    judged[str(tokens)] = max(rows)
                outcome["distance"] = judged[str(tokens)]
        except WorkerError as error:
            say(f"{case.name}: tokens not judged: {error}")


def verdict(case: Case, name: str, outcome: dict[str, Any]) -> str:
    """Says in a few words whether tokens are as they must be.

    Args:
        case: what was done.
        name: the engine.
        outcome: with "stable" and "full", and "equal_rows", "rows" and "distance" as far as known.

    Returns:
        The words; they begin with "WRONG" where purgen's tokens are, "differs" where a peer's are.
    """
    wrong = "WRONG" if name.startswith("purgen") else "differs"
    distance, equal, rows = (outcome.get(key) for key in ("distance", "equal_rows", "rows"))
    # CTranslate2 draws from a generator that goes on from run to run.
    if not outcome["stable"] and (name, case.decoding) != ("ctranslate2", "sample"):
        return f"{wrong}: another run, other tokens"
    if not outcome["full"]:
        return f"{wrong}: rows too short"
    if case.decoding == "sample":
        if distance is None:
            return "not judged"
        valid = distance < TOP_P + MASS_TOLERANCE[case.dtype]
        return "valid" if valid else f"{wrong}: {distance:.3f} of probability above"
    if equal is not None and equal == rows:
        return "equal"
    share = [] if equal is None else [f"{equal} of {rows} rows equal"]
    if distance is None:
        return " ".join(share or ["not compared"])
    words = ", ".join([f"logit {distance:.2g} below", *share])
    exact = case.dtype == "float32" and equal is not None
    return words if distance <= LOGIT_TOLERANCE[case.dtype] and not exact else f"{wrong}: {words}"


def say(text: str) -> None:
    """Prints a line for those who wait."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
