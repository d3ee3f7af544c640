"""Tiny random models of every supported family, and a greedy loop on nothing but the seam."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_leaves

import purgen

VOCAB = 128
PAD = 0
WINDOW = 6
NEW_TOKENS = 20
# torch 2.13 on CPU: vmap runs scaled_dot_product_attention once a lane, and says so.
BATCHING = "ignore:There is a performance drop because we have not yet implemented the batching"

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_SIZES = {
    **_BASE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_HEAD = {**_SIZES, "head_dim": 8}
_ALL_HEADS = {**_SIZES, "num_key_value_heads": 4}
_GPT = {**_BASE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_WINDOW = {"sliding_window": WINDOW}
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_SOME_WINDOW = {**_WINDOW, "use_sliding_window": True, "max_window_layers": 1}
_MOE = {
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_SHARED = {"n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
_LOCAL_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MLA = {
    **_ALL_HEADS,
    **_MOE,
    **_SHARED,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 16}
_LLAMA3 = {**_ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_MAMBA2 = {
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_LONGROPE = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
}

# name: (model type, settings)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("arcee", _SIZES),
    "bamba": ("bamba", {**_SIZES, **_MAMBA2, "attn_layer_indices": [1]}),
    "biogpt": ("biogpt", _ALL_HEADS),
    "bitnet": ("bitnet", _SIZES),
    "bloom": ("bloom", {**_BASE, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "codegen": ("codegen", {**_GPT, "rotary_dim": 4}),
    "cohere": ("cohere", _SIZES),
    "cohere2": ("cohere2", {**_HEAD, **_MIXED}),
    "deepseek_v2": ("deepseek_v2", {**_MLA, "topk_method": "greedy", "head_dim": 8}),
    "deepseek_v3": ("deepseek_v3", _MLA),
    "diffllama": ("diffllama", _SIZES),
    "ernie4_5": ("ernie4_5", _SIZES),
    "exaone4": ("exaone4", {**_SIZES, **_MIXED}),
    "falcon": ("falcon", {**_ALL_HEADS, "alibi": False}),
    "falcon_alibi": ("falcon", {**_ALL_HEADS, "alibi": True}),
    "falcon_h1": ("falcon_h1", {**_HEAD, **_MAMBA2, "mamba_d_ssm": 64}),
    "gemma": ("gemma", _HEAD),
    "gemma2": ("gemma2", {**_HEAD, **_MIXED, "query_pre_attn_scalar": 8}),
    "gemma3_text": ("gemma3_text", {**_HEAD, **_MIXED, "query_pre_attn_scalar": 8}),
    "gemma3n_text": (
        "gemma3n_text",
        {
            **_HEAD,
            **_WINDOW,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 4,
        },
    ),
    "glm": ("glm", _HEAD),
    "glm4": ("glm4", _HEAD),
    "glm4_moe": ("glm4_moe", {**_HEAD, **_MOE, **_SHARED}),
    "gpt2": ("gpt2", {**_GPT, "tie_word_embeddings": True}),
    "gpt_bigcode": ("gpt_bigcode", _GPT),
    "gpt_neox": ("gpt_neox", _ALL_HEADS),
    "gpt_oss": ("gpt_oss", {**_HEAD, **_MIXED, **_LOCAL_MOE}),
    "gptj": ("gptj", {**_GPT, "rotary_dim": 4}),
    "granite": ("granite", _SIZES),
    "granitemoe": ("granitemoe", {**_SIZES, **_LOCAL_MOE}),
    "helium": ("helium", _HEAD),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _HEAD),
    "jamba": (
        "jamba",
        {
            **_SIZES,
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
    ),
    "lfm2": ("lfm2", {**_SIZES, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3}),
    "llama": ("llama", _SIZES),
    "llama4_text": (
        "llama4_text",
        {
            **_HEAD,
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "attention_chunk_size": WINDOW,
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "no_rope_layers": [1, 0] * 2,
        },
    ),
    "llama_tied": ("llama", {**_SIZES, "tie_word_embeddings": True}),
    "llama_linear": (
        "llama",
        {**_SIZES, "rope_parameters": {**_ROPE, "rope_type": "linear", "factor": 2.0}},
    ),
    "llama_llama3": ("llama", {**_SIZES, "rope_parameters": {**_LLAMA3, "factor": 8.0}}),
    "llama_yarn": (
        "llama",
        {**_SIZES, "rope_parameters": {**_ROPE, "rope_type": "yarn", "factor": 4.0}},
    ),
    "mamba": ("mamba", {**_BASE, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
    "mamba2": (
        "mamba2",
        {
            **_BASE,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
        },
    ),
    "ministral": ("ministral", {**_HEAD, **_MIXED}),
    "ministral3": ("ministral3", {**_HEAD, **_WINDOW}),
    "mistral": ("mistral", {**_SIZES, **_WINDOW}),
    "mixtral": ("mixtral", {**_SIZES, **_LOCAL_MOE, **_WINDOW}),
    "nemotron": ("nemotron", _SIZES),
    "olmo": ("olmo", _SIZES),
    "olmo2": ("olmo2", _SIZES),
    "olmo3": ("olmo3", {**_SIZES, **_MIXED}),
    "olmoe": ("olmoe", {**_SIZES, **_MOE}),
    "opt": ("opt", {**_ALL_HEADS, "ffn_dim": 64, "word_embed_proj_dim": 24}),
    "persimmon": ("persimmon", _ALL_HEADS),
    "phi": ("phi", _SIZES),
    "phi3": ("phi3", {**_SIZES, **_WINDOW}),
    "phi3_longrope": ("phi3", {**_SIZES, **_LONGROPE}),
    "phimoe": ("phimoe", {**_SIZES, **_LOCAL_MOE, **_WINDOW}),
    "qwen2": ("qwen2", _SIZES),
    "qwen2_moe": (
        "qwen2_moe",
        {**_SIZES, **_MOE, **_SOME_WINDOW, "shared_expert_intermediate_size": 16},
    ),
    "qwen2_window": ("qwen2", {**_SIZES, **_SOME_WINDOW}),
    "qwen3": ("qwen3", _HEAD),
    "qwen3_moe": ("qwen3_moe", {**_HEAD, **_MOE}),
    "qwen3_moe_window": ("qwen3_moe", {**_HEAD, **_MOE, **_SOME_WINDOW}),
    "qwen3_next": (
        "qwen3_next",
        {
            **_HEAD,
            **_MOE,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "qwen3_window": ("qwen3", {**_HEAD, **_SOME_WINDOW}),
    "seed_oss": ("seed_oss", _HEAD),
    "smollm3": ("smollm3", {**_SIZES, **_SOME_WINDOW, "no_rope_layers": [1, 0]}),
    "stablelm": ("stablelm", _SIZES),
    "starcoder2": ("starcoder2", {**_SIZES, **_WINDOW}),
}

WINDOWED = tuple(name for name, (_, settings) in FAMILIES.items() if "sliding_window" in settings)
# The kinds of forward that differ in what they ask of the bridge; the others are tested on these.
MAIN = ("llama", "mistral", "gemma2", "gemma3_text", "gpt2", "opt", "phi3", "qwen2_window")


def tiny_module(name: str, **changes: Any) -> Any:
    """Returns a tiny module in evaluation mode, weights large enough that greedy tokens vary."""
    model_type, settings = FAMILIES[name]
    config = transformers.AutoConfig.for_model(model_type, **{**settings, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(config)
        redraw(module)
    return module.eval()


def redraw(module: Any, *, gain: float = 1.3, positions: float = 1.3) -> None:
    """Draws all matrices anew, large enough that the tokens of a greedy run vary."""
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            size = positions if "position" in name or "relative" in name else gain
            torch.nn.init.normal_(parameter, std=size / parameter.shape[-1] ** 0.5)


def ragged_prompt() -> tuple[Tensor, Tensor]:
    """Returns tokens int64 [3, 9] and mask bool [3, 9] with 4, 0 and 7 left pads."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCAB, (3, 9), generator=generator)
    mask = torch.arange(9) >= torch.tensor([[4], [0], [7]])
    return torch.where(mask, tokens, PAD), mask


