"""Logits transforms: one algorithm a file."""

from purgen.transforms.alternating_codebooks import alternating_codebooks
from purgen.transforms.bad_words import bad_words
from purgen.transforms.bark_eos import bark_eos
from purgen.transforms.base import LogitsTransform, stateless
from purgen.transforms.chain import chain, named_chain
from purgen.transforms.dia_eos_channel_filter import dia_eos_channel_filter
from purgen.transforms.dia_eos_delay import dia_eos_delay
from purgen.transforms.dia_guidance import dia_guidance
from purgen.transforms.dry import dry
from purgen.transforms.dynamic_temperature import dynamic_temperature
from purgen.transforms.encoder_no_repeat_ngram import encoder_no_repeat_ngram
from purgen.transforms.encoder_repetition_penalty import encoder_repetition_penalty
from purgen.transforms.entropy_temperature import entropy_temperature
from purgen.transforms.epsilon_cutoff import epsilon_cutoff
from purgen.transforms.eta_cutoff import eta_cutoff
from purgen.transforms.exponential_decay_length_penalty import exponential_decay_length_penalty
from purgen.transforms.forced_bos import forced_bos
from purgen.transforms.forced_eos import forced_eos
from purgen.transforms.frequency_penalty import frequency_penalty
from purgen.transforms.green_list_watermark import green_list_watermark
from purgen.transforms.guidance import guidance
from purgen.transforms.log_normalize import log_normalize
from purgen.transforms.min_k import min_k
from purgen.transforms.min_length import min_length
from purgen.transforms.min_new_tokens import min_new_tokens
from purgen.transforms.min_p import min_p
from purgen.transforms.mirostat import mirostat
from purgen.transforms.no_repeat_ngram import no_repeat_ngram
from purgen.transforms.p_less import p_less
from purgen.transforms.prefix_allowed_tokens import prefix_allowed_tokens
from purgen.transforms.presence_penalty import presence_penalty
from purgen.transforms.quadratic import quadratic
from purgen.transforms.remove_invalid import remove_invalid
from purgen.transforms.repetition_penalty import repetition_penalty
from purgen.transforms.sequence_bias import sequence_bias
from purgen.transforms.suppress_tokens import suppress_tokens
from purgen.transforms.suppress_tokens_at_begin import suppress_tokens_at_begin
from purgen.transforms.synthid_watermark import synthid_watermark
from purgen.transforms.tail_free import tail_free
from purgen.transforms.temperature import temperature
from purgen.transforms.top_a import top_a
from purgen.transforms.top_h import top_h
from purgen.transforms.top_k import top_k
from purgen.transforms.top_n_sigma import top_n_sigma
from purgen.transforms.top_p import top_p
from purgen.transforms.typical_p import typical_p
from purgen.transforms.whisper_no_speech import whisper_no_speech
from purgen.transforms.whisper_timestamps import whisper_timestamps
from purgen.transforms.xtc import xtc

__all__ = [
    "LogitsTransform",
    "alternating_codebooks",
    "bad_words",
    "bark_eos",
    "chain",
    "dia_eos_channel_filter",
    "dia_eos_delay",
    "dia_guidance",
    "dry",
    "dynamic_temperature",
    "encoder_no_repeat_ngram",
    "encoder_repetition_penalty",
    "entropy_temperature",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos",
    "forced_eos",
    "frequency_penalty",
    "green_list_watermark",
    "guidance",
    "log_normalize",
    "min_k",
    "min_length",
    "min_new_tokens",
    "min_p",
    "mirostat",
    "named_chain",
    "no_repeat_ngram",
    "p_less",
    "prefix_allowed_tokens",
    "presence_penalty",
    "quadratic",
    "remove_invalid",
    "repetition_penalty",
    "sequence_bias",
    "stateless",
    "suppress_tokens",
    "suppress_tokens_at_begin",
    "synthid_watermark",
    "tail_free",
    "temperature",
    "top_a",
    "top_h",
    "top_k",
    "top_n_sigma",
    "top_p",
    "typical_p",
    "whisper_no_speech",
    "whisper_timestamps",
    "xtc",
]
