"""SmolLM2-135M-Instruct, float32: right to the last token, and compiled once."""

from __future__ import annotations

import pytest
import torch
import transformers

import bridge
import purgen
from bridge.gguf import converted

pytestmark = pytest.mark.real

TEXTS = [
    "The capital of France is",
    "Water",
    "def fibonacci(n):\n    if n < 2:",
    "Once upon a time, in a small village at the edge of a dark forest, there lived an old clockmaker",
    "Q: What is 12 times 12?\nA:",
    "The three primary colours are red,",
    "Dear Sir or Madam,\n\nI am writing to complain about the noise that comes from your garden at",
    "import torch\n",
]
NEW = 64


@pytest.fixture(scope="module")
def model():
    return bridge.load(bridge.embedded_checkpoint())


@pytest.fixture(scope="module")
def module():
    folder = converted(bridge.embedded_checkpoint())
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def theirs(module, prompt):
    """New tokens of `transformers` generate, rows cut after eos."""
    rows = module.generate(
        prompt.tokens, attention_mask=prompt.mask.long(), do_sample=False, max_new_tokens=NEW
    )[:, prompt.tokens.shape[1] :].tolist()
    return [row[: row.index(2) + 1] if 2 in row else row for row in rows]


def ours(out):
    return [row[:n].tolist() for row, n in zip(out.new_tokens, out.num_new_tokens, strict=True)]


def test_greedy_equals_transformers_in_a_batch_and_alone(model, module):
    decoder, prompt = purgen.greedy(model), model.encode(TEXTS)
    assert len(set(prompt.mask.sum(dim=1).tolist())) >= 6
    out = purgen.generate(decoder, model.params, prompt, max_new_tokens=NEW)
    assert ours(out) == theirs(module, prompt)
    sequences = module.generate(
        prompt.tokens, attention_mask=prompt.mask.long(), do_sample=False, max_new_tokens=NEW
    )
    assert torch.equal(out.sequences, sequences)
    for row, text in enumerate(TEXTS):
        alone = model.encode(text)
        one = purgen.generate(decoder, model.params, alone, max_new_tokens=NEW)
        assert ours(one) == theirs(module, alone) == [ours(out)[row]]


def test_sample_is_the_same_in_any_batch(model):
    warp = purgen.chain(purgen.temperature(0.9), purgen.top_k(40), purgen.top_p(0.95))
    decoder, keys = (
        purgen.sample(model, transform=warp),
        purgen.random.split(purgen.random.key(1), 4),
    )
    rows = model.encode(TEXTS[:4])
    whole = purgen.generate(decoder, model.params, rows, rng_key=keys, max_new_tokens=12)
    order = torch.tensor([3, 1])
    right = purgen.Prompt.from_lists(
        [rows.tokens[row][rows.mask[row]].tolist() for row in order],
        pad_token_id=0,
        padding_side="right",
    )
    part = purgen.generate(decoder, model.params, right, rng_key=keys[order], max_new_tokens=12)
    assert ours(part) == [ours(whole)[row] for row in order]


@pytest.mark.slow
def test_step_compiles_once_and_gives_the_eager_tokens(model):
    decoder, prompt = purgen.greedy(model, stop=purgen.any_of()), model.encode(TEXTS[:2])
    eager = purgen.generate(decoder, model.params, prompt, max_new_tokens=NEW)
    step = purgen.testing.CompileCounter(decoder.step, backend="inductor")
    with torch.no_grad():
        state = decoder.init(model.params, prompt, max_new_tokens=NEW)
        for _ in range(NEW):
            state, _ = step(model.params, state)
    assert step.graphs == 1
    assert bool(state.stopped.all())
    assert torch.equal(state.tokens, eager.state.tokens)
