"""Parameters built into a program as constants: the same tokens, and the caller's stay as they are."""

from __future__ import annotations

import pytest
import torch

import purgen
from purgen.programs import PROGRAMS

MODEL = purgen.testing.toy_model(vocab_size=24, eos_token_id=(3,))
PROMPT = purgen.Prompt.from_lists([[1, 2, 3, 4, 5], [6], [7, 8]], pad_token_id=0)


@pytest.mark.parametrize("loop", ["compiled", "while"])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_frozen(loop, backend):
    decoder = purgen.greedy(MODEL)
    before = {name: value.clone() for name, value in MODEL.params.items()}
    options = {"loop": loop, "backend": backend, "freeze": True, "max_new_tokens": 9}

    def run(params, **changes):
        return purgen.generate(decoder, params, PROMPT, **{**options, **changes}).new_tokens

    expected = run(MODEL.params, loop="eager")
    with PROGRAMS.watch() as used:
        assert torch.equal(run(MODEL.params), expected)
        assert torch.equal(run(MODEL.params), expected)
    assert len({id(program) for program in used}) == 1
    for name, value in MODEL.params.items():
        assert torch.equal(value, before[name])
    other = {name: value.flip(0) for name, value in MODEL.params.items()}
    assert torch.equal(run(other), run(other, loop="eager"))
    with torch.no_grad():  # written in place: another program, never the old numbers
        other["head"].mul_(-1)
    assert torch.equal(run(other), run(other, loop="eager"))
