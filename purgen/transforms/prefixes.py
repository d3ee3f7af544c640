"""Graphs of allowed tokens, made of sequences or of a function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from purgen.settings import token_ids
from purgen.transforms.sequences import is_id, sequence_of_ids
from purgen.transforms.token_graph import DEAD, END, Edges
from purgen.view import TokenView

__all__ = ["AllowedFunction", "ask", "lists_of_sequences", "tabulate", "tries"]

OWNER = "prefix_allowed_tokens"
NAME = "sequences"
AllowedFunction = Callable[[int, Tensor], Iterable[int]]


def lists_of_sequences(sequences: Sequence[Any]) -> tuple[bool, list[list[tuple[int, ...]]]]:
    """Checks allowed sequences at the place where they are given.

    Args:
        sequences: `[[id, …], …]`, or such a list for each row.

    Returns:
        Whether there is a list a row; the lists, else the one list.

    Raises:
        TypeError: something else than integers.
        ValueError: no sequence, an empty one, a negative id.
    """
    given = sequences.tolist() if isinstance(sequences, Tensor) else list(sequences)
    per_row = all(
        isinstance(members, list | tuple) and not any(is_id(item) for item in members)
        for members in given
    )
    lists = given if per_row and any(given) else [given]
    if not all(lists):
        raise ValueError(f"{OWNER}: {NAME} holds no sequence; a row could not even end")
    checked = [[sequence_of_ids(OWNER, NAME, path) for path in members] for members in lists]
    return lists is given, checked


def tries(lists: list[list[tuple[int, ...]]], ends: list[int]) -> tuple[Edges, list[int]]:
    """Makes a trie of each list, all in one graph.

    Args:
        lists: sequences; a closing eos id is implied.
        ends: the eos ids.

    Returns:
        The graph and the root of each list.

    Raises:
        ValueError: an eos id before the end of a sequence.
    """
    edges: Edges = [{}, dict.fromkeys(ends, END)]
    roots = []
    for members in lists:
        roots.append(len(edges))
        edges.append({})
        for sequence in members:
            path = sequence[:-1] if sequence[-1] in ends else sequence
            if set(path) & set(ends):
                raise ValueError(
                    f"{OWNER}: {NAME} holds {list(sequence)}, with an eos id before its end, where a "
                    "row stops"
                )
            state = roots[-1]
            for token in path:
                if token not in edges[state]:
                    edges[state][token] = len(edges)
                    edges.append({})
                state = edges[state][token]
            edges[state].update(dict.fromkeys(ends, END))
    return edges, roots


def tabulate(
    function: AllowedFunction, ends: list[int], max_states: int, context: TokenView, row: int
) -> Edges:
    """Calls a function for every prefix that it allows, shortest first.

    Args:
        function: `function(row, input_ids) -> ids`.
        ends: the eos ids, after which it is not asked.
        max_states: how many prefixes are too many, less one.
        context: the view a generation begins with.
        row: which of its rows.

    Returns:
        The graph, from `ROOT` on; its last tokens lead to `DEAD`, since nothing is chosen after them.

    Raises:
        ValueError: more prefixes, or an id outside the vocabulary.
        Exception: what the function raises, with a note.
    """
    prompt = context.tokens[row, int(context.start[row]) : int(context.length[row])]
    edges: Edges = [{}, dict.fromkeys(ends, END), {}]
    prefixes: list[tuple[int, ...]] = [()]  # of the last states of the graph
    total = 1
    for left in reversed(range(context.max_new_tokens)):
        first, longer = len(edges) - len(prefixes), []
        for state, prefix in enumerate(prefixes, start=first):
            ids = torch.cat([prompt, prompt.new_tensor(prefix)])
            allowed = ask(function, row, ids, context.vocab_size)
            total += len(allowed)
            if total > max_states:
                raise ValueError(
                    f"{OWNER}: function allows more than max_states = {max_states} prefixes within "
                    f"max_new_tokens = {context.max_new_tokens} in row {row}, too many to call it in "
                    'advance for each. Pass eager=True and use loop="eager"; or give sequences, or '
                    "raise max_states"
                )
            for token in allowed:
                edges[state][token] = END if token in ends else DEAD
                if left and token not in ends:
                    edges[state][token] = len(edges)
                    edges.append({})
                    longer.append((*prefix, token))
        prefixes = longer
    return edges


def ask(function: AllowedFunction, row: int, ids: Tensor, vocab_size: int) -> list[int]:
    """Calls a function and checks what it returns.

    Args:
        function: `function(row, input_ids) -> ids`.
        row: the row's number.
        ids: int64 [L], the prompt and new tokens.
        vocab_size: V, or 0 where it is not known.

    Returns:
        The ids, sorted, each once.

    Raises:
        ValueError: an id outside the vocabulary.
        Exception: what the function raises, with a note of what it was called with.
    """
    try:
        allowed = [operator.index(token) for token in function(row, ids.clone())]
    except Exception as error:
        error.add_note(
            f"purgen.{OWNER}: function was called with row {row} and input_ids {ids.tolist()}. It is "
            "called in advance, for every prefix that it allows; with eager=True only for those that "
            "are generated."
        )
        raise
    checked = token_ids(OWNER, "what function returns", allowed, empty=True).tolist()
    if vocab_size and checked and checked[-1] >= vocab_size:
        raise ValueError(
            f"{OWNER}: function returns {checked[-1]}, outside the vocabulary [0, {vocab_size})"
        )
    return checked
