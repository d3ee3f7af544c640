"""Search for several strings at once in a text that comes token by token.

The automaton of Aho and Corasick ("Efficient string matching: an aid to bibliographic search", CACM
18(6), 1975) reads bytes; composed with the bytes of each token it reads tokens, in one look-up each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.state import StopReason
from purgen.stop_rules.base import StopRule
from purgen.view import TokenView, last_token

__all__ = ["Rows", "TokenAutomaton", "over_vocabulary", "prefixes", "rule_of"]


@dataclasses.dataclass(frozen=True)
class TokenAutomaton:
    """What each token does to the search: S nodes, V tokens of C kinds.

    A node stands for how much of the strings the text ends with; node 0 for nothing.

    Attributes:
        kind: int64 [V + 1], tokens of one kind do the same at every node; the last entry is for any
            id from V on.
        move: int32 [S, C], twice the next node, plus 1 where a string ends within the token.
    """

    kind: Tensor  # int64 [V + 1]
    move: Tensor  # int32 [S, C]


def prefixes(strings: Sequence[Any]) -> list[Any]:
    """Returns what the nodes stand for: every prefix of the strings once, shortest first."""
    found = {string[:size]: None for string in strings for size in range(len(string) + 1)}
    return sorted(found, key=len)


def over_vocabulary(strings: Sequence[bytes], vocabulary: Sequence[bytes]) -> TokenAutomaton:
    """Composes the automaton of some strings with the bytes of tokens.

    What a text does to the search is a row: where it leads from each node. Few different rows come
    up, so tokens are read together, place by place, and each new row is worked out once.

    Args:
        strings: at least one, none empty.
        vocabulary: the bytes of each token; an empty one has no text and moves nothing, like an id
            outside.

    Returns:
        A `TokenAutomaton`.
    """
    step, ends = _byte_automaton(strings)
    step = 2 * step + ends[step]
    tokens = [*vocabulary, b""]
    size = np.fromiter((len(token) for token in tokens), dtype=np.int64, count=len(tokens))
    order = np.argsort(-size, kind="stable")  # longest first: at each place, those that reach it
    text = np.frombuffer(b"".join([tokens[index] for index in order]), dtype=np.uint8)
    text = _alike(strings)[text]
    first = np.cumsum(size[order]) - size[order]
    rows = Rows()
    kind = np.full(len(tokens), rows.number(2 * np.arange(len(step), dtype=np.int32)))
    for place in range(int(size.max())):
        count = int((size > place).sum())
        pairs = kind[:count] * 256 + text[first[:count] + place]
        pairs, inverse = np.unique(pairs, return_inverse=True)
        before = rows.take(pairs // 256)
        after = step[before // 2, (pairs % 256)[:, None]] | (before & 1)
        kind[:count] = np.array([rows.number(row) for row in after])[inverse.reshape(-1)]
    in_order = np.empty_like(kind)
    in_order[order] = kind
    return rows.automaton(in_order)


class Rows:
    """Moves that tokens make, each kept once: builds the table of a `TokenAutomaton`."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._rows: list[np.ndarray[Any, Any]] = []

    def number(self, row: np.ndarray[Any, Any]) -> int:
        """Returns the number of a row, int32 [S]."""
        number = self._numbers.setdefault(row.tobytes(), len(self._rows))
        if number == len(self._rows):
            self._rows.append(row)
        return number

    def take(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns rows by number, int32 [n, S]."""
        return np.stack([self._rows[number] for number in numbers])

    def automaton(self, numbers: np.ndarray[Any, Any]) -> TokenAutomaton:
        """Returns the automaton in which each token makes the move of a number, int64 [V + 1]."""
        used, kind = np.unique(numbers, return_inverse=True)
        return TokenAutomaton(
            kind=torch.from_numpy(kind.reshape(-1).astype(np.int64)),
            move=torch.from_numpy(np.ascontiguousarray(self.take(used).T)),
        )


def rule_of(automaton: TokenAutomaton) -> StopRule:
    """Makes the rule that reads the new tokens of each row and stops it where a string ends.

    Args:
        automaton: what the tokens do.

    Returns:
        A `StopRule` with `StopReason.STOP_STRING`. A token for which it was not asked (see `when`)
        cuts the text: the search begins anew behind it.
    """
    # Copies of two constants by device, made when a generation begins.
    tables = {torch.device("cpu"): automaton}

    def on(device: torch.device) -> TokenAutomaton:
        if device in tables:
            return tables[device]
        return TokenAutomaton(automaton.kind.to(device), automaton.move.to(device))

    def init(context: TokenView) -> dict[str, Tensor]:
        device = context.tokens.device
        tables[device] = on(device)
        move = torch.zeros_like(context.length)
        count = context.num_new_tokens
        # A generation that is under way already has new tokens.
        for place in range(int(count.max()) if is_concrete(count) else 0):
            slot = (context.prompt_length + place).clamp(max=context.tokens.shape[1] - 1)
            token = context.tokens.gather(1, slot[:, None])[:, 0]
            move = torch.where(place < count, read(move // 2, token), move)
        return {"node": move // 2, "count": count.clone(), "fires": move % 2 == 1}

    def read(node: Tensor, token: Tensor) -> Tensor:
        """Twice the next node [B], plus 1 where a string ends within the token."""
        table = on(token.device)
        return table.move[node, table.kind[token.clamp(0, len(table.kind) - 1)]].long()

    def check(sstate: dict[str, Tensor], view: TokenView) -> tuple[Tensor, dict[str, Tensor]]:
        count = view.num_new_tokens
        node = torch.where(count == sstate["count"] + 1, sstate["node"], 0)
        move = torch.where(count > 0, read(node, last_token(view)), 0)
        known = count == sstate["count"]  # nothing new
        fires = torch.where(known, sstate["fires"], move % 2 == 1)
        node = torch.where(known, sstate["node"], move // 2)
        return fires, {"node": node, "count": count.clone(), "fires": fires.clone()}

    return StopRule(init, check, code=StopReason.STOP_STRING)


def _byte_automaton(
    strings: Sequence[bytes],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the next node int32 [S, 256], and bool [S]: whether a string ends at the node."""
    nodes = prefixes(strings)
    number = {node: index for index, node in enumerate(nodes)}
    children: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes[1:], start=1):
        children[number[node[:-1]]].append(index)
    step = np.zeros((len(nodes), 256), dtype=np.int32)
    ends = np.array([node in set(strings) for node in nodes])
    shorter = [0] * len(nodes)  # the longest other node that a node ends with
    for index in range(len(nodes)):  # shortest first, so that what a row is copied from is complete
        step[index] = step[shorter[index]]
        ends[index] |= ends[shorter[index]]
        for child in children[index]:
            byte = nodes[child][-1]
            shorter[child] = int(step[index, byte])
            step[index, byte] = child
    return step, ends


def _alike(strings: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """Returns uint8 [256], in which all bytes that no string holds are one."""
    byte = np.arange(256, dtype=np.uint8)
    foreign = ~np.isin(byte, np.frombuffer(b"".join(strings), dtype=np.uint8))
    byte[foreign] = byte[foreign][:1]
    return byte
