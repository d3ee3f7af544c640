"""Which tokens may follow which, as a graph in tables: its edges are tokens, a row stands in a state.

The tables hold each edge once (a state's edges lie side by side), so their size is that of the graph,
however large the vocabulary is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purgen.logits import forbid_nan

__all__ = ["DEAD", "END", "ROOT", "Edges", "follow", "keep_allowed", "merge_equal", "tables_of"]

DEAD, END, ROOT = 0, 1, 2  # nothing may follow; only eos; where a row begins

Edges = list[dict[int, int]]  # of each state: token -> state


def merge_equal(edges: Edges) -> Edges:
    """Joins the states after which the same may follow.

    Args:
        edges: a graph in which edges lead to later states, or to `DEAD` and `END`.

    Returns:
        The smallest graph that allows the same from `ROOT`.
    """
    known: dict[tuple[tuple[int, int], ...], int] = {(): DEAD}
    like = list(range(len(edges)))  # of each state: the one that stands for it
    for state in reversed(range(ROOT, len(edges))):
        signature = sorted((token, like[after]) for token, after in edges[state].items())
        like[state] = known.setdefault(tuple(signature), state)
    # What the root is like comes first; of the others only those are kept that stand for themselves.
    root = like[ROOT] if like[ROOT] != DEAD else ROOT
    kept = [DEAD, END, root]
    kept += [state for state in range(ROOT, len(edges)) if like[state] == state != root]
    number = {state: place for place, state in enumerate(kept)}
    return [{token: number[like[after]] for token, after in edges[old].items()} for old in kept]


def tables_of(graphs: Sequence[Edges]) -> dict[str, Tensor]:
    """Lays graphs out as tables, one graph a row.

    Args:
        graphs: R of them; shorter ones are filled up.

    Returns:
        "first" int64 [R, N + 1], where the edges of each state begin; "token" and "after" int64
        [R, M], the token of each edge and the state it leads to, a state's edges in the order of
        tokens; "edge" int64 [R, D], 0 … D - 1, as many as the widest state has edges.
    """
    first, token, after = [], [], []
    for edges in graphs:
        first.append([0])
        for leaving in edges:
            first[-1].append(first[-1][-1] + len(leaving))
        pairs = [pair for leaving in edges for pair in sorted(leaving.items())]
        token.append([pair[0] for pair in pairs])
        after.append([pair[1] for pair in pairs])
    widest = max(len(leaving) for edges in graphs for leaving in edges)
    return {
        "first": _table(first),
        "token": _table(token),
        "after": _table(after),
        "edge": torch.arange(max(widest, 1)).repeat(len(graphs), 1),
    }


def follow(tables: dict[str, Tensor], state: Tensor, token: Tensor) -> Tensor:
    """Moves each row along the edge of a token.

    Args:
        tables: as `tables_of` returns them, with B rows.
        state: int64 [B].
        token: int64 [B].

    Returns:
        int64 [B], `DEAD` where there is no such edge.
    """
    edge, exists = _edges_of(tables, state)
    leads = exists & (tables["token"].gather(1, edge) == token[:, None])
    return torch.where(leads, tables["after"].gather(1, edge), DEAD).amax(dim=1)


def keep_allowed(tables: dict[str, Tensor], state: Tensor, logits: Tensor) -> Tensor:
    """Gives -inf to every token that has no edge, and to NaN.

    Args:
        tables: as `tables_of` returns them, with B rows.
        state: int64 [B].
        logits: floating [B, V]; edges of tokens beyond them are passed over.

    Returns:
        The same shape and dtype as `logits`.
    """
    edge, exists = _edges_of(tables, state)
    token = tables["token"].gather(1, edge)
    exists = exists & (token < logits.shape[1])
    # Places without an edge write what the first edge writes; without any edge, -inf.
    token = torch.where(exists, token, token[:, :1].clamp(max=logits.shape[1] - 1))
    score = torch.where(exists[:, :1], forbid_nan(logits.gather(1, token)), -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(1, token, score)


def _edges_of(tables: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of a state's edges [B, D], and which of the D there are."""
    first = tables["first"].gather(1, state[:, None])
    behind = tables["first"].gather(1, state[:, None] + 1)
    edge = first + tables["edge"]
    return edge.clamp(max=tables["token"].shape[1] - 1), edge < behind


def _table(rows: list[list[Any]]) -> Tensor:
    width = max(1, *(len(row) for row in rows)) if rows else 1
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)
