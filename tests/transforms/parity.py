"""Each transform beside its transformers class: how to draw settings, how to make both."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from hypothesis import strategies as st

import purgen
from purgen import LogitsTransform, TokenView

VOCAB = 40
NEAR = 1e-6  # relative, for logits that are computed and not only kept or forbidden


@dataclasses.dataclass(frozen=True)
class Parity:
    """One class of transformers and what is to equal it.

    Attributes:
        settings: strategy of the factory's keyword arguments.
        ours: factory.
        theirs: `(settings, input_ids) -> LogitsProcessor`.
        undecided: `(settings, logits) -> bool [B, V]`, tokens at an edge that float32 rounding decides.
    """

    settings: st.SearchStrategy[dict[str, Any]]
    ours: Callable[..., LogitsTransform]
    theirs: Callable[[dict[str, Any], torch.Tensor], Any]
    undecided: Callable[[dict[str, Any], torch.Tensor], torch.Tensor] | None = None

    @property
    def principal(self) -> str:
        """The name of the setting that the factory takes positionally."""
        return next(iter(inspect.signature(self.ours).parameters))


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    bounds = torch.tensor([low, high]).tolist()  # as float32 has them
    return st.floats(*bounds, width=32, allow_subnormal=False)


KEEP = st.integers(1, VOCAB + 3)


def near_mass(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens before which, in order of probability, the mass is p but for rounding."""
    ordered, order = logits.double().softmax(-1).sort(descending=True, stable=True)
    before = torch.nn.functional.pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    near = (before - settings["top_p"]).abs() < 1e-5
    return torch.zeros_like(near).scatter(-1, order, near)


def near_share(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens whose share of the best probability is min_p, or 0, but for rounding."""
    share = (logits.double() - logits.double().amax(-1, keepdim=True)).exp()
    return ((share - settings["min_p"]).abs() < 1e-5 * settings["min_p"]) | (share < 1e-35)


def near_typical(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens beyond the mass that rounding, or a tie with the last, may bring in."""
    logprobs = logits.double().log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).nansum(-1, keepdim=True)
    ordered, order = (-logprobs - entropy).abs().sort(stable=True)
    reached = logprobs.gather(-1, order).exp().cumsum(-1)
    first, last = (
        (reached < settings["mass"] + slack).sum(-1, keepdim=True).clamp(max=VOCAB - 1)
        for slack in (-1e-5, 1e-5)
    )
    near = (torch.arange(VOCAB) > first) & (ordered <= ordered.gather(-1, last) * 1.00001 + 1e-5)
    return torch.zeros_like(near).scatter(-1, order, near)


