"""Dia's eos: the first channel's alone, and only where it is the best token.

Nari Labs, "Dia", 2025, https://github.com/nari-labs/dia
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import forbid, one_id
from purgen.transforms.channels import channel_per_row, check_channels
from purgen.view import TokenView

__all__ = ["dia_eos_channel_filter"]

OWNER = "dia_eos_channel_filter"


def dia_eos_channel_filter(num_channels: int, *, eos_token_id: int) -> LogitsTransform:
    """Forbids eos in all channels but the first, and there forbids either eos or all else.

    The rows of a batch are `[B * C]`: the channels of the first sequence, then those of the second.
    What a row's channel is belongs to its state, so that it moves with the row. In the first channel
    eos stays alone where it is the best token (a tie goes against it), and is forbidden elsewhere.
    Ids above eos, which in Dia are special, are forbidden everywhere.

    Args:
        num_channels: C, at least 1.
        eos_token_id: the id of eos, at least 1. It is one id here: it parts audio from special tokens.

    Returns:
        A `LogitsTransform`. Equal to `DiaEOSChannelFilterLogitsProcessor`.

    Raises:
        TypeError: not integers.
        ValueError: a number out of range; a number of rows that is no multiple of C.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.dia_eos_channel_filter(2, eos_token_id=2)
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=4)
        >>> logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[-inf, -inf, 2., -inf],
                [0., 1., -inf, -inf]])
    """
    channels = check_channels(OWNER, num_channels)
    end = one_id(OWNER, "eos_token_id", eos_token_id)
    if end < 1:
        raise ValueError(f"{OWNER}: eos_token_id must be at least 1, not {end}")

    def init(context: TokenView) -> Tensor:
        check_vocabulary(OWNER, "eos_token_id", torch.tensor([end]), context)
        return channel_per_row(OWNER, channels, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        scores = forbid_nan(logits)
        best_audio = scores[:, :end].amax(dim=-1)
        ends = (tstate == 0) & (scores[:, end] > best_audio)
        kept = torch.where(ends[:, None], vocabulary == end, vocabulary < end)
        return forbid(scores, ~kept), tstate

    return LogitsTransform(init, apply)
