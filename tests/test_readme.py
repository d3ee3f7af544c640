"""README is true: its code runs, its table names what there is."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import purgen
from tests.registry import STOP_RULES, STRATEGIES, TRANSFORMS

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(block, monkeypatch):
    """Runs code as a module, since torch.compile looks a function's module up by name."""
    module = types.ModuleType("readme_block")
    monkeypatch.setitem(sys.modules, "readme_block", module)
    exec(compile(block, "README.md", "exec"), vars(module))


@pytest.mark.real
def test_ten_line_example_runs(capsys, monkeypatch):
    assert len(BLOCKS[0].strip().splitlines()) <= 11
    run(BLOCKS[0], monkeypatch)
    assert "MAX_NEW_TOKENS" in capsys.readouterr().out


def test_custom_strategy_runs_and_keeps_the_laws(monkeypatch):
    body = BLOCKS[1].split("def adaptive", 1)[1].split("toy =", 1)[0]
    assert len(body.strip().splitlines()) <= 20
    run(BLOCKS[1], monkeypatch)


def test_table_names_every_piece():
    table = README[README.index("## What exists") :]
    for name in (*TRANSFORMS, *STOP_RULES, *STRATEGIES):
        assert f"`{name}`" in table, f"{name} is not in README's table"
    for name in re.findall(r"`purgen\.(\w+)", README):
        assert hasattr(purgen, name)
