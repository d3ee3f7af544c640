"""Tiny random encoder-decoder models, and prompts for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

import purgen
from tests.bridge.families import NEW_TOKENS, PAD, VOCAB, redraw

_IDS = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": None, "decoder_start_token_id": 2}
_BART = {
    **_IDS,
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
}
_T5 = {
    **_IDS,
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}
_WHISPER = {
    **_BART,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 64,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}

# name: (model type, settings)
SEQ2SEQ: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("bart", _BART),
    "marian": ("marian", _BART),
    "mbart": ("mbart", _BART),
    "t5": ("t5", {**_T5, "feed_forward_proj": "relu", "tie_word_embeddings": True}),
    "t5_gated": ("t5", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "whisper": ("whisper", _WHISPER),
}


def tiny_seq2seq(name: str) -> Any:
    """Returns a tiny module in evaluation mode, weights large enough that greedy tokens vary."""
    model_type, settings = SEQ2SEQ[name]
    config = transformers.AutoConfig.for_model(model_type, **settings)
    kind = {"whisper": transformers.AutoModelForSpeechSeq2Seq}.get(
        model_type, transformers.AutoModelForSeq2SeqLM
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = kind.from_config(config)
        # A decoder that looks at its encoder more than at itself repeats a token: positions weigh more.
        gain, positions = (1.3, 15.0) if model_type == "t5" else (1.0, 5.0)
        redraw(module, gain=gain, positions=positions)
        # A table of sinusoids that is drawn anew is as good as any, but must be the same for both.
    return module.eval()


def seq2seq_prompt(name: str) -> purgen.Prompt:
    """Returns three rows, texts of 4, 7 and 2 tokens or features, decoders at the start token."""
    generator = torch.Generator().manual_seed(1)
    start = torch.full((3, 1), 2)
    ones = torch.ones(3, 1, dtype=torch.bool)
    if name == "whisper":
        features = torch.randn(3, 8, 24, generator=generator)
        return purgen.Prompt(tokens=start, mask=ones, inputs={"input_features": features})
    tokens = torch.randint(3, VOCAB, (3, 7), generator=generator)
    mask = torch.arange(7) < torch.tensor([[4], [7], [2]])
    inputs = {"input_ids": torch.where(mask, tokens, PAD), "attention_mask": mask}
    return purgen.Prompt(tokens=start, mask=ones, inputs=inputs)


def generated_seq2seq(module: Any, prompt: purgen.Prompt) -> Tensor:
    """Returns what transformers' greedy decoding adds to the start token, int64 [B, N]."""
    inputs = {
        key: value.long() if value.dtype == torch.bool else value
        for key, value in prompt.inputs.items()
    }
    out = transformers.GenerationMixin.generate(
        module,
        **inputs,
        decoder_input_ids=prompt.tokens,
        do_sample=False,
        num_beams=1,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
    )
    return out[:, prompt.tokens.shape[1] :]
