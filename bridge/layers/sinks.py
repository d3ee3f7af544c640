"""The first tokens and the newest: streams without end in bounded memory.

A softmax wants somewhere to put weight that it has no use for, and models put it on the first tokens.
Kept besides a window, they let a model read on past any length. Positions are those within the cache:
a key that lies `S + W` tokens or more back moves along with the text. Xiao et al., "Efficient
Streaming Language Models with Attention Sinks", 2023, arXiv:2309.17453.

The first S real tokens of a row lie at the indices `0 … S - 1`, token `n` beyond at
`S + (n - S) % W`, pads at one more that nobody looks at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.layers.attention import AttentionSpec
from bridge.layers.base import Call, Entry, Keys, Layer
from purgen.pytree import where_rows

__all__ = ["Rotate", "SinkSpec"]

Rotate = Callable[[Tensor, Tensor], Tensor]  # keys [B, H, S, D], positions int64 [B] -> keys


@dataclasses.dataclass(frozen=True)
class SinkSpec:
    """What a layer keeps of the first tokens and of the newest.

    Attributes:
        attention: the layer.
        sinks: int, S, how many first tokens.
        recent: int, W, how many newest ones besides.
        rotate: moves keys on by a number of positions.
    """

    attention: AttentionSpec
    sinks: int
    recent: int
    rotate: Rotate

    slot_addressed = False
    rewind = 0

    @property
    def window(self) -> int | None:
        """None: what may be attended to is what is held."""
        return None

    @property
    def kind(self) -> str:
        """The kind of mask."""
        return self.attention.kind

    @property
    def block(self) -> int:
        """How many tokens may be fed at once to an empty cache; later, it is one."""
        return self.sinks + self.recent

    def empty(self, batch_size: int, max_length: int) -> Entry:
        """Returns `"k"` and `"v"` [B, H, S + W + 1, D], and `"count"` int64 [B] of tokens seen."""
        entry = self.attention.empty(batch_size, self.block + 1)
        count = torch.zeros(batch_size, dtype=torch.int64, device=self.attention.device)
        return {**entry, "count": count}

    def layer(self, entry: Entry, call: Call) -> Layer:
        """Returns the layer of one call (see `LayerSpec`)."""
        return _SinkLayer(entry, call, self)

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns what lies at each index once the tokens are written; the new ones in a prefill."""
        if call.first:
            return Keys(slots=call.slots, valid=call.valid[:, : call.width])
        newest = call.valid.sum(dim=1, keepdim=True) - 1  # rank of the newest real token, [B, 1]
        index = torch.arange(self.block + 1, device=newest.device)
        back = (newest - index) % self.recent
        rank = torch.where(index < self.sinks, index, newest - back)
        there = (rank <= newest) & (index < self.block)
        there = there & ((index < self.sinks) | (rank >= self.sinks))
        first = call.valid.to(torch.int64).argmax(dim=1, keepdim=True)  # a row has no holes
        return Keys(slots=first + rank.clamp(min=0), valid=there)

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns a copy: it does not grow."""
        return {name: leaf.clone() for name, leaf in entry.items()}

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns the old entry in rows that have not moved: a write overwrites what was held."""
        return where_rows(moves, after, before)

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B], how many tokens are held of those seen."""
        return entry["count"].clamp(max=self.block)

    def num_bytes(self, max_length: int) -> int:
        """Returns the bytes of a row, whatever its length."""
        return self.attention.num_bytes(self.block + 1) + torch.int64.itemsize


class _SinkLayer(Layer):
    def __init__(self, entry: Entry, call: Call, spec: SinkSpec) -> None:
        count = call.width if call.first else spec.block + 1
        super().__init__(0 if call.first else call.position, count, is_sliding=False)
        self.stored, self.call, self.spec = entry, call, spec

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values [B, H, q, D]; returns those held, the sinks moved along."""
        spec, call = self.spec, self.call
        real = call.valid.gather(1, call.slots)  # [B, q]
        before = (call.valid.cumsum(dim=1) - call.valid.to(torch.int64)).gather(1, call.slots)
        ring = spec.sinks + (before - spec.sinks) % spec.recent
        index = torch.where(before < spec.sinks, before, ring)
        index = torch.where(real, index, spec.block)
        rows = torch.arange(index.shape[0], device=index.device)[:, None]
        stored = {"count": self.stored["count"] + real.sum(dim=1)}
        for name, new in (("k", key_states), ("v", value_states)):
            stored[name] = torch.ops.aten.index_put(
                self.stored[name], [rows, None, index], new.transpose(1, 2)
            )
        self.stored = stored
        if call.first:
            return key_states, value_states
        moved = (stored["count"] - spec.block).clamp(min=0)  # [B]
        sinks = spec.rotate(stored["k"][:, :, : spec.sinks], moved)
        return torch.cat([sinks, stored["k"][:, :, spec.sinks :]], dim=2), stored["v"]

    def entry(self) -> Entry:
        """Returns the entry with the new tokens in it."""
        return self.stored
