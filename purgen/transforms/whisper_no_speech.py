r"""Whisper's detection of silence: $p_\mathrm{nospeech}$ at the beginning of a transcript.

Radford et al., "Robust speech recognition via large-scale weak supervision", ICML 2023,
arXiv:2212.04356.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.pytree import pytree_dataclass
from purgen.settings import check_vocabulary
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import one_id
from purgen.transforms.positions import begin_per_row, num_tokens, optional_setting
from purgen.view import TokenView

__all__ = ["WhisperNoSpeechState", "whisper_no_speech"]

OWNER = "whisper_no_speech"


@pytree_dataclass
class WhisperNoSpeechState:
    """What `whisper_no_speech` found.

    Attributes:
        no_speech_prob: float32 [B], probability of silence; 0 before it was read.
        begin: int64 [B], how many tokens a row has when it is read.
    """

    no_speech_prob: Tensor  # float32 [B]
    begin: Tensor  # int64 [B]


def whisper_no_speech(
    no_speech_token: int,
    *,
    begin_index: int | Tensor | None = None,
    scores_is_logprobs: bool = False,
) -> LogitsTransform:
    """Keeps the probability of the no-speech token in its state; logits pass unchanged.

    It is read off the logits that come in where a row has `begin_index` tokens, so put this first in
    a chain: what it is after is the model's own distribution. After a generation it is in
    `state.transform`, by name if `named_chain` joined the transforms.

    Whisper means the distribution after `<|startoftranscript|>`. Where the prompt is that token alone,
    those are the logits of the first step. Where language and task follow it in the prompt, these
    logits are not among those that a transform sees; transformers then runs the model once more,
    inside the processor. Here the prompt can end with the start token and the rest be forced (with
    `forced_bos` under `when`), or the number be read off `model.prefill`.

    Args:
        no_speech_token: id of `<|nospeech|>`.
        begin_index: how many tokens a row has when it is read, pads not counted; an int, 0-d or [B]
            int64 tensor. None stands for the length of its prompt.
        scores_is_logprobs: whether logits come in as log-probabilities already.

    Returns:
        A `LogitsTransform` whose state is a `WhisperNoSpeechState`. Equal to
        `WhisperNoSpeechDetection` with a `begin_index` of at most 1 there, which is when it reads the
        logits that it is given.

    Raises:
        TypeError: not integers.
        ValueError: an id outside the vocabulary, `begin_index` negative.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.whisper_no_speech(1)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> logits, tstate = transform.apply(transform.init(view), torch.zeros(1, 4), view)
        >>> tstate.no_speech_prob
        tensor([0.2500])
    """
    silence = one_id(OWNER, "no_speech_token", no_speech_token)
    begin = optional_setting(OWNER, "begin_index", begin_index)

    def init(context: TokenView) -> WhisperNoSpeechState:
        check_vocabulary(OWNER, "no_speech_token", torch.tensor([silence]), context)
        rows = begin_per_row(OWNER, "begin_index", begin, context)
        return WhisperNoSpeechState(torch.zeros_like(rows, dtype=torch.float32), rows)

    def apply(
        tstate: WhisperNoSpeechState, logits: Tensor, view: TokenView
    ) -> tuple[Tensor, WhisperNoSpeechState]:
        scores = forbid_nan(logits)
        logprobs = scores.float() if scores_is_logprobs else log_softmax(scores)
        begins = num_tokens(view) == tstate.begin
        found = torch.where(begins, logprobs[:, silence].exp(), tstate.no_speech_prob)
        return scores, WhisperNoSpeechState(found, tstate.begin)

    return LogitsTransform(init, apply)
