"""The benchmarks run: engines in processes of their own, turns, checks of tokens, tables."""

from __future__ import annotations

import importlib
import json
import time

import pytest

from benchmarks import measure
from benchmarks.cases import TARGET_CASES, Case, everything
from benchmarks.harness import Spread, Worker, WorkerError
from benchmarks.limits import matmul_rate, read_bandwidth

report = pytest.importorskip("benchmarks.report", exc_type=ImportError)  # needs pandas

PEER = "transformers/dynamic"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PURGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(measure, "PAUSE", 0.0)


def run(case, *engines, rounds=2):
    options = measure.Options(engines=engines, rounds=rounds, threads=1)
    return measure.measure(Case.parse(case, new_tokens=6), options)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tiny/1", "tiny/1/float32/greedy"),
        ("smollm2/32/sample", "smollm2/32/float32/sample"),
        ("shape/8/penalty/bfloat16", "shape/8/bfloat16/penalty"),
    ],
)
def test_case_names(text, name):
    assert Case.parse(text).name == name
    assert Case.parse(name) == Case.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "tiny", "tiny/", "tiny/0", "huge/1", "tiny/1/int8", "tiny/1/greedy/sample", "tiny/1//"],
)
def test_a_name_that_is_no_case_is_refused(text):
    with pytest.raises(ValueError, match="case must be MODEL/BATCH"):
        Case.parse(text)


def test_all_cases_are_there():
    names = [Case.parse(name).name for name in everything()]
    assert len(set(names)) == len(names) == 2 * 3 * 2 * 3 + 1
    assert set(TARGET_CASES) <= set(names)


def test_spread_is_least_median_greatest():
    assert Spread.of([3.0, 1.0, 8.0]) == Spread(1.0, 3.0, 8.0)
    assert report.ratio([10.0, 30.0], [5.0, 10.0]) == Spread(2.0, 2.5, 3.0)


def test_hardware_is_measured():
    import torch

    assert read_bandwidth(2**22) > 1e6
    assert matmul_rate(torch.float32, repeats=1) > 1e6


@pytest.mark.parametrize(
    ("case", "outcome", "words"),
    [
        ("tiny/2", {"equal_rows": 2, "distance": 2.0}, "equal"),
        ("tiny/2", {"equal_rows": 2, "stable": False}, "WRONG: another run"),
        ("tiny/2", {"equal_rows": 1, "distance": 0.0, "full": False}, "WRONG: rows too short"),
        ("tiny/2", {"equal_rows": 1, "distance": 0.0}, "WRONG: logit 0 below, 1 of 2 rows equal"),
        ("tiny/2/bfloat16", {"equal_rows": 1, "distance": 0.1}, "logit 0.1 below, 1 of 2"),
        ("tiny/2/bfloat16", {"equal_rows": 1, "distance": 0.3}, "WRONG: logit 0.3"),
        ("tiny/2/sample", {"distance": 0.89}, "valid"),
        ("tiny/2/sample", {"distance": 0.95}, "WRONG: 0.950"),
        ("tiny/2/sample", {}, "not judged"),
    ],
)
def test_verdict(case, outcome, words):
    outcome = {"stable": True, "full": True, "rows": 2, **outcome}
    verdict = measure.verdict(Case.parse(case), "purgen/eager", outcome)
    assert verdict.startswith(words)
    peers = measure.verdict(Case.parse(case), "transformers/static", outcome)
    assert peers == verdict.replace("WRONG", "differs")


@pytest.mark.slow
def test_engines_take_turns_and_give_the_same_tokens(capsys):
    result = run("tiny/2", "purgen/eager", "purgen/none", PEER)
    ours, theirs = result["engines"]["purgen/eager"], result["engines"][PEER]
    assert "loop must be" in result["engines"]["purgen/none"]["error"]
    assert ours["verdict"] == theirs["verdict"] == "equal"
    assert ours["distance"] < 1e-3
    for outcome in (ours, theirs):
        assert len(outcome["seconds"]) == 2
        assert outcome["count"] == 2 * 6
        assert outcome["peak"] > 2**26
        assert outcome["first_token"] > 0
    assert result["hardware"]["weights"] == 131_392
    assert json.loads(json.dumps(result)) == result
    assert "not available" in report.case_table(result)
    assert "purgen/none not available" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("decoding", ["sample", "penalty"])
def test_other_decodings(decoding):
    result = run(f"tiny/2/{decoding}", "purgen/eager", PEER)
    verdicts = [outcome["verdict"] for outcome in result["engines"].values()]
    assert verdicts == ["valid" if decoding == "sample" else "equal"] * 2


@pytest.mark.slow
def test_judge_finds_a_wrong_token():
    case = Case.parse("tiny/1", new_tokens=4)
    with Worker(threads=1) as worker:
        fields = {"model": "tiny", "batch": 1, "new_tokens": 4}
        worker.ask("load", engine="purgen/eager", case=fields, device="cpu")
        tokens = worker.ask("run")["tokens"]
        right = worker.ask("judge", tokens=tokens)["rows"]
        tokens[0][2] = (tokens[0][2] + 1) % 512
        wrong = worker.ask("judge", tokens=tokens)["rows"]
    assert case.new_tokens == len(tokens[0])
    assert right[0] < 1e-3 < 0.5 < wrong[0]


def test_worker_that_fails_says_why_and_goes_on():
    with Worker(threads=1) as worker:
        with pytest.raises(WorkerError, match="engine must be one of"):
            worker.ask("load", engine="other/1", case={"model": "tiny", "batch": 1}, device="cpu")
        assert worker.ask("weights", model="tiny") == {"weights": 131_392}


def test_worker_that_hangs_is_ended():
    began = time.monotonic()
    with Worker(threads=1) as worker, pytest.raises(WorkerError, match=r"ended \(code"):
        worker.ask(
            "load", timeout=0.2, engine="x", case={"model": "tiny", "batch": 1}, device="cpu"
        )
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("script", ["generation", "step_cost", "compiles", "gpu"])
def test_scripts_explain_themselves(script, capsys):
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(f"benchmarks.{script}").main(["--help"])
    assert "usage" in capsys.readouterr().out


def test_step_cost_has_a_line_a_budget():
    lines = importlib.import_module("benchmarks.step_cost").measure(
        "eager", [160, 320], shape="tiny", batch=1, rounds=1
    )
    assert [line["budget"] for line in lines] == ["160", "320"]
    assert lines[0]["of the cost with 160"].startswith("1.000")


def test_allowance_of_graphs_counts_buckets():
    compiles = importlib.import_module("benchmarks.compiles")
    assert len(set(compiles.LENGTHS)) == 20
    assert compiles.allowance(64, 256) == 3 + 3  # 256, 512, 1024: the longest prompt has 575
    assert compiles.allowance(64, 2048) == 2
