"""Which generation a call of transformers belongs to, found by the tokens it is made with."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

import purgen
from purgen import TokenView
from purgen.pytree import select_rows

__all__ = ["Layout", "Moment", "Track", "layout_of"]

KEPT = 64  # how many steps back a generation may go


@dataclasses.dataclass(frozen=True)
class Layout:
    """How rows of scores belong to rows of tokens."""

    times: int = 1
    paired: bool = False

    def spread(self, rows: Tensor) -> Tensor:
        """Gives each row of the scores what belongs to it."""
        return torch.cat([rows, rows]) if self.paired else rows.repeat_interleave(self.times, dim=0)

    def index(self, parent: Tensor, rows: int) -> Tensor:
        """Rows of scores by rows of tokens, int64 [B]; there were `rows` of these."""
        if self.paired:
            return torch.cat([parent, parent + rows])
        place = torch.arange(self.times, device=parent.device)
        return (parent[:, None] * self.times + place).flatten()


def layout_of(scores: Tensor, ids: Tensor, paired: bool | None) -> Layout:
    """Returns how the rows of scores [R, V] belong to those of ids [B, L]; `paired` None: by number."""
    times, rest = divmod(len(scores), len(ids))
    if paired is None:
        paired = times == 2 and not rest
    if rest or (paired and times != 2):
        wanted = "twice the" if paired else "a multiple of the"
        raise ValueError(
            f"scores have {len(scores)} rows and input_ids {len(ids)}: it must be {wanted} number"
        )
    return Layout(times, paired)


@dataclasses.dataclass(frozen=True)
class Moment:
    """A generation at a step; all but `began` has rows first."""

    state: Any
    start: Tensor  # int64 [B]
    prompt_length: Tensor  # int64 [B]
    rng_key: Tensor  # int64 [B, 2]
    began: float

    def select(self, index: Tensor) -> Moment:
        """Returns the rows `index`."""
        rows = (self.state, self.start, self.prompt_length, self.rng_key)
        return Moment(*select_rows(rows, index), self.began)

    def view(self, ids: Tensor, track: Track, vocab_size: int = 0) -> TokenView:
        """The view of ids [B, L], with a free slot at the end."""
        length = torch.full_like(self.start, ids.shape[1])
        seconds = time.monotonic() - self.began
        return TokenView(
            tokens=torch.nn.functional.pad(ids, (0, 1), value=track.pad_token_id or 0),
            start=self.start,
            length=length,
            prompt_length=self.prompt_length,
            num_new_tokens=length - self.prompt_length,
            rng_key=self.rng_key,
            elapsed=torch.full_like(self.start, seconds, dtype=torch.float32),
            logprob=torch.zeros_like(self.start, dtype=torch.float32),
            entropy=torch.zeros_like(self.start, dtype=torch.float32),
            vocab_size=vocab_size,
            max_new_tokens=track.max_new_tokens or 0,
            keyed=track.rng_key is not None,
        )


class Track:
    """The moments of one generation, by the tokens that were seen."""

    def __init__(
        self,
        pad_token_id: int | None,
        prompt_mask: Tensor | None,
        prompt_length: int | None,
        max_new_tokens: int | None,
        rng_key: Tensor | None,
        assisted: bool | None,
    ) -> None:
        self.pad_token_id = pad_token_id
        self.max_new_tokens = max_new_tokens
        self.rng_key = rng_key
        self._mask = prompt_mask
        self._prompt_length = prompt_length
        self._assisted = assisted
        self._moments: OrderedDict[int, tuple[Tensor, Moment]] = OrderedDict()

    def reset(self) -> None:
        """Forgets the generation."""
        self._moments.clear()

    def keep(self, ids: Tensor, moment: Moment) -> None:
        """Remembers what came of ids [B, L]; what came of longer ones is no more."""
        length = ids.shape[1]
        for later in [other for other in self._moments if other >= length]:
            del self._moments[later]
        self._moments[length] = (ids.clone(), moment)
        if len(self._moments) > KEPT:
            self._moments.popitem(last=False)

    def find(self, ids: Tensor, layout: Layout) -> Moment | None:
        """Returns the moment that ids [B, L] continue by one token, its rows in their order, if any."""
        if ids.shape[1] - 1 not in self._moments:
            return None
        seen, moment = self._moments[ids.shape[1] - 1]
        before = ids[:, :-1]
        if seen.device != before.device or len(moment.start) != layout.times * len(seen):
            return None
        if torch.equal(before, seen):
            return moment if self._may_go_back(ids.shape[1]) else None
        same = (before[:, None] == seen).all(dim=-1)  # [B, B before]
        if not bool(same.any(dim=1).all()) or not self._may_go_back(ids.shape[1]):
            return None
        return moment.select(layout.index(same.long().argmax(dim=1), len(seen)))

    def _may_go_back(self, length: int) -> bool:
        """Whether tokens that were seen before the last call are those of its generation."""
        if length > max(self._moments) or self._assisted:
            return True
        if self._assisted is None:
            raise ValueError(
                f"after {max(self._moments)} tokens these are {length}, and all but the last were seen "
                "on the way: assisted generation goes back like this (give assisted=True), or else "
                "this is the prompt of a new generation (call reset() before it, or give "
                "assisted=False)"
            )
        return False

    def begin(self, ids: Tensor, length: int, piece: Any, vocab_size: int) -> Moment:
        """Begins a generation whose prompt is the first `length` columns, or fewer."""
        self.reset()
        length = min(length, self._prompt_length or length)
        prompt = ids[:, :length]
        start = self._pads(prompt)
        key = purgen.random.key(0) if self.rng_key is None else self.rng_key
        if key.ndim == 1:
            key = purgen.random.split(key, len(ids))
        moment = Moment(
            state=None,
            start=start,
            prompt_length=torch.full_like(start, length),
            rng_key=key.to(ids.device),
            began=time.monotonic(),
        )
        view = moment.view(prompt, self, vocab_size)
        return dataclasses.replace(moment, state=piece.init(view))

    def _pads(self, prompt: Tensor) -> Tensor:
        """How many pads each row of a prompt [B, P] begins with, int64 [B]."""
        rows, columns = prompt.shape
        if self._mask is not None:
            mask = self._mask.to(prompt.device).bool()
            if mask.ndim != 2 or mask.shape[1] != columns or rows % len(mask):
                raise ValueError(
                    f"prompt_mask is {list(mask.shape)} and the prompt {[rows, columns]}: it must have "
                    "a row for each prompt and a column for each of its tokens"
                )
            real = mask.repeat_interleave(rows // len(mask), dim=0)
        elif self.pad_token_id is not None:
            real = prompt != self.pad_token_id
        else:
            return torch.zeros(rows, dtype=torch.int64, device=prompt.device)
        pads = (real.long().cumsum(dim=1) == 0).sum(dim=1)
        return pads.clamp(max=columns - 1)  # a row of nothing but pads has one token
