"""Results as tables: of each case, and of the figures aimed at."""

from __future__ import annotations

from typing import Any

import pandas

from benchmarks.cases import TARGETS, Target
from benchmarks.harness import Spread

BUSY = 10.0  # percent of the processors that others may use
MEMORY = 1.1  # how much of what transformers needs purgen may need


def speeds(outcome: dict[str, Any]) -> list[float]:
    """Returns new tokens a second, of each round; none if there is no round."""
    return [outcome["count"] / seconds for seconds in outcome.get("seconds", ())]


def median_speed(outcome: dict[str, Any]) -> float:
    """Returns the median of `speeds`, 0 where there are none."""
    values = speeds(outcome)
    return Spread.of(values).median if values else 0.0


def fastest(result: dict[str, Any], kind: str) -> str | None:
    """Returns the fastest engine whose name begins with `kind`, None if none of them ran."""
    names = [name for name in result["engines"] if name.startswith(kind)]
    return max(
        (name for name in names if complete(result["engines"][name])),
        key=lambda name: median_speed(result["engines"][name]),
        default=None,
    )


def complete(outcome: dict[str, Any]) -> bool:
    """Tells whether an engine, or the hardware, did all its runs."""
    return "error" not in outcome and bool(outcome.get("seconds"))


def ratio(ours: list[float], theirs: list[float]) -> Spread:
    """Returns how much faster ours is, round by round."""
    return Spread.of(a / b for a, b in zip(ours, theirs, strict=True))


def case_table(result: dict[str, Any]) -> str:
    """Returns the table of a case, an engine a line."""
    best = fastest(result, "transformers")
    hardware = result["hardware"]
    lines = []
    for name, outcome in result["engines"].items():
        if not complete(outcome):
            lines.append({"engine": name, "tokens": f"not available: {outcome.get('error')}"})
            continue
        own = speeds(outcome)
        line = {"engine": name, "tokens/s": f"{median_speed(outcome):.1f}"}
        if best is not None:
            line["times the best transformers"] = str(ratio(own, speeds(result["engines"][best])))
        if has_limit(result):
            line["of the limit"] = f"{ratio(own, limit_speeds(result, outcome)).median:.3g}"
        line["first token ms"] = _number(outcome.get("first_token"), 1e3)
        line["compile s"] = _number(outcome.get("compile"), 1.0)
        line["graphs"] = str(outcome.get("graphs", ""))
        line["peak MiB"] = _number(outcome.get("peak"), 2.0**-20)
        line["tokens"] = outcome.get("verdict", "")
        lines.append(line)
    table = pandas.DataFrame(lines).fillna("")
    tokens = table.pop("tokens")
    table["tokens"] = tokens
    head = f"## {result['case']}, {result['new_tokens']} new tokens\n"
    if hardware["read"]:
        head += (
            f"weights {hardware['weights']:,}, read at {Spread.of(hardware['read']).median / 1e9:.1f}"
            f" GB/s, matrices multiplied at {Spread.of(hardware['matmul']).median / 1e9:.0f} GFLOP/s\n"
        )
    if hardware["others"] and (busy := Spread.of(hardware["others"]).median) > BUSY:
        head += f"DOUBTFUL: the processors are {busy:.0f} % busy with other work\n"
    return head + table.to_string(index=False, justify="left")


def _number(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:.1f}"


def has_limit(result: dict[str, Any]) -> bool:
    """Tells whether the number of steps is known, and with it the least time."""
    hardware = result["hardware"]
    return not result["case"].endswith("skewed") and complete(hardware)


def limit_speeds(result: dict[str, Any], outcome: dict[str, Any]) -> list[float]:
    """Returns the tokens a second that the hardware would allow, of each round."""
    return [outcome["count"] / seconds for seconds in result["hardware"]["seconds"]]


def target_table(results: list[dict[str, Any]]) -> str:
    """Returns the table of the figures aimed at, as far as their cases were run."""
    by_case = {result["case"]: result for result in results}
    lines = [_target(target, by_case) for target in TARGETS if target.case in by_case]
    cases = dict.fromkeys((target.case, target.ours) for target in TARGETS)
    lines += [_memory(by_case[case], ours) for case, ours in cases if case in by_case]
    if not lines:
        return "no case with a target was run"
    return "## targets\n" + pandas.DataFrame(lines).to_string(index=False, justify="left")


def _target(target: Target, by_case: dict[str, dict[str, Any]]) -> dict[str, str]:
    result = by_case[target.case]
    ours = fastest(result, target.ours) or fastest(result, "purgen")
    theirs = target.against
    found = None
    if ours is not None:
        outcome = result["engines"][ours]
        if theirs == "limit":
            found = (
                None
                if not has_limit(result)
                else ratio(speeds(outcome), limit_speeds(result, outcome))
            )
        elif theirs == "greedy":
            other = by_case.get(target.case.replace("sample", "greedy"))
            if other and complete(other["engines"].get(ours, {})):
                share = median_speed(outcome) / median_speed(other["engines"][ours])
                found = Spread(share, share, share)  # of two cases: no rounds in common
        else:
            theirs = fastest(result, "transformers" if theirs == "best" else theirs) or theirs
            if complete(result["engines"].get(theirs, {})):
                found = ratio(speeds(outcome), speeds(result["engines"][theirs]))
    label = theirs if theirs == target.against else f"{theirs} ({target.against})"
    return {
        "case": target.case,
        "ours": ours or target.ours,
        "against": label,
        "wanted": f"at least {target.least}",
        "got": "not available" if found is None else str(found),
        "reached": "" if found is None else "yes" if found.median >= target.least else "NO",
    }


def _memory(result: dict[str, Any], kind: str) -> dict[str, str]:
    ours = fastest(result, kind) or fastest(result, "purgen")
    best = fastest(result, "transformers")
    peaks = [result["engines"].get(name or "", {}).get("peak") for name in (ours, best)]
    share = peaks[0] / peaks[1] if all(peaks) else None
    return {
        "case": result["case"],
        "ours": ours or kind,
        "against": f"peak memory, {best}",
        "wanted": f"at most {MEMORY}",
        "got": "not available" if share is None else f"{share:.3f}",
        "reached": "" if share is None else "yes" if share <= MEMORY else "NO",
    }
