"""`bridge.to_stop_rule`: stopping criteria of transformers as purgen's stop rules."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from transformers.generation import stopping_criteria

import purgen
from bridge.errors import Unsupported
from bridge.to_transform import nearest
from purgen import StopRule
from purgen.stop_rules.automaton import Rows, prefixes, rule_of

__all__ = ["to_stop_rule"]


def to_stop_rule(criteria: Any) -> StopRule:
    """Makes a pure stop rule of a stopping criterion of transformers.

    Settings are read off its attributes. They differ in this: each row stops by itself, and pads are
    no tokens; only new tokens count for a stop string, not the prompt; `MaxTimeCriteria` had begun its
    time when it was made, so what is left of it now is what a generation gets, and the loop reads the
    clock, once a step (see `purgen.max_time`).

    Args:
        criteria: a stopping criterion, or a list of them, such as a `StoppingCriteriaList`; lists
            within lists are allowed, and purgen's rules among them.

    Returns:
        A `StopRule`; of a list, their `purgen.any_of`.

    Raises:
        Unsupported: a class of your own or otherwise unknown; the message names the nearest factory.

    Example:
        >>> import bridge, transformers, purgen
        >>> criteria = transformers.StoppingCriteriaList(
        ...     [transformers.EosTokenCriteria(2), transformers.MaxLengthCriteria(3)]
        ... )
        >>> rule = bridge.to_stop_rule(criteria)
        >>> view = purgen.testing.example_view([[1, 2], [1, 3]], num_new_tokens=1)
        >>> rule.check(rule.init(view), view)[0]
        tensor([ True, False])
    """
    if isinstance(criteria, StopRule):
        return criteria
    if isinstance(criteria, list | tuple):
        return purgen.any_of(*[to_stop_rule(member) for member in criteria])
    made = getattr(criteria, "purgen_rule", None)
    if isinstance(made, StopRule):  # one of ours, on its way back
        return made
    kind = type(criteria)
    name = kind.__name__
    if kind is not getattr(stopping_criteria, name, None) or name not in TABLE:
        raise Unsupported(
            f"to_stop_rule: {name} is no stopping criterion that bridge knows; "
            f"{nearest(name, TABLE)}. A pure function of your own becomes a rule by "
            "purgen.StopRule(init, check)"
        )
    return TABLE[name][1](criteria)


def _max_time(criterion: Any) -> StopRule:
    spent = time.time() - criterion.initial_timestamp
    return purgen.max_time(max(criterion.max_time - spent, 0.0))


def _stop_strings(criterion: Any) -> StopRule:
    """Reads the automaton off the criterion's own table: it does not keep the tokenizer.

    `embedding_vec` [V + 1, …] holds for each token and string: where in the string the token may end
    (how many characters are left), and how many of its last characters the token may begin with; and
    the token's length. "Characters" are bytes where the tokenizer has a byte for each.
    """
    # Characters before transformers 5.20, bytes where it can since.
    strings = list(getattr(criterion, "_stop_strings_for_matching", criterion.stop_strings))
    table = criterion.embedding_vec.cpu().numpy()  # the last row is for ids outside
    length = table[:, -1]
    inside, ending = np.split(table[:, :-1], [criterion.max_valid_positions * len(strings)], axis=1)
    nodes = prefixes(strings)
    number = {node: index for index, node in enumerate(nodes)}
    best = np.zeros((len(table), len(nodes)), dtype=np.int32)  # the longest node reached
    fires = np.zeros((len(table), len(nodes)), dtype=bool)

    for which, string in enumerate(strings):
        # Node x stands for a text whose end is the beginning of `string` of these sizes.
        begun = np.array(
            [[node.endswith(string[:k]) for k in range(len(string))] for node in nodes]
        )
        ends, left = (
            part.reshape(len(table), len(strings), -1)[:, which] for part in (ending, inside)
        )
        for size in range(1, len(string) + 1):  # the token closes the string with `size` characters
            tokens = (ends == size).any(axis=1)
            fires[tokens] |= begun[:, len(string) - size]
        for size in range(1, len(string)):  # the token ends where `size` characters have come
            tokens = np.flatnonzero((left == len(string) - size).any(axis=1))
            before = np.clip(size - length[tokens], 0, None)  # characters that came before it
            reached = begun[:, before].T * np.int32(number[string[:size]])
            best[tokens] = np.maximum(best[tokens], reached)  # nodes are sorted by length
    rows = Rows()
    numbers = np.array([rows.number(row) for row in 2 * best + fires])
    return rule_of(rows.automaton(numbers))


TABLE: dict[str, tuple[str, Callable[[Any], StopRule]]] = {
    "ConfidenceCriteria": (
        "confidence",
        lambda c: purgen.confidence(c.assistant_confidence_threshold),
    ),
    "EosTokenCriteria": ("eos", lambda c: purgen.eos(c.eos_token_id)),
    "MaxLengthCriteria": ("max_length", lambda c: purgen.max_length(c.max_length)),
    "MaxTimeCriteria": ("max_time", _max_time),
    "StopStringCriteria": ("stop_strings", _stop_strings),
}
