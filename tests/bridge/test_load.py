"""`bridge.load`: what it takes, what it reads, what it refuses, and what it leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

import bridge
import purgen
from bridge.families import FAMILIES as SUPPORTED
from bridge.families import adapter_of
from bridge.self_check import self_check
from bridge.skeleton import parameters_of, skeleton_of
from tests.bridge.families import assert_same, generated, greedy, ragged_prompt, tiny_module


def test_module_is_only_read():
    """Mode, gradients, hooks and numbers of the caller's module stay; its memory is shared."""
    module = tiny_module("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train()
    before = copy.deepcopy(module.state_dict())
    model = bridge.load(module)
    tokens, mask = ragged_prompt()
    first = greedy(model, tokens, mask)
    assert torch.equal(greedy(model, tokens, mask), first), "dropout must be off"
    assert torch.equal(first, greedy(bridge.load(module.eval()), tokens, mask))
    module.train()
    assert all(part.training for part in module.modules())
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not any(part._forward_hooks for part in module.modules())
    assert_same(module.state_dict(), before)
    for name, parameter in module.named_parameters():
        assert model.params[name].data_ptr() == parameter.data_ptr()
        assert not model.params[name].requires_grad


def test_params_are_what_is_used(models):
    """A weight that is handed in is the one that counts, tied ones on both ends."""
    model = models("llama_tied")
    tokens, mask = ragged_prompt()
    assert "lm_head.weight" not in model.params
    params = {**model.params}
    params["model.embed_tokens.weight"] = params["model.embed_tokens.weight"] * 1.5
    out = model.prefill(params, tokens, model.init_cache(3, 9), mask=mask)
    module = tiny_module("llama_tied")
    with torch.no_grad():
        module.model.embed_tokens.weight *= 1.5
    changed = bridge.load(module)
    expected = changed.prefill(changed.params, tokens, changed.init_cache(3, 9), mask=mask)
    assert torch.equal(out.logits, expected.logits)


def test_folder(tmp_path, modules, models):
    """A saved checkpoint loads, in the dtype asked for."""
    modules("qwen3").save_pretrained(tmp_path)
    tokenizer = object()
    model = bridge.load(tmp_path, tokenizer=tokenizer)
    assert_same(model.params, models("qwen3").params)
    assert model.tokenizer is tokenizer
    half = bridge.load(str(tmp_path), dtype="bfloat16", device="cpu", tokenizer=tokenizer)
    assert {value.dtype for value in half.params.values()} == {torch.bfloat16}


def test_folder_with_missing_weights(tmp_path, modules):
    """transformers would draw them at random and say so in a log."""
    module = copy.deepcopy(modules("llama"))
    state = module.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    module.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"not whole, missing keys: .*layers.1.mlp.up_proj"):
        bridge.load(tmp_path, tokenizer=object())


@pytest.mark.parametrize("source", ["./nothing", "/no/such/folder", "nothing.gguf", "a/b/c"])
def test_path_that_does_not_exist(source):
    with pytest.raises(FileNotFoundError, match=f"there is no f.* '{source}'"):
        bridge.load(source)


def test_hub_out_of_reach(monkeypatch):
    """Said plainly; never replaced by another model."""

    def refuse(*_, **__):
        raise OSError("We couldn't connect")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(OSError, match=r"'some/model' is no local folder, .* couldn't connect"):
        bridge.load("some/model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float16}, "dtype is torch.float16, the module is torch.float32"),
        ({"dtype": "float99"}, "dtype must be a torch.dtype or its name, not 'float99'"),
        ({"device": "meta"}, "device is meta, the module is on cpu"),
        ({"max_length": 0}, "max_length must be at least 1, not 0"),
    ],
)
def test_module_is_not_converted(changes, message, modules):
    with pytest.raises(ValueError, match=message):
        bridge.load(modules("llama"), **changes)


def test_matching_dtype_and_device(modules):
    model = bridge.load(modules("llama"), dtype="float32", device="cpu", max_length=99)
    assert model.max_length == 99


def test_source_of_another_kind():
    with pytest.raises(TypeError, match=r"source must be .*, not int"):
        bridge.load(3)


def test_ids_and_sizes(modules):
    """generation_config comes first, then config, then the tokenizer."""
    module = copy.deepcopy(modules("llama"))
    model = bridge.load(module)
    assert (model.eos_token_id, model.pad_token_id, model.bos_token_id) == ((), 0, 1)
    assert (model.vocab_size, model.max_length) == (128, 128)
    module.config.eos_token_id = 9
    module.config.pad_token_id = None
    module.generation_config.pad_token_id = None
    assert (bridge.load(module).eos_token_id, bridge.load(module).pad_token_id) == ((9,), 9)
    module.generation_config.eos_token_id = [7, 5, 7]
    assert (bridge.load(module).eos_token_id, bridge.load(module).pad_token_id) == ((7, 5), 7)
    module.generation_config.pad_token_id = 3
    assert bridge.load(module).pad_token_id == 3


def test_vocab_size_is_the_width_of_the_logits(modules):
    module = copy.deepcopy(modules("llama"))
    module.resize_token_embeddings(140)
    assert bridge.load(module).vocab_size == 140
    assert bridge.load(modules("gpt2")).max_length == 128