def greedy(model: Any, tokens: Tensor, mask: Tensor, *, new_tokens: int = NEW_TOKENS) -> Tensor:
    """Returns int64 [B, N], by prefill and apply alone."""
    cache = model.init_cache(tokens.shape[0], tokens.shape[1] + new_tokens)
    out = model.prefill(model.params, tokens, cache, mask=mask)
    chosen = [out.logits[:, -1].argmax(-1)]
    for _ in range(new_tokens - 1):
        out = model.apply(model.params, chosen[-1][:, None], out.cache)
        chosen.append(out.logits[:, -1].argmax(-1))
    return torch.stack(chosen, dim=1)


def generated(module: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns what `generate` adds, int64 [B, N]."""
    out = module.generate(
        tokens,
        attention_mask=mask.long(),
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
    )
    return out[:, tokens.shape[1] :]


def prefilled(model: Any, *, room: int = 12) -> purgen.Cache:
    """Returns the cache after the ragged prompt, with room for more tokens."""
    tokens, mask = ragged_prompt()
    cache = model.init_cache(tokens.shape[0], tokens.shape[1] + room)
    return model.prefill(model.params, tokens, cache, mask=mask).cache


def assert_close(actual: Any, expected: Any) -> None:
    """Compares two trees leaf by leaf, to what float32 rounds to."""
    for left, right in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-5)


def assert_same(actual: Any, expected: Any) -> None:
    """Compares two trees leaf by leaf, bit for bit."""
    for left, right in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
