"""Exported generations: the tokens of `generate`, with and without purgen at hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import bridge
import purgen
from tests.bridge.families import BATCHING, tiny_module

MODEL = purgen.testing.toy_model(vocab_size=24, eos_token_id=(3, 4))
KEY = purgen.random.key(5)
EXAMPLE = purgen.Prompt.from_lists([[1, 2, 5, 6, 7, 8], [6], [7, 8]], pad_token_id=0)
OTHER = purgen.Prompt.from_lists([[9, 2, 2], [11, 1]], pad_token_id=0, padding_side="right")
DECODERS = {
    "greedy": purgen.greedy(MODEL),
    "sample": purgen.sample(
        MODEL, transform=purgen.chain(purgen.top_p(0.9), purgen.no_repeat_ngram(2))
    ),
    "guided": purgen.guided(MODEL, scale=1.5),
}


def exported(decoder, folder, *, prompt=EXAMPLE, budget=9, package=False, **options):
    """Exports a decoder of the toy model and loads it."""
    params = options.pop("params", MODEL.params)
    purgen.export(
        decoder,
        params,
        folder,
        prompt=prompt,
        max_new_tokens=budget,
        package=package,
        **options,
    )
    return purgen.load_program(folder)


def check(run, decoder, **options):
    for prompt in (EXAMPLE, OTHER):
        for budget in (9, 2):
            got = run(prompt, rng_key=KEY, max_new_tokens=budget, **options)
            want = purgen.generate(
                decoder, MODEL.params, prompt, rng_key=KEY, max_new_tokens=budget
            )
            assert torch.equal(got.new_tokens, want.new_tokens)
            assert torch.equal(got.sequences, want.sequences)
            assert torch.equal(got.stop_reason, want.stop_reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_parameters_inside(name, tmp_path):
    check(exported(DECODERS[name], tmp_path), DECODERS[name])


def test_parameters_given(tmp_path):
    decoder = DECODERS["greedy"]
    run = exported(decoder, tmp_path, params_inside=False)
    check(run, decoder, params=MODEL.params)
    with pytest.raises(ValueError, match="params: those of this program are not inside"):
        run(OTHER, max_new_tokens=2)
    other = purgen.testing.toy_model(vocab_size=24, eos_token_id=(3, 4), seed=1)
    got = run(OTHER, max_new_tokens=9, params=other.params)
    want = purgen.generate(decoder, other.params, OTHER, max_new_tokens=9)
    assert torch.equal(got.new_tokens, want.new_tokens)
    assert not torch.equal(
        want.new_tokens, run(OTHER, max_new_tokens=9, params=MODEL.params).new_tokens
    )


@pytest.mark.slow
@pytest.mark.filterwarnings(BATCHING)
def test_bridged_model(tmp_path):
    model = bridge.load(tiny_module("llama"))
    decoder = purgen.greedy(model)
    run = exported(decoder, tmp_path, params=model.params)
    for budget in (9, 3):
        got = run(EXAMPLE, max_new_tokens=budget)
        want = purgen.generate(decoder, model.params, EXAMPLE, max_new_tokens=budget)
        assert torch.equal(got.sequences, want.sequences)


ALONE = """
import json, sys
from pathlib import Path
class Block:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("purgen", "bridge", "transformers"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import torch
folder = Path(sys.argv[1])
call = torch._inductor.aoti_load_package(str(folder / "generation.aoti.pt2"))
tokens, mask, keys = (torch.tensor(part) for part in json.loads(sys.argv[2]))
out = dict(zip(json.loads((folder / "generation.json").read_text())["gives"],
               call(tokens, mask, keys, torch.tensor(json.loads(sys.argv[3])))))
print(json.dumps([out[name].tolist() for name in ("tokens", "prompt_length", "length")]))
"""


@pytest.mark.slow
def test_package_runs_with_torch_alone(tmp_path):
    decoder = DECODERS["sample"]
    check(exported(decoder, tmp_path, package=True), decoder)
    keys = purgen.random.split(KEY, 3)
    arguments = [EXAMPLE.tokens.tolist(), EXAMPLE.mask.tolist(), keys.tolist()]
    for budget in (9, 4):
        ran = subprocess.run(
            [sys.executable, "-c", ALONE, str(tmp_path), json.dumps(arguments), str([budget] * 3)],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        tokens, begins, ends = json.loads(ran.stdout)
        want = purgen.generate(decoder, MODEL.params, EXAMPLE, rng_key=KEY, max_new_tokens=budget)
        for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            count = int(want.num_new_tokens[row])
            assert tokens[row][begin:end] == want.new_tokens[row, :count].tolist()


@pytest.mark.slow
def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no generation.json"):
        purgen.load_program(tmp_path)
    odd = purgen.Prompt(tokens=OTHER.tokens, mask=OTHER.mask, inputs={"pixels": torch.ones(2)})
    with pytest.raises(ValueError, match=r"prompt has inputs \['pixels'\]"):
        exported(DECODERS["greedy"], tmp_path, prompt=odd)
    run = exported(purgen.sample(MODEL), tmp_path, prompt=OTHER, budget=3)
    with pytest.raises(ValueError, match="prompt has 3 rows of 6 slots; the program takes 2 of 3"):
        run(EXAMPLE, rng_key=KEY, max_new_tokens=2)
    with pytest.raises(ValueError, match="max_new_tokens must be 1 to 3, not 4"):
        run(OTHER, rng_key=KEY, max_new_tokens=4)
    with pytest.raises(ValueError, match="params: those of this program are inside"):
        run(OTHER, rng_key=KEY, max_new_tokens=2, params=MODEL.params)
    with pytest.raises(ValueError, match="rng_key"):
        run(OTHER, max_new_tokens=2)
    with pytest.raises(ValueError, match=r"rng_key must be \[2\] or \[B, 2\] with B = 2"):
        run(OTHER, rng_key=KEY.expand(3, 2), max_new_tokens=2)
    hole = purgen.Prompt(tokens=torch.ones(1, 3).long(), mask=torch.tensor([[1, 0, 1]]))
    with pytest.raises(ValueError, match="mask of row 0 has a hole"):
        run(hole, rng_key=KEY, max_new_tokens=2)
