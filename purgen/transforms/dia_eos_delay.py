"""Dia's delayed ends: eos of the first channel, then that of each other after its delay.

With the delays 0, 2, 3, 4:

    C0: EOS  .   .   .   .
    C1:  x   x  EOS  .   .
    C2:  x   x   x  EOS  .
    C3:  x   x   x   x  EOS

Nari Labs, "Dia", 2025, https://github.com/nari-labs/dia
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purgen.logits import forbid_nan, is_dead
from purgen.pytree import pytree_dataclass
from purgen.settings import check_vocabulary
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import one_id
from purgen.transforms.channels import channel_per_row
from purgen.transforms.positions import end_per_row, num_tokens, optional_setting
from purgen.view import TokenView

__all__ = ["DiaEosDelayState", "dia_eos_delay"]

OWNER = "dia_eos_delay"


@pytree_dataclass
class DiaEosDelayState:
    """How far the end of each channel is.

    Attributes:
        ending: bool [B * C], whether the sequence is about to end.
        delay: int64 [B * C], steps that are left once it is; negative after the channel's eos.
        limit: int64 [B * C], at how many tokens it must begin to end.
    """

    ending: Tensor  # bool [B * C]
    delay: Tensor  # int64 [B * C]
    limit: Tensor  # int64 [B * C]


def dia_eos_delay(
    delay_pattern: Sequence[int],
    *,
    eos_token_id: int,
    max_generation_len: int | Tensor | None = None,
) -> LogitsTransform:
    """Forces eos in each channel, its delay after the first channel chose it.

    The rows of a batch are `[B * C]`: the channels of the first sequence, then those of the second. A
    sequence begins to end when eos is the best token of its first channel, and at the latest so early
    that all channels end in time. A row thus depends on the first of its sequence, an exception to
    the independence of rows: whoever selects rows must select sequences.

    Args:
        delay_pattern: the delay of each channel in steps, at least 0.
        eos_token_id: the id of eos.
        max_generation_len: how many tokens a row may have, prompt included and pads not counted; an
            int, 0-d or [B * C] int64 tensor. None stands for the generation's budget, which is
            never exceeded either way.

    Returns:
        A `LogitsTransform` whose state is a `DiaEosDelayState`. Equal to
        `DiaEOSDelayPatternLogitsProcessor` on rows without pads; where a prompt is too long to end in
        time, that never ends, and this at once.

    Raises:
        TypeError: not integers.
        ValueError: a number out of range; no delay; a number of rows that is no multiple of C.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.dia_eos_delay([0, 1], eos_token_id=1)
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=3)
        >>> logits = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> result, tstate = transform.apply(transform.init(view), logits, view)
        >>> result  # the first channel ends
        tensor([[-inf, 0., -inf],
                [0., 0., 1.]])
        >>> transform.apply(tstate, logits, view)[0][1]  # the second, a step later
        tensor([-inf, 0., -inf])
    """
    delays = _checked(delay_pattern)
    end = one_id(OWNER, "eos_token_id", eos_token_id)
    longest = optional_setting(OWNER, "max_generation_len", max_generation_len, low=1)

    def init(context: TokenView) -> DiaEosDelayState:
        check_vocabulary(OWNER, "eos_token_id", torch.tensor([end]), context)
        channel = channel_per_row(OWNER, len(delays), context)
        delay = torch.tensor(delays, device=channel.device)[channel]
        limit = end_per_row(OWNER, "max_generation_len", longest, context) - max(delays) - 1
        return DiaEosDelayState(torch.zeros_like(channel, dtype=torch.bool), delay, limit)

    def apply(
        tstate: DiaEosDelayState, logits: Tensor, view: TokenView
    ) -> tuple[Tensor, DiaEosDelayState]:
        scores = forbid_nan(logits)
        chosen = (scores.argmax(dim=-1) == end) & ~is_dead(scores)
        first_chose = chosen.reshape(-1, len(delays))[:, :1].expand(-1, len(delays)).reshape(-1)
        ending = tstate.ending | first_chose | (num_tokens(view) >= tstate.limit)
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        alone = torch.where(vocabulary == end, 0.0, -torch.inf).to(logits.dtype)
        scores = torch.where((ending & (tstate.delay == 0))[:, None], alone, scores)
        return scores, DiaEosDelayState(ending, tstate.delay - ending.long(), tstate.limit)

    return LogitsTransform(init, apply)


def _checked(delay_pattern: Sequence[int]) -> list[int]:
    delays = list(delay_pattern)
    if not delays:
        raise ValueError(f"{OWNER}: delay_pattern is empty; it must hold a delay a channel")
    for delay in delays:
        if not isinstance(delay, int) or isinstance(delay, bool):
            raise TypeError(f"{OWNER}: delay_pattern must hold ints, not {delay!r}")
        if delay < 0:
            raise ValueError(f"{OWNER}: delay_pattern holds {delay}; a delay is at least 0")
    return delays
