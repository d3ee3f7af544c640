r"""Whisper's timestamps: in pairs, in order, and whenever they are likelier than any word.

The ids above `<|notimestamps|>` are times. With $\ell$ as left by the rules on pairs and order, text is
forbidden where $\log \sum_{t} p_t > \max_{w} \log p_w$ over timestamps $t$ and other tokens $w$.

Radford et al., "Robust speech recognition via large-scale weak supervision", ICML 2023,
arXiv:2212.04356; the rules are those of its code, `ApplyTimestampRules`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.settings import check_vocabulary, per_row, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import forbid, is_one_of, one_id
from purgen.transforms.positions import begin_per_row, num_tokens, optional_setting
from purgen.view import TokenView

__all__ = ["whisper_timestamps"]

OWNER = "whisper_timestamps"


def whisper_timestamps(
    no_timestamps_token_id: int,
    *,
    eos_token_id: int | Iterable[int] | Tensor,
    begin_index: int | Tensor | None = None,
    max_initial_timestamp_index: int | Tensor | None = None,
    detect_timestamp_from_logprob: bool = True,
) -> LogitsTransform:
    """Makes timestamps appear as Whisper was trained to write them.

    `<|notimestamps|>` is forbidden. The first token is a timestamp. After a timestamp that follows
    text comes another or an eos token, after two (or after the first) comes text. Timestamps do not
    decrease, and one that is no second of its pair is later than the last. Where timestamps together
    are likelier than every other token, the next token is one.

    All of it is read off the row's own tokens from `begin_index` on, so a row decides alone.

    Args:
        no_timestamps_token_id: id of `<|notimestamps|>`; all ids above it are timestamps.
        eos_token_id: an id or several. Text, which may not follow an open timestamp, is what lies
            below the greatest of them and is none of them.
        begin_index: how many tokens a row has before the transcript, pads not counted; an int, 0-d
            or [B] int64 tensor. None stands for the length of its prompt.
        max_initial_timestamp_index: the latest first timestamp, counted from the first id; an int,
            0-d or [B] int64 tensor. None leaves it free.
        detect_timestamp_from_logprob: whether the last of the rules above holds.

    Returns:
        A `LogitsTransform`. Equal to `WhisperTimeStampLogitsProcessor` on rows without pads, given the
        fields of its `generate_config` by name.

    Raises:
        TypeError: not integers.
        ValueError: a number or id out of range, no timestamp in the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.whisper_timestamps(3, eos_token_id=2, max_initial_timestamp_index=1)
        >>> start = purgen.testing.example_view([[1]], vocab_size=7)
        >>> tstate = transform.init(start)
        >>> logits = torch.tensor([[6.0, 1.0, 0.0, 3.0, 0.0, 0.0, 0.0]])
        >>> transform.apply(tstate, logits, start)[
        ...     0
        ... ]  # times are 4, 5, 6; the latest first one is 5
        tensor([[-inf, -inf, -inf, -inf, 0., 0., -inf]])
        >>> open_time = purgen.testing.example_view([[1, 4, 0, 5]], num_new_tokens=3)
        >>> transform.apply(tstate, logits, open_time)[0]  # 5 again, later, or the end
        tensor([[-inf, -inf, -inf, -inf, -inf, 0., 0.]])
    """
    unstamped = one_id(OWNER, "no_timestamps_token_id", no_timestamps_token_id)
    first = unstamped + 1
    ends = token_ids(OWNER, "eos_token_id", eos_token_id)
    text_end = int(ends.max())
    begin = optional_setting(OWNER, "begin_index", begin_index)
    bound = optional_setting(OWNER, "max_initial_timestamp_index", max_initial_timestamp_index)

    def init(context: TokenView) -> dict[str, Tensor]:
        check_vocabulary(OWNER, "eos_token_id", ends, context)
        if context.vocab_size and first >= context.vocab_size:
            raise ValueError(
                f"{OWNER}: no_timestamps_token_id is {unstamped}, and no timestamp is left above it in "
                f"the vocabulary [0, {context.vocab_size})"
            )
        tstate = {"begin": begin_per_row(OWNER, "begin_index", begin, context)}
        if bound is not None:
            tstate["bound"] = per_row(OWNER, "max_initial_timestamp_index", bound, context)
        return tstate

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        is_time = vocabulary >= first
        is_text = (vocabulary < text_end) & ~is_one_of(ends, logits)
        opened, closed, earliest = (x[:, None] for x in _times(view, tstate["begin"], first))
        begins = (num_tokens(view) == tstate["begin"])[:, None]
        forbidden = (vocabulary == unstamped) | (is_time & (vocabulary < earliest))
        forbidden = forbidden | (closed & is_time) | (opened & is_text) | (begins & ~is_time)
        if bound is not None:
            forbidden = forbidden | (begins & (vocabulary > first + tstate["bound"][:, None]))
        scores = forbid(forbid_nan(logits), forbidden)
        if detect_timestamp_from_logprob:
            logprobs = log_softmax(scores)
            time = logprobs[:, first:].logsumexp(dim=-1, keepdim=True)
            other = logprobs[:, :first].amax(dim=-1, keepdim=True)
            scores = forbid(scores, (time > other) & ~is_time)
        return scores, tstate

    return LogitsTransform(init, apply)


def _times(view: TokenView, begin: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Reads off a transcript what its timestamps allow.

    Returns:
        `(opened, closed, earliest)`: bool [B], whether the newest token is a timestamp after text;
        bool [B], whether it is one that needs no other; int64 [B], the least id allowed.
    """
    slot = torch.arange(view.tokens.shape[1], device=view.tokens.device)
    begin_slot = view.start + begin
    in_transcript = (slot >= begin_slot[:, None]) & (slot < view.length[:, None])
    stamped = in_transcript & (view.tokens >= first)  # [B, T]
    newest = stamped.gather(1, (view.length - 1)[:, None])[:, 0]
    before = stamped.gather(1, (view.length - 2).clamp(min=0)[:, None])[:, 0]
    before = before | (view.length - begin_slot < 2)
    opened, closed = newest & ~before, newest & before
    place = torch.where(stamped, slot, -1).amax(dim=1)
    last = view.tokens.gather(1, place.clamp(min=0)[:, None])[:, 0]
    return opened, closed, torch.where(place >= 0, last + (~opened).long(), first)