def near_epsilon(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens whose probability is epsilon but for rounding."""
    return (logits.double().softmax(-1) / settings["epsilon"] - 1).abs() < 1e-4


def near_eta(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens whose probability is eta but for rounding."""
    probability = logits.double().softmax(-1)
    entropy = torch.special.entr(probability).sum(-1, keepdim=True)
    epsilon = settings["epsilon"]
    eta = (epsilon**0.5 * (-entropy).exp()).clamp(max=epsilon)
    return (probability / eta - 1).abs() < 1e-4


def near_entropy(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens up to which, in order of probability, the share of the entropy is h but for rounding."""
    ordered, order = logits.double().softmax(-1).sort(descending=True, stable=True)
    held = torch.special.entr(ordered).cumsum(-1)
    whole = held[:, -1:]
    near = (held - settings["top_h"] * whole).abs() < 1e-5 * (1 + whole)
    return torch.zeros_like(near).scatter(-1, order, near)


ENCODER_IDS = torch.tensor([[0, 1, 2, 0, 1, 5, 7, 2, 2, 2, 6, 3, 0]])
PATHS = [[4], [1, 2], [0, 0], [2, 1, 0], [1, 0], [0, 1, 2, 0, 1]]


def near_eos(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Rows in which the probability of an eos is the bound but for rounding."""
    share = logits.double().softmax(-1)[:, EOS] / settings["min_eos_p"]
    return ((share - 1).abs() < 1e-5).any(-1, keepdim=True).expand(logits.shape)


EOS = [2, 5]
WHISPER = transformers.GenerationConfig(
    eos_token_id=2, no_timestamps_token_id=4, max_initial_timestamp_index=6
)

PARITY: dict[str, Parity] = {
    "temperature": Parity(
        st.fixed_dictionaries({"temperature": numbers(0.01, 50)}),
        purgen.temperature,
        lambda settings, ids: transformers.TemperatureLogitsWarper(**settings),
    ),
    "top_k": Parity(
        st.fixed_dictionaries(
            {"top_k": st.integers(1, VOCAB + 9)}, optional={"min_tokens_to_keep": KEEP}
        ),
        purgen.top_k,
        lambda settings, ids: transformers.TopKLogitsWarper(**settings),
    ),
    "top_p": Parity(
        st.fixed_dictionaries({"top_p": numbers(0, 1)}, optional={"min_tokens_to_keep": KEEP}),
        purgen.top_p,
        lambda settings, ids: transformers.TopPLogitsWarper(**settings),
        near_mass,
    ),
    "min_p": Parity(
        st.fixed_dictionaries({"min_p": numbers(0, 1)}, optional={"min_tokens_to_keep": KEEP}),
        purgen.min_p,
        lambda settings, ids: transformers.MinPLogitsWarper(**settings),
        near_share,
    ),
    "typical_p": Parity(
        st.fixed_dictionaries({"mass": numbers(0.01, 0.99)}, optional={"min_tokens_to_keep": KEEP}),
        purgen.typical_p,
        lambda settings, ids: transformers.TypicalLogitsWarper(**settings),
        near_typical,
    ),
    "epsilon_cutoff": Parity(
        st.fixed_dictionaries(
            {"epsilon": numbers(1e-6, 0.99)}, optional={"min_tokens_to_keep": KEEP}
        ),
        purgen.epsilon_cutoff,
        lambda settings, ids: transformers.EpsilonLogitsWarper(**settings),
        near_epsilon,
    ),
    "eta_cutoff": Parity(
        st.fixed_dictionaries(
            {"epsilon": numbers(1e-6, 0.99)}, optional={"min_tokens_to_keep": KEEP}
        ),
        purgen.eta_cutoff,
        lambda settings, ids: transformers.EtaLogitsWarper(**settings),
        near_eta,
    ),
    "top_h": Parity(
        st.fixed_dictionaries({"top_h": numbers(0.01, 1)}),
        purgen.top_h,
        lambda settings, ids: transformers.TopHLogitsWarper(**settings),
        near_entropy,
    ),
    "repetition_penalty": Parity(
        st.fixed_dictionaries(
            {"penalty": numbers(0.1, 10)}, optional={"prompt_ignore_length": st.integers(0, 9)}
        ),
        purgen.repetition_penalty,
        lambda settings, ids: transformers.RepetitionPenaltyLogitsProcessor(**settings),
    ),
    "no_repeat_ngram": Parity(
        st.fixed_dictionaries({"ngram_size": st.integers(1, 14)}),
        purgen.no_repeat_ngram,
        lambda settings, ids: transformers.NoRepeatNGramLogitsProcessor(**settings),
    ),
    "encoder_no_repeat_ngram": Parity(
        st.fixed_dictionaries({"encoder_ngram_size": st.integers(1, 14)}),
        lambda encoder_ngram_size: purgen.encoder_no_repeat_ngram(
            encoder_ngram_size, encoder_input_ids=ENCODER_IDS
        ),
        lambda settings, ids: transformers.EncoderNoRepeatNGramLogitsProcessor(
            **settings, encoder_input_ids=ENCODER_IDS
        ),
    ),
    "encoder_repetition_penalty": Parity(
        st.fixed_dictionaries({"penalty": numbers(0.1, 10)}),
        lambda penalty: purgen.encoder_repetition_penalty(penalty, encoder_input_ids=ENCODER_IDS),
        lambda settings, ids: transformers.EncoderRepetitionPenaltyLogitsProcessor(
            **settings, encoder_input_ids=ENCODER_IDS
        ),
    ),
    "sequence_bias": Parity(
        st.fixed_dictionaries({"bias": numbers(-9, 9) | st.just(-torch.inf)}),
        lambda bias: purgen.sequence_bias([[path, bias] for path in PATHS]),
        lambda settings, ids: transformers.SequenceBiasLogitsProcessor(
            [[path, settings["bias"]] for path in PATHS]
        ),
    ),
    "min_length": Parity(
        st.fixed_dictionaries({"min_length": st.integers(0, 14)}),
        lambda min_length: purgen.min_length(min_length, eos_token_id=EOS),
        lambda settings, ids: transformers.MinLengthLogitsProcessor(**settings, eos_token_id=EOS),
    ),
    "min_new_tokens": Parity(
        st.fixed_dictionaries({"min_new_tokens": st.integers(0, 3)}),
        lambda min_new_tokens: purgen.min_new_tokens(min_new_tokens, eos_token_id=EOS),
        lambda settings, ids: transformers.MinNewTokensLengthLogitsProcessor(
            ids.shape[1], **settings, eos_token_id=EOS
        ),
    ),
    "forced_bos": Parity(
        st.fixed_dictionaries({"bos_token_id": st.integers(0, VOCAB - 1)}),
        purgen.forced_bos,
        lambda settings, ids: transformers.ForcedBOSTokenLogitsProcessor(**settings),
    ),
    "forced_eos": Parity(
        st.fixed_dictionaries({"max_length": st.integers(1, 14)}),
        lambda max_length: purgen.forced_eos(EOS, max_length=max_length),
        lambda settings, ids: transformers.ForcedEOSTokenLogitsProcessor(
            **settings, eos_token_id=EOS
        ),
    ),
    "suppress_tokens_at_begin": Parity(
        st.fixed_dictionaries({"begin_index": st.integers(1, 12)}),
        lambda begin_index: purgen.suppress_tokens_at_begin(EOS, begin_index=begin_index),
        lambda settings, ids: transformers.SuppressTokensAtBeginLogitsProcessor(EOS, **settings),
    ),
    "whisper_timestamps": Parity(
        st.fixed_dictionaries({"begin_index": st.integers(1, 12)}),
        lambda begin_index: purgen.whisper_timestamps(
            4, eos_token_id=2, begin_index=begin_index, max_initial_timestamp_index=6
        ),
        lambda settings, ids: transformers.WhisperTimeStampLogitsProcessor(WHISPER, **settings),
    ),
    "alternating_codebooks": Parity(
        st.fixed_dictionaries({"semantic_vocab_size": st.integers(0, 20)}),
        lambda semantic_vocab_size: purgen.alternating_codebooks(
            semantic_vocab_size, codebook_size=9, input_start_len=2
        ),
        lambda settings, ids: transformers.AlternatingCodebooksLogitsProcessor(
            2, **settings, codebook_size=9
        ),
    ),
    "bark_eos": Parity(
        st.fixed_dictionaries({"min_eos_p": numbers(1e-4, 1)}),
        lambda min_eos_p: purgen.bark_eos(EOS, min_eos_p=min_eos_p),
        lambda settings, ids: (
            transformers.generation.logits_process.BarkEosPrioritizerLogitsProcessor(
                EOS, **settings
            )
        ),
        near_eos,
    ),
}


def view_of_ids(ids: torch.Tensor, prompt_length: int, pads: int = 0, pad: int = 0) -> TokenView:
    """The view of rows [B, L] without pads, shifted right by `pads` of id `pad`."""
    batch, width = ids.shape
    tokens = torch.nn.functional.pad(ids, (pads, 3), value=pad)
    length = torch.full((batch,), width + pads)
    prompt = torch.full((batch,), prompt_length + pads)
    return TokenView(
        tokens=tokens,
        start=torch.full((batch,), pads),
        length=length,
        prompt_length=prompt,
        num_new_tokens=length - prompt,
        rng_key=purgen.random.split(purgen.random.key(0), batch),
        elapsed=torch.zeros(batch),
        logprob=torch.zeros(batch),
        entropy=torch.zeros(batch),
        vocab_size=VOCAB,
        max_new_tokens=3,
    )
