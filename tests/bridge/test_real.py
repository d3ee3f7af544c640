"""SmolLM2-135M-Instruct, really: from its GGUF file to text."""

from __future__ import annotations

import gguf
import pytest
import torch
import transformers

import bridge
from bridge.gguf import converted
from tests.bridge.families import greedy

pytestmark = pytest.mark.real

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived",
    "2 + 2 =",
]


@pytest.fixture(scope="module")
def model():
    return bridge.load(bridge.embedded_checkpoint())


@pytest.fixture(scope="module")
def module(model):
    folder = converted(bridge.embedded_checkpoint())
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_what_it_is(model):
    assert model.config.model_type == "llama"
    assert {value.dtype for value in model.params.values()} == {torch.float32}
    assert sum(value.numel() for value in model.params.values()) == 134_515_008
    assert (model.vocab_size, model.max_length) == (49152, 8192)
    assert (model.eos_token_id, model.pad_token_id, model.bos_token_id) == ((2,), 2, 1)


def test_conversion_is_exact(model):
    """Weights are the float32 numbers that the quantised blocks stand for, not rounded again."""
    reader = gguf.GGUFReader(bridge.embedded_checkpoint())
    blocks = {tensor.name: tensor for tensor in reader.tensors}
    for theirs, ours in (
        ("blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"),
        ("blk.29.attn_output.weight", "model.layers.29.self_attn.o_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ):
        tensor = blocks[theirs]
        exact = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert torch.equal(torch.from_numpy(exact.copy()), model.params[ours]), ours


def test_greedy_equals_generate(model, module):
    prompt = model.encode(PROMPTS)
    assert prompt.mask.sum(1).tolist() == [5, 17, 5]
    got = greedy(model, prompt.tokens, prompt.mask, new_tokens=16)
    expected = module.generate(
        prompt.tokens,
        attention_mask=prompt.mask.long(),
        do_sample=False,
        min_new_tokens=16,
        max_new_tokens=16,
    )[:, prompt.tokens.shape[1] :]
    # generate with min_new_tokens forbids eos: compare up to the first.
    for row, (own, other) in enumerate(zip(got.tolist(), expected.tolist(), strict=True)):
        end = own.index(2) if 2 in own else 16
        assert own[:end] == other[:end], row
        assert end > 3
    assert "Paris" in model.decode(got)[0]


def test_conversation(model):
    prompt = model.encode([{"role": "user", "content": "What is the capital of France?"}])
    text = model.decode(prompt.tokens, skip_special_tokens=False)[0]
    assert text.endswith(
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    answer = greedy(model, prompt.tokens, prompt.mask, new_tokens=12)
    assert "Paris" in model.decode(answer)[0]
