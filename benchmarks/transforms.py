"""Each transform beside its transformers class, eager and compiled; sampling chains; n-grams.

    python benchmarks/transforms.py [--rows 32] [--vocab 49152] [--only NAME ...] [--no-compile]

A ratio below 1 says that purgen is faster. Both run on the same logits in alternation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers.generation import logits_process as hf

sys.path.insert(0, str(Path(__file__).parent.parent))

import purgen
from benchmarks.harness import compare
from purgen import LogitsTransform
from purgen.testing import example_view

LENGTH = 1024  # tokens in each row's history
ENCODER = torch.arange(64).repeat(32, 1) % 40  # encoder input of 32 rows

PAIRS: dict[str, tuple[Callable[[], LogitsTransform], Callable[[], hf.LogitsProcessor]]] = {
    "temperature": (lambda: purgen.temperature(0.8), lambda: hf.TemperatureLogitsWarper(0.8)),
    "top_k": (lambda: purgen.top_k(50), lambda: hf.TopKLogitsWarper(50)),
    "top_p": (lambda: purgen.top_p(0.9), lambda: hf.TopPLogitsWarper(0.9)),
    "min_p": (lambda: purgen.min_p(0.05), lambda: hf.MinPLogitsWarper(0.05)),
    "typical_p": (lambda: purgen.typical_p(0.9), lambda: hf.TypicalLogitsWarper(0.9)),
    "epsilon_cutoff": (lambda: purgen.epsilon_cutoff(3e-4), lambda: hf.EpsilonLogitsWarper(3e-4)),
    "eta_cutoff": (lambda: purgen.eta_cutoff(3e-4), lambda: hf.EtaLogitsWarper(3e-4)),
    "top_h": (lambda: purgen.top_h(0.4), lambda: hf.TopHLogitsWarper(0.4)),
    "repetition_penalty": (
        lambda: purgen.repetition_penalty(1.2),
        lambda: hf.RepetitionPenaltyLogitsProcessor(1.2),
    ),
    "no_repeat_ngram": (
        lambda: purgen.no_repeat_ngram(3),
        lambda: hf.NoRepeatNGramLogitsProcessor(3),
    ),
    "bad_words": (
        lambda: purgen.bad_words([[5, 6], [7], [8, 9, 10]]),
        lambda: hf.NoBadWordsLogitsProcessor([[5, 6], [7], [8, 9, 10]], eos_token_id=2),
    ),
    "sequence_bias": (
        lambda: purgen.sequence_bias([[[5, 6], 1.0], [[7], -2.0]]),
        lambda: hf.SequenceBiasLogitsProcessor([[[5, 6], 1.0], [[7], -2.0]]),
    ),
    "min_new_tokens": (
        lambda: purgen.min_new_tokens(2000, eos_token_id=2),
        lambda: hf.MinNewTokensLengthLogitsProcessor(0, 2000, eos_token_id=2),
    ),
    "suppress_tokens": (
        lambda: purgen.suppress_tokens([3, 4, 5]),
        lambda: hf.SuppressTokensLogitsProcessor([3, 4, 5]),
    ),
    "suppress_tokens_at_begin": (
        lambda: purgen.suppress_tokens_at_begin([3, 4], begin_index=LENGTH),
        lambda: hf.SuppressTokensAtBeginLogitsProcessor([3, 4], LENGTH),
    ),
    "encoder_repetition_penalty": (
        lambda: purgen.encoder_repetition_penalty(1.2, encoder_input_ids=ENCODER),
        lambda: hf.EncoderRepetitionPenaltyLogitsProcessor(1.2, ENCODER),
    ),
    "encoder_no_repeat_ngram": (
        lambda: purgen.encoder_no_repeat_ngram(3, encoder_input_ids=ENCODER),
        lambda: hf.EncoderNoRepeatNGramLogitsProcessor(3, ENCODER),
    ),
    "prefix_allowed_tokens": (
        lambda: purgen.prefix_allowed_tokens([[5, 6], [7]], eos_token_id=2),
        lambda: hf.PrefixConstrainedLogitsProcessor(lambda row, ids: [5, 7], 1),
    ),
    "min_length": (
        lambda: purgen.min_length(2000, eos_token_id=2),
        lambda: hf.MinLengthLogitsProcessor(2000, 2),
    ),
    "forced_bos": (
        lambda: purgen.forced_bos(1),
        lambda: hf.ForcedBOSTokenLogitsProcessor(1),
    ),
    "forced_eos": (
        lambda: purgen.forced_eos(2, max_length=LENGTH + 1),
        lambda: hf.ForcedEOSTokenLogitsProcessor(LENGTH + 1, 2),
    ),
    "exponential_decay_length_penalty": (
        lambda: purgen.exponential_decay_length_penalty((10, 1.01), eos_token_id=2),
        lambda: hf.ExponentialDecayLengthPenalty((10, 1.01), 2, LENGTH // 2),
    ),
    "log_normalize": (purgen.log_normalize, hf.LogitNormalization),
    "remove_invalid": (purgen.remove_invalid, hf.InfNanRemoveLogitsProcessor),
    "whisper_timestamps": (
        lambda: purgen.whisper_timestamps(
            40000, eos_token_id=2, begin_index=4, max_initial_timestamp_index=50
        ),
        lambda: hf.WhisperTimeStampLogitsProcessor(
            transformers.GenerationConfig(
                eos_token_id=2, no_timestamps_token_id=40000, max_initial_timestamp_index=50
            ),
            begin_index=4,
        ),
    ),
    "alternating_codebooks": (
        lambda: purgen.alternating_codebooks(10000, codebook_size=1024, input_start_len=1),
        lambda: hf.AlternatingCodebooksLogitsProcessor(1, 10000, 1024),
    ),
    "bark_eos": (
        lambda: purgen.bark_eos(2, min_eos_p=0.2),
        lambda: hf.BarkEosPrioritizerLogitsProcessor(2, 0.2),
    ),
    "green_list_watermark": (
        lambda: purgen.green_list_watermark(0.25, bias=2.0),
        lambda: hf.WatermarkLogitsProcessor(49152, "cpu", bias=2.0),
    ),
    "synthid_watermark": (
        lambda: purgen.synthid_watermark(5, keys=[654, 400, 836, 123]),
        lambda: hf.SynthIDTextWatermarkLogitsProcessor(
            5, [654, 400, 836, 123], 2**16, 0, 1024, "cpu"
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    # A language model's logits: a few likely tokens above a broad floor.
    logits = torch.randn(arguments.rows, arguments.vocab, generator=generator) * 2
    best = torch.randint(arguments.vocab, (arguments.rows, 200), generator=generator)
    logits = logits.scatter_add(1, best, torch.rand(best.shape, generator=generator) * 12)
    history = torch.randint(arguments.vocab // 50, (arguments.rows, LENGTH), generator=generator)
    view = example_view(history.tolist(), vocab_size=arguments.vocab, num_new_tokens=LENGTH // 2)
    print(
        f"logits [{arguments.rows}, {arguments.vocab}], history {LENGTH}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"transformers {transformers.__version__}"
    )
    print(f"{'':36}{'purgen':>12}{'transformers':>13}   ratio (range)")

    def report(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
        print(f"{name:36}{compare(ours, theirs)}", flush=True)

    def one(name: str, transform: LogitsTransform, processor: hf.LogitsProcessor) -> None:
        state = transform.init(view)

        def theirs() -> torch.Tensor:
            return processor(history, logits)

        report(f"{name}, eager", lambda: transform.apply(state, logits, view), theirs)
        if not arguments.no_compile:
            compiled = torch.compile(transform.apply, fullgraph=True, dynamic=False)
            report(f"{name}, compiled", lambda: compiled(state, logits, view), theirs)
            torch.compiler.reset()

    for name, (make_ours, make_theirs) in PAIRS.items():
        if arguments.only is None or name in arguments.only:
            one(name, make_ours(), make_theirs())
    if arguments.only is None or "sample" in arguments.only:
        sampling(report, logits, history, view, compiled=not arguments.no_compile)


def sampling(report, logits, history, view, *, compiled: bool) -> None:
    """Temperature, top-k 50, top-p 0.9 and a draw, against the same with torch.multinomial."""
    warp = purgen.chain(purgen.temperature(0.8), purgen.top_k(50), purgen.top_p(0.9))
    state = warp.init(view)
    processors = hf.LogitsProcessorList(
        [hf.TemperatureLogitsWarper(0.8), hf.TopKLogitsWarper(50), hf.TopPLogitsWarper(0.9)]
    )

    def ours(state, logits, view):
        warped, _ = warp.apply(state, logits, view)
        return purgen.random.categorical(purgen.step_key(view), warped)

    def theirs():
        return torch.multinomial(processors(history, logits).softmax(dim=-1), 1)

    report("sample, eager", lambda: ours(state, logits, view), theirs)
    if compiled:
        program = torch.compile(ours, fullgraph=True, dynamic=False)
        report("sample, compiled", lambda: program(state, logits, view), theirs)


if __name__ == "__main__":
    main()