@pytest.mark.parametrize("model_type", ["recurrent_gemma", "rwkv"])
def test_unsupported_type(model_type, tmp_path):
    """Refused by name, and before the weights are read (there are none in the folder)."""
    assert model_type not in SUPPORTED
    transformers.AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(bridge.Unsupported, match=f"model type '{model_type}' is not supported"):
        bridge.load(tmp_path)


def test_a_type_that_is_not_listed_is_tried(monkeypatch):
    """It is taken if it computes what its module does, and refused by name if it does not."""
    listed = {key: value for key, value in SUPPORTED.items() if key not in ("llama", "bloom")}
    for place in ("bridge.families.FAMILIES", "bridge.model.FAMILIES"):
        monkeypatch.setattr(place, listed)
    tokens, mask = ragged_prompt()
    model = bridge.load(tiny_module("llama"))
    assert len(greedy(model, tokens, mask)) == 3
    with pytest.raises(bridge.Unsupported, match="model type 'bloom'"):  # its adapter is needed
        bridge.load(tiny_module("bloom"))


_LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 16,
    },
    "original_max_position_embeddings": 16,
}
_DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}


def test_longrope_by_length():
    """Short frequencies up to the trained length, long ones for a model loaded for more."""
    module = tiny_module("phi3", **_LONGROPE)
    assert bridge.load(module).max_length == 16
    long = bridge.load(module, max_length=100)
    assert long.max_length == 100
    tokens = torch.arange(40).reshape(2, 20) + 5
    mask = torch.ones_like(tokens, dtype=torch.bool)
    expected = generated(module, tokens, mask)
    assert greedy(long, tokens, mask).tolist() == expected.tolist()
    short = bridge.load(module)
    assert greedy(short, tokens, mask).tolist() != expected.tolist(), "the factors must matter"


def test_dynamic_rope_up_to_the_trained_length():
    module = tiny_module("llama", **_DYNAMIC)
    tokens, mask = ragged_prompt()
    model = bridge.load(module)
    assert model.max_length == 128
    assert greedy(model, tokens, mask).tolist() == generated(module, tokens, mask).tolist()
    with pytest.raises(bridge.Unsupported, match="rope_type 'dynamic' and sequences of 200"):
        bridge.load(module, max_length=200)


def test_llama4_up_to_its_scale():
    module = tiny_module("llama4_text")
    assert bridge.load(module).max_length == 8191
    with pytest.raises(bridge.Unsupported, match="max_length=8191"):
        bridge.load(module, max_length=9000)


def test_layers_of_different_configurations():
    config = transformers.AutoConfig.for_model(
        "llama", per_layer_config={0: {"num_key_value_heads": 1}}
    )
    with pytest.raises(bridge.Unsupported, match="'llama' with layers of different"):
        adapter_of(config)


def test_quantised_weights(modules):
    module = copy.deepcopy(modules("llama"))
    weight = module.model.layers[0].mlp.up_proj.weight
    module.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(
        weight.to(torch.int8), requires_grad=False
    )
    with pytest.raises(bridge.Unsupported, match=r"up_proj.weight' is torch.int8: quantised"):
        bridge.load(module)


def test_module_without_a_head(modules):
    with pytest.raises(bridge.Unsupported, match="LlamaModel has no language modelling head"):
        bridge.load(modules("llama").model)


def test_self_check_sees_a_wrong_model(modules):
    """A family that ignores what it is told about positions would be refused."""
    module = modules("llama")
    params, skeleton = parameters_of(module), skeleton_of(module)
    model = bridge.load(module)
    assert self_check(model, skeleton, params) == 128

    def no_pads(params, tokens, cache, *, mask, inputs=None):
        return model.prefill(params, tokens, cache, mask=torch.ones_like(mask))

    def own_position(params, tokens, cache, *, cache_position=None):
        return model.apply(params, tokens, cache)

    def not_a_number(params, tokens, cache, *, cache_position=None):
        out = model.apply(params, tokens, cache, cache_position=cache_position)
        return purgen.replace(out, logits=out.logits * float("nan"))

    for change in ({"prefill": no_pads}, {"apply": own_position}, {"apply": not_a_number}):
        with pytest.raises(bridge.Unsupported, match=r"'llama': .* \(relative error"):
            self_check(purgen.replace(model, **change), skeleton, params)


def test_flash_attention_is_replaced(modules):
    """It takes no mask of numbers; the copy uses sdpa, the caller's module does not change."""
    module = copy.deepcopy(modules("llama"))
    module.config._attn_implementation = "flash_attention_2"
    tokens, mask = ragged_prompt()
    got = greedy(bridge.load(module), tokens, mask)
    assert module.config._attn_implementation == "flash_attention_2"
    assert torch.equal(got, greedy(bridge.load(modules("llama")), tokens, mask))


def test_model_is_a_value(models):
    model = models("llama")
    assert repr(model) == "HFModel('llama', 26,784 parameters, float32, cpu, vocab_size=128)"
    assert model != copy.copy(model)
    assert len({model, model}) == 1
    tokens, mask = ragged_prompt()
    copied = copy.deepcopy(model)
    assert torch.equal(greedy(copied, tokens, mask), greedy(model, tokens, mask))
