"""Prefix-allowed tokens: after each prefix, only certain tokens may follow.

De Cao, Izacard, Riedel and Petroni, "Autoregressive entity retrieval", ICLR 2021, arXiv:2010.00904,
section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.prefixes import (
    AllowedFunction,
    ask,
    lists_of_sequences,
    tabulate,
    tries,
)
from purgen.transforms.sequences import check_sequences
from purgen.transforms.token_graph import ROOT, follow, keep_allowed, merge_equal, tables_of
from purgen.view import TokenView

__all__ = ["prefix_allowed_tokens"]

OWNER = "prefix_allowed_tokens"


def prefix_allowed_tokens(
    sequences: Sequence[Any] | None = None,
    *,
    eos_token_id: int | Iterable[int] | Tensor,
    function: AllowedFunction | None = None,
    eager: bool = False,
    max_states: int = 100_000,
) -> LogitsTransform:
    """Forbids every token but those that may follow the new tokens of a row.

    What may follow is given by the allowed continuations of the prompt, or by a function. Either is
    made a graph whose edges are tokens, and each row stands in one of its states: a step costs as much
    as the widest state has edges. After a complete continuation only eos is left; where it also begins
    a longer one, both are. Where nothing may follow, or nothing of it has a logit above -inf, the row
    stops with `NO_TOKEN`. (transformers chooses a forbidden token then.)

    A row reads the tokens that were chosen under this transform: `purgen.when` lets it begin in the
    middle of a text, at the first step at which its condition holds.

    Args:
        sequences: `[[id, …], …]`, the allowed continuations of every row; or such a list for each row,
            `[[[id, …], …], …]`. A closing eos is implied.
        eos_token_id: an id or several.
        function: `function(row, input_ids) -> ids`, `prefix_allowed_tokens_fn` of transformers: the
            tokens that may follow `input_ids` int64 [L], the prompt (without pads) and new tokens. It
            is called when a generation begins, for every prefix that it allows itself; it alone says
            whether eos may follow. After eos it is not asked.
        eager: calls the function in each step, for the prefix that is there. Neither compiled nor
            under vmap.
        max_states: how many prefixes a row may have that the function is called for in advance.

    Returns:
        A `LogitsTransform`. Equal to `PrefixConstrainedLogitsProcessor` where an allowed token has a
        logit above -inf.

    Raises:
        TypeError: an id is no integer.
        ValueError: not one of `sequences` and `function`; no sequence, an empty one, eos within one,
            an id outside the vocabulary, lists for another number of rows; more than `max_states`
            prefixes.
        RuntimeError: a step with `eager=True` is compiled or under vmap.
        Exception: what the function raises, with a note of what it was called with.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.prefix_allowed_tokens([[1, 2], [1, 3], [4]], eos_token_id=0)
        >>> view = purgen.testing.example_view([[5]], vocab_size=6)
        >>> transform.apply(transform.init(view), torch.zeros(1, 6), view)[0]
        tensor([[-inf, 0., -inf, -inf, 0., -inf]])
    """
    ends = token_ids(OWNER, "eos_token_id", eos_token_id).tolist()
    if (sequences is None) == (function is None):
        raise ValueError(f"{OWNER}: give either sequences or function")
    if sequences is not None:
        if eager:
            raise ValueError(f"{OWNER}: eager=True is for a function; sequences need no calls")
        return _of_sequences(sequences, ends)
    if function is None or not callable(function):
        raise TypeError(f"{OWNER}: function must be a function, not {type(function).__name__}")
    if not isinstance(max_states, int) or isinstance(max_states, bool) or max_states < 1:
        raise ValueError(f"{OWNER}: max_states must be an int of at least 1, not {max_states!r}")
    return _called_each_step(function, ends) if eager else _tabulated(function, ends, max_states)


def _of_sequences(sequences: Sequence[Any], ends: list[int]) -> LogitsTransform:
    per_row, lists = lists_of_sequences(sequences)
    edges, first = tries(lists, ends)
    roots, tables = torch.tensor(first), tables_of([edges])

    def init(context: TokenView) -> dict[str, Tensor]:
        for members in lists:
            check_sequences(OWNER, "sequences", members, context)
        check_vocabulary(OWNER, "eos_token_id", torch.tensor(ends), context)
        rows = len(context.start)
        if per_row and len(roots) != rows:
            raise ValueError(
                f"{OWNER}: sequences has {len(roots)} lists, one a row, and the batch has {rows} rows"
            )
        begin = _begin(context, roots.to(context.start.device).expand(rows).clone())
        return _read_on(shared_by(rows, context.start.device), begin, context)

    def shared_by(rows: int, device: torch.device) -> dict[str, Tensor]:
        return {name: table.to(device).expand(rows, -1) for name, table in tables.items()}

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return _step(shared_by(len(logits), logits.device), tstate, logits, view)

    return LogitsTransform(init, apply)


def _tabulated(function: AllowedFunction, ends: list[int], max_states: int) -> LogitsTransform:
    def init(context: TokenView) -> dict[str, Tensor]:
        if not is_concrete(context.tokens, context.start, context.length):
            raise ValueError(
                f"{OWNER}: function cannot be called in advance for a prompt that is being traced or "
                "vmapped; give sequences, or begin the generation outside"
            )
        graphs = [
            merge_equal(tabulate(function, ends, max_states, context, row))
            for row in range(len(context.start))
        ]
        tables = {name: table.to(context.start.device) for name, table in tables_of(graphs).items()}
        return {**_begin(context, torch.full_like(context.start, ROOT)), **tables}

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return _step(tstate, tstate, logits, view)

    return LogitsTransform(init, apply)


def _called_each_step(function: AllowedFunction, ends: list[int]) -> LogitsTransform:
    def init(context: TokenView) -> Tensor:
        return torch.arange(len(context.start), device=context.start.device)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        if not is_concrete(logits, view.tokens, view.start, view.length, tstate):
            raise RuntimeError(
                f"{OWNER}: eager=True calls a Python function in each step, which can be neither "
                'compiled nor vmapped; use loop="eager", or leave out eager=True'
            )
        kept = torch.full_like(logits, -torch.inf)
        bounds = zip(
            tstate.tolist(),
            view.start.tolist(),
            view.prompt_length.tolist(),
            view.length.tolist(),
            strict=True,
        )
        for place, (row, start, prompt_length, length) in enumerate(bounds):
            ids = view.tokens[place, start:length]
            over = length > prompt_length and int(ids[-1]) in ends
            allowed = ends if over else ask(function, row, ids, logits.shape[1])
            kept[place, allowed] = forbid_nan(logits[place, allowed])
        return kept, tstate

    return LogitsTransform(init, apply)


def _begin(context: TokenView, root: Tensor) -> dict[str, Tensor]:
    return {"state": root, "read": torch.full_like(context.start, -1)}


def _read_on(
    tables: dict[str, Tensor], tstate: dict[str, Tensor], context: TokenView
) -> dict[str, Tensor]:
    """Reads the new tokens of a generation that is under way already, where there are any."""
    state, count = tstate["state"], context.num_new_tokens
    for place in range(int(count.max()) if is_concrete(count) else 0):
        slot = (context.prompt_length + place).clamp(max=context.tokens.shape[1] - 1)
        token = context.tokens.gather(1, slot[:, None])[:, 0]
        state = torch.where(place < count, follow(tables, state, token), state)
    return {"state": state, "read": torch.where(count > 0, count, tstate["read"])}


def _step(
    tables: dict[str, Tensor], tstate: dict[str, Tensor], logits: Tensor, view: TokenView
) -> tuple[Tensor, dict[str, Tensor]]:
    """Reads the token that was chosen after the last call, if there was one; keeps what may follow."""
    state, read = tstate["state"], tstate["read"]
    slot = (view.prompt_length + read).clamp(0, view.tokens.shape[1] - 1)
    chosen = view.tokens.gather(1, slot[:, None])[:, 0]
    news = (read >= 0) & (view.num_new_tokens > read)
    state = torch.where(news, follow(tables, state, chosen), state)
    after = {**tstate, "state": state, "read": view.num_new_tokens.clone()}
    return keep_allowed(tables, state, logits), after
