"""States without slots: convolutions, linear attention and state space models.

Such a layer keeps a summary of all tokens fed so far. It cannot be rewound: who wants an earlier
state keeps it, which costs nothing, since a cache is a value. A pad must come before the first real
token of its row, where the state is still zero and stays so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin, LinearAttentionLayer

from bridge.layers.base import Call, Entry, Keys
from purgen.pytree import where_rows

__all__ = ["HybridSpec", "RecurrentSpec"]


@dataclasses.dataclass(frozen=True)
class RecurrentSpec:
    """What a layer keeps of all tokens together.

    Attributes:
        states: tuple of `(name, shape, dtype)` a state, with names "conv_0", "recurrent_0", …; the
            shape is that of one row.
        device: torch.device of all.
        kind: the kind of mask ("linear_attention" or "conv").
    """

    states: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    device: torch.device
    kind: str = "linear_attention"

    slot_addressed = False
    rewind = 0
    attention = None

    def empty(self, batch_size: int, max_length: int) -> Entry:
        """Returns a zero state of each name, [B, …]."""
        return {
            name: torch.zeros(batch_size, *shape, dtype=dtype, device=self.device)
            for name, shape, dtype in self.states
        }

    def layer(self, entry: Entry, call: Call) -> _RecurrentLayer:
        """Returns the layer of one call (see `LayerSpec`)."""
        return _RecurrentLayer(entry, call)

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns the tokens fed: a state is nothing that one attends to."""
        return Keys(slots=call.slots, valid=call.valid.gather(1, call.slots))

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns a copy: a state is as large as it is."""
        return {name: state.clone() for name, state in entry.items()}

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns the new state in rows where `moves` (bool [B]) holds, the old elsewhere."""
        return where_rows(moves, after, before)

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B]: a summary of all slots seen is held."""
        return seen

    def num_bytes(self, max_length: int) -> int:
        """Returns the bytes of a row, whatever its length."""
        return sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in self.states)


@dataclasses.dataclass(frozen=True)
class HybridSpec:
    """A layer with attention and a state side by side.

    Attributes:
        attention: what its attention keeps.
        recurrent: its states.
    """

    attention: Any
    recurrent: RecurrentSpec

    slot_addressed = False
    rewind = 0

    @property
    def kind(self) -> str:
        """The kind of mask of its attention; that of its states is known besides."""
        return self.attention.kind

    def empty(self, batch_size: int, max_length: int) -> Entry:
        """Returns the entries of both."""
        return {
            **self.attention.empty(batch_size, max_length),
            **self.recurrent.empty(batch_size, max_length),
        }

    def layer(self, entry: Entry, call: Call) -> _HybridLayer:
        """Returns the layer of one call (see `LayerSpec`)."""
        keys, states = self._split(entry)
        return _HybridLayer(states, call, self.attention.layer(keys, call))

    def keys(self, entry: Entry, call: Call) -> Keys:
        """Returns what lies where in the keys of the attention."""
        return self.attention.keys(self._split(entry)[0], call)

    def resized(self, entry: Entry, max_length: int) -> Entry:
        """Returns an entry for `max_length` slots with the same content."""
        keys, states = self._split(entry)
        return {
            **self.attention.resized(keys, max_length),
            **self.recurrent.resized(states, max_length),
        }

    def kept(self, moves: Tensor, after: Entry, before: Entry) -> Entry:
        """Returns `after`, with the old states in rows that have not moved."""
        keys, states = self._split(after)
        old_keys, old_states = self._split(before)
        return {
            **self.attention.kept(moves, keys, old_keys),
            **self.recurrent.kept(moves, states, old_states),
        }

    def held(self, entry: Entry, seen: Tensor) -> Tensor:
        """Returns int64 [B], the slots within reach of the attention."""
        return self.attention.held(entry, seen)

    def num_bytes(self, max_length: int) -> int:
        """Returns the bytes of a row of `max_length` slots."""
        return self.attention.num_bytes(max_length) + self.recurrent.num_bytes(max_length)

    def _split(self, entry: Entry) -> tuple[Entry, Entry]:
        states = {name: entry[name] for name, _, _ in self.recurrent.states}
        return {name: leaf for name, leaf in entry.items() if name not in states}, states


class _RecurrentLayer(LinearAttentionLayer):
    """Hands the forward copies of the states: the modules' own step writes them in place."""

    is_compileable = True

    def __init__(self, entry: Entry, call: Call) -> None:
        super().__init__()
        self.position = call.position
        # Every name that a version of transformers asks for: states by index, whether there are any.
        self.sizes = {}
        for name, state in entry.items():
            what, index = name.rsplit("_", 1)
            place = self.conv_states if what == "conv" else self.recurrent_states
            place[int(index)] = None if call.first else state + call.zero.to(state.dtype)
            if what == "conv":
                self.sizes[int(index)] = state.shape[-1]
        indices = sorted({int(name.rsplit("_", 1)[1]) for name in entry})
        self.number_of_states = len(indices)
        self.has_previous_state = dict.fromkeys(indices, not call.first)
        self.is_conv_states_initialized = dict.fromkeys(indices, True)
        self.is_recurrent_states_initialized = dict.fromkeys(indices, True)
        self.names = tuple(entry)

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing is left to do: a layer is made from existing states."""

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Takes new inputs of a convolution [B, C, q], returns them after those kept."""
        before, size = self.conv_states[state_idx], self.sizes[state_idx]
        if before is None:
            short = max(size - conv_states.shape[-1], 0)
            full = torch.nn.functional.pad(conv_states, (short, 0))
        else:
            full = torch.cat([before, conv_states], dim=-1)
        self.conv_states[state_idx] = full[..., full.shape[-1] - size :]
        return full

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Takes a new state and returns it."""
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    def get_seq_length(self) -> Any:
        """Returns how many slots were fed before this call."""
        return self.position

    def entry(self) -> Entry:
        """Returns the new states by name."""
        found = {}
        for name in self.names:
            what, index = name.rsplit("_", 1)
            place = self.conv_states if what == "conv" else self.recurrent_states
            found[name] = place[int(index)].contiguous()
        return found


class _HybridLayer(_RecurrentLayer):
    """Both at once: what concerns keys and values goes to a layer of attention."""

    def __init__(self, entry: Entry, call: Call, attention: Any) -> None:
        super().__init__(entry, call)
        self.attention = attention
        self.is_sliding = attention.is_sliding
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Takes new keys and values, returns all."""
        return self.attention.update(key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many slots are attended over, and the first of them."""
        return self.attention.get_mask_sizes(query_length)

    def get_seq_length(self) -> Any:
        """Returns how many slots were filled before this call."""
        return self.attention.get_seq_length()

    def entry(self) -> Entry:
        """Returns the keys and values and the new states."""
        return {**self.attention.entry(), **super().entry()}


def states_of(layer: LinearAttentionCacheLayerMixin) -> dict[str, Tensor]:
    """Returns the states that a transformers layer holds, by the names of a `RecurrentSpec`."""
    found = {}
    for what, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
        by_index = states if isinstance(states, dict) else {0: states}  # before 5.20: one a layer
        for index, state in by_index.items():
            if state is not None:
                found[f"{what}_{index}"] = state
    return found
