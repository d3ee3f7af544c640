"""Each logits processor of transformers, and the factory of purgen that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import purgen
from bridge.errors import Unsupported
from purgen import LogitsTransform, TokenView
from purgen.transforms.whisper_no_speech import WhisperNoSpeechState
from purgen.watermark.synthid import sampling_table

__all__ = ["PROCESSORS", "prefix_constrained"]

NEVER = 2**62  # a token id that no vocabulary has
SEEDS = 256  # how many seeds of a table are tried

Convert = Callable[[Any], LogitsTransform]


def _from_column(column: int, make: Callable[[int | Tensor], LogitsTransform]) -> LogitsTransform:
    """A transform that acts where a row has so many tokens; transformers says, at which column.

    Args:
        column: what transformers says.
        make: factory by the number of tokens, int64 [B], which only its `init` reads.

    Returns:
        A `LogitsTransform`.
    """

    def init(context: TokenView) -> Any:
        return make(_tokens_at(column, context)).init(context)

    return LogitsTransform(init, make(column).apply)


def _tokens_at(column: int, context: TokenView) -> Tensor:
    """Returns how many tokens each row has at a column of its batch, int64 [B]."""
    own = context.prompt_length - context.start
    longest = own.amax()
    return torch.where(longest <= column, own + column - longest, column)


def _counting_from(column: int, transform: LogitsTransform) -> LogitsTransform:
    """A transform whose new tokens are those from a column of the batch on."""

    def init(context: TokenView) -> dict[str, Any]:
        return {"begin": _tokens_at(column, context), "transform": transform.init(context)}

    def apply(tstate: dict[str, Any], logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        count = view.length - view.start - tstate["begin"]
        view = purgen.replace(view, num_new_tokens=count)
        logits, inner = transform.apply(tstate["transform"], logits, view)
        return logits, {**tstate, "transform": inner}

    return LogitsTransform(init, apply)


def _bad_words(processor: Any) -> LogitsTransform:
    words = [list(ids) for ids in processor.sequence_bias]  # without those that are eos
    return purgen.bad_words(words) if words else purgen.chain()


def _bark_eos(processor: Any) -> LogitsTransform:
    least = processor.min_eos_p
    if not least or least > 1:  # None and 0 turn it off
        return purgen.chain()
    return purgen.bark_eos(processor.eos_token_id, min_eos_p=least)


def _dia_eos_delay(processor: Any) -> LogitsTransform:
    if processor.active_batches is not None:
        raise Unsupported(
            "to_transform: this DiaEOSDelayPatternLogitsProcessor is in the middle of a generation and "
            "has counted its delays down; make a new one"
        )
    delays = processor.delay_pattern[0].tolist()
    return purgen.dia_eos_delay(
        delays,
        eos_token_id=processor.eos_token_id,
        max_generation_len=processor.max_generation_len + max(delays) + 1,
    )


def _encoder_no_repeat_ngram(processor: Any) -> LogitsTransform:
    """Its n-grams, set apart by a token that there is not: the inputs themselves it does not keep."""
    size = processor.ngram_size
    rows = [
        [
            token
            for before, follow in ngrams.items()
            for last in dict.fromkeys(follow)
            for token in (*before, last, NEVER)
        ]
        or [NEVER]
        for ngrams in processor.generated_ngrams
    ]
    return purgen.encoder_no_repeat_ngram(size, encoder_input_ids=rows)


def _exponential_decay(processor: Any) -> LogitsTransform:
    penalty = purgen.exponential_decay_length_penalty(
        (0, processor.regulation_factor), eos_token_id=processor.eos_token_id
    )
    return _counting_from(processor.regulation_start, penalty)


def _green_list_watermark(processor: Any) -> LogitsTransform:
    return purgen.green_list_watermark(
        processor.greenlist_size / processor.vocab_size,
        bias=processor.bias,
        hashing_key=processor.hash_key,
        seeding_scheme=processor.seeding_scheme,
        context_width=processor.context_width,
    )


def prefix_constrained(processor: Any, eos_token_id: Any = None) -> LogitsTransform:
    """Converts a `PrefixConstrainedLogitsProcessor`, to be tabulated if the eos ids are known."""
    function, beams = processor._prefix_allowed_tokens_fn, processor._num_beams

    def of_row(row: int, input_ids: Tensor) -> Any:
        return function(row // beams, input_ids)

    if eos_token_id is None:
        return purgen.prefix_allowed_tokens(function=of_row, eos_token_id=NEVER, eager=True)
    return purgen.prefix_allowed_tokens(function=of_row, eos_token_id=eos_token_id)


def _refuse_unbatched(processor: Any) -> LogitsTransform:
    raise Unsupported(
        "to_transform: UnbatchedClassifierFreeGuidanceLogitsProcessor runs a model and keeps its "
        "cache, so it is no transform but the strategy "
        f"purgen.guided(model, scale={processor.guidance_scale}, negative_prompt=…)"
    )


def _synthid_watermark(processor: Any) -> LogitsTransform:
    table = processor.sampling_table.cpu()
    # It keeps the table and not the seed.
    seeds = (seed for seed in range(SEEDS) if torch.equal(sampling_table(len(table), seed), table))
    seed = next(seeds, None)
    if seed is None:
        raise Unsupported(
            "to_transform: the sampling_table_seed of this SynthIDTextWatermarkLogitsProcessor is none "
            f"of 0 to {SEEDS - 1}, and it keeps no other; call purgen.synthid_watermark with it"
        )
    return purgen.synthid_watermark(
        processor.ngram_len,
        keys=processor.keys.tolist(),
        sampling_table_size=len(table),
        sampling_table_seed=seed,
        context_history_size=processor.context_history_size,
        skip_first_ngram_calls=processor.skip_first_ngram_calls,
    )


def _top_h(processor: Any) -> LogitsTransform:
    # It looks at the best 100 only, and at their entropy.
    value = {"filter_value": processor.filter_value}
    return purgen.chain(
        purgen.top_k(processor.top_n, **value), purgen.top_h(processor.top_h, **value)
    )


def _whisper_no_speech(processor: Any) -> LogitsTransform:
    if processor.start_of_trans_offset > 1:
        return _no_speech_by_model(processor)
    return _from_column(
        processor.begin_index,
        lambda begin: purgen.whisper_no_speech(
            processor.no_speech_token,
            begin_index=begin,
            scores_is_logprobs=processor.is_scores_logprobs,
        ),
    )


def _no_speech_by_model(processor: Any) -> LogitsTransform:
    """Runs the model once when a generation begins, as transformers does; logits pass unchanged."""
    model, inputs = processor.model, processor.inputs
    if model is None or inputs is None:
        raise Unsupported(
            "to_transform: WhisperNoSpeechDetection with a begin_index above 1 runs a model once more: "
            "call its set_model and set_inputs before, or see purgen.whisper_no_speech"
        )
    column, token = processor.begin_index, processor.no_speech_token
    place = column - processor.start_of_trans_offset

    def init(context: TokenView) -> WhisperNoSpeechState:
        with torch.no_grad():
            logits = model(**inputs).logits[:, place]
        probability = logits.float().softmax(dim=-1)[:, token]
        rows = len(context.start) // len(probability)
        return WhisperNoSpeechState(
            probability.repeat_interleave(rows), _tokens_at(column, context)
        )

    return LogitsTransform(init, lambda tstate, logits, view: (logits, tstate))


def _whisper_timestamps(processor: Any) -> LogitsTransform:
    return _from_column(
        processor.begin_index,
        lambda begin: purgen.whisper_timestamps(
            processor.no_timestamps_token_id,
            eos_token_id=processor.eos_token_id,
            begin_index=begin,
            max_initial_timestamp_index=processor.max_initial_timestamp_index,
            detect_timestamp_from_logprob=processor._detect_timestamp_from_logprob,
        ),
    )


def _filter(processor: Any) -> dict[str, Any]:
    return {
        "filter_value": processor.filter_value,
        "min_tokens_to_keep": processor.min_tokens_to_keep,
    }


# By class: the factory's name, and how it is called.
PROCESSORS: dict[str, tuple[str, Convert]] = {
    "AlternatingCodebooksLogitsProcessor": (
        "alternating_codebooks",
        lambda p: _from_column(
            p.input_start_len,
            lambda begin: purgen.alternating_codebooks(
                p.semantic_vocab_size, codebook_size=p.codebook_size, input_start_len=begin
            ),
        ),
    ),
    "BarkEosPrioritizerLogitsProcessor": ("bark_eos", _bark_eos),
    "ClassifierFreeGuidanceLogitsProcessor": (
        "guidance",
        lambda p: purgen.guidance(p.guidance_scale),
    ),
    "DiaClassifierFreeGuidanceLogitsProcessor": (
        "dia_guidance",
        lambda p: purgen.dia_guidance(p.guidance_scale, guidance_top_k=p.guidance_top_k),
    ),
    "DiaEOSChannelFilterLogitsProcessor": (
        "dia_eos_channel_filter",
        lambda p: purgen.dia_eos_channel_filter(p.num_channels, eos_token_id=p.eos_id),
    ),
    "DiaEOSDelayPatternLogitsProcessor": ("dia_eos_delay", _dia_eos_delay),
    "EncoderNoRepeatNGramLogitsProcessor": ("encoder_no_repeat_ngram", _encoder_no_repeat_ngram),
    "EncoderRepetitionPenaltyLogitsProcessor": (
        "encoder_repetition_penalty",
        lambda p: purgen.encoder_repetition_penalty(
            1 / p.penalty, encoder_input_ids=p.encoder_input_ids
        ),
    ),
    "EpsilonLogitsWarper": (
        "epsilon_cutoff",
        lambda p: purgen.epsilon_cutoff(p.epsilon, **_filter(p)),
    ),
    "EtaLogitsWarper": (
        "eta_cutoff",
        lambda p: purgen.eta_cutoff(float(p.epsilon), **_filter(p)),
    ),
    "ExponentialDecayLengthPenalty": ("exponential_decay_length_penalty", _exponential_decay),
    "ForcedBOSTokenLogitsProcessor": ("forced_bos", lambda p: purgen.forced_bos(p.bos_token_id)),
    "ForcedEOSTokenLogitsProcessor": (
        "forced_eos",
        lambda p: purgen.forced_eos(p.eos_token_id, max_length=p.max_length),
    ),
    "InfNanRemoveLogitsProcessor": ("remove_invalid", lambda p: purgen.remove_invalid()),
    "LogitNormalization": ("log_normalize", lambda p: purgen.log_normalize()),
    "MinLengthLogitsProcessor": (
        "min_length",
        lambda p: purgen.min_length(p.min_length, eos_token_id=p.eos_token_id),
    ),
    "MinNewTokensLengthLogitsProcessor": (
        "min_new_tokens",
        lambda p: _counting_from(
            p.prompt_length_to_skip,
            purgen.min_new_tokens(p.min_new_tokens, eos_token_id=p.eos_token_id),
        ),
    ),
    "MinPLogitsWarper": ("min_p", lambda p: purgen.min_p(p.min_p, **_filter(p))),
    "NoBadWordsLogitsProcessor": ("bad_words", _bad_words),
    "NoRepeatNGramLogitsProcessor": (
        "no_repeat_ngram",
        lambda p: purgen.no_repeat_ngram(p.ngram_size),
    ),
    "PrefixConstrainedLogitsProcessor": ("prefix_allowed_tokens", prefix_constrained),
    "RepetitionPenaltyLogitsProcessor": (
        "repetition_penalty",
        lambda p: purgen.repetition_penalty(p.penalty, prompt_ignore_length=p.prompt_ignore_length),
    ),
    "SequenceBiasLogitsProcessor": (
        "sequence_bias",
        lambda p: purgen.sequence_bias(p.sequence_bias),
    ),
    "SuppressTokensAtBeginLogitsProcessor": (
        "suppress_tokens_at_begin",
        lambda p: _from_column(
            p.begin_index,
            lambda begin: purgen.suppress_tokens_at_begin(
                p.begin_suppress_tokens, begin_index=begin
            ),
        ),
    ),
    "SuppressTokensLogitsProcessor": (
        "suppress_tokens",
        lambda p: purgen.suppress_tokens(p.suppress_tokens),
    ),
    "SynthIDTextWatermarkLogitsProcessor": ("synthid_watermark", _synthid_watermark),
    "TemperatureLogitsWarper": ("temperature", lambda p: purgen.temperature(p.temperature)),
    "TopHLogitsWarper": ("top_h", _top_h),
    "TopKLogitsWarper": ("top_k", lambda p: purgen.top_k(p.top_k, **_filter(p))),
    "TopPLogitsWarper": ("top_p", lambda p: purgen.top_p(p.top_p, **_filter(p))),
    "TypicalLogitsWarper": ("typical_p", lambda p: purgen.typical_p(p.mass, **_filter(p))),
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": ("guided", _refuse_unbatched),
    "WatermarkLogitsProcessor": ("green_list_watermark", _green_list_watermark),
    "WhisperNoSpeechDetection": ("whisper_no_speech", _whisper_no_speech),
    "WhisperTimeStampLogitsProcessor": ("whisper_timestamps", _whisper_timestamps),
}
