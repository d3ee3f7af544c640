"""Tiny random models that read images, and prompts for them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from torch import Tensor

import purgen
from tests.bridge.families import _HEAD, _MIXED, _SIZES, NEW_TOKENS, PAD, redraw

IMAGE = 2  # the id that stands for a part of an image
_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 3,
}
_CLIP = {**_TOWER, "model_type": "clip_vision_model", "projection_dim": 32}
_SIGLIP = {
    **_TOWER,
    "model_type": "siglip_vision_model",
    "vision_use_head": False,
    "image_size": 16,
}
_ROPE = {"rope_type": "default", "type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
_QWEN = {
    "vision_start_token_id": 120,
    "vision_end_token_id": 121,
    "video_token_id": 122,
    "image_token_id": IMAGE,
    "text_config": {**_SIZES, "rope_parameters": _ROPE},
    "tie_word_embeddings": False,
}
_PATCHES = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "in_channels": 3,
}

# name: (model type, settings)
IMAGE_TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "gemma3",
        {
            "text_config": {
                **_HEAD,
                **_MIXED,
                "query_pre_attn_scalar": 8,
                "model_type": "gemma3_text",
            },
            "vision_config": _SIGLIP,
            "mm_tokens_per_image": 4,
            "image_token_id": IMAGE,
            "image_token_index": IMAGE,
            "tie_word_embeddings": False,
        },
    ),
    "llava": (
        "llava",
        {
            "text_config": {**_SIZES, "model_type": "llama"},
            "vision_config": _CLIP,
            "image_token_id": IMAGE,
            "image_token_index": IMAGE,
            "image_seq_length": 9,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {
            **_QWEN,
            "vision_config": {
                **_PATCHES,
                "hidden_size": 32,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
        },
    ),
    "qwen2_vl": (
        "qwen2_vl",
        {
            **_QWEN,
            "vision_config": {**_PATCHES, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
        },
    ),
}


def tiny_image_text(name: str) -> Any:
    """Returns a tiny module in evaluation mode, weights large enough that greedy tokens vary."""
    model_type, settings = IMAGE_TEXT[name]
    config = transformers.AutoConfig.for_model(model_type, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = transformers.AutoModelForImageTextToText.from_config(config)
        redraw(module)
    # An image begins in the prompt: a model that is trained does not write one.
    module.get_output_embeddings().weight.data[IMAGE] = 0
    return module.eval()


def image_prompt(name: str) -> purgen.Prompt:
    """Returns three rows, with one, two and no images, of different lengths, padded on the left."""
    generator = torch.Generator().manual_seed(1)
    grids = [[1, 4, 4], [1, 2, 6], [1, 4, 2]]  # of patches
    sizes = {"gemma3": [4] * 3, "llava": [9] * 3}.get(name, [4, 3, 2])
    text = torch.randint(3, 118, (3, 8), generator=generator).tolist()
    first, second, third = ([IMAGE] * size for size in sizes)
    rows = [
        [*text[0][:3], *first, *text[0][3:6]],
        [*second, *text[1][:2], *third, *text[1][2:]],
        text[2][:4],
    ]
    inputs: dict[str, Any] = {}
    if name.startswith("qwen"):
        inputs["image_grid_thw"] = torch.tensor(grids)
        count = sum(high * wide for _, high, wide in grids)
        inputs["pixel_values"] = torch.randn(count, 3 * 2 * 16, generator=generator)
    else:
        size = IMAGE_TEXT[name][1]["vision_config"]["image_size"]
        inputs["pixel_values"] = torch.randn(3, 3, size, size, generator=generator)
    return purgen.Prompt.from_lists(rows, pad_token_id=PAD, inputs=inputs)


def token_types(module: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Returns what a processor says of the kinds of tokens, by the name that the module takes."""
    accepted = inspect.signature(type(module).forward).parameters
    names = [name for name in ("token_type_ids", "mm_token_type_ids") if name in accepted]
    return dict.fromkeys(names, (tokens == IMAGE).long())


def generated_images(module: Any, prompt: purgen.Prompt) -> Tensor:
    """Returns what `generate` adds, int64 [B, N]."""
    out = module.generate(
        prompt.tokens,
        attention_mask=prompt.mask.long(),
        **prompt.inputs,
        **token_types(module, prompt.tokens),
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
    )
    return out[:, prompt.tokens.shape[1] :]
