"""The contract of transforms and stop rules, as checks that anyone can run on their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from purgen.pytree import replace, select_rows
from purgen.stop_rules import StopRule
from purgen.testing.examples import Moment, example_history
from purgen.testing.laws import (
    CompileCounter,
    check_rows_first,
    check_same_structure,
    difference,
    no_global_randomness,
    require,
    stack_trees,
    unchanged,
    unstack_tree,
)
from purgen.transforms import LogitsTransform
from purgen.view import TokenView

__all__ = ["check_stop_rule", "check_transform"]


def check_transform(
    transform: LogitsTransform,
    *,
    vocab_size: int = 32,
    batch_size: int = 4,
    steps: int = 20,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    backend: str | None = "aot_eager",
    except_laws: Collection[str] = (),
) -> None:
    """Checks that a transform keeps the laws of purgen on random histories and logits.

    The laws: *pure* (inputs bitwise unchanged), *global randomness* (none drawn), *deterministic*,
    *structure* (shapes and dtypes kept, rows first), *total* (no NaN where none was, neighbours of a
    bad row untouched), *rows* (a row gets the same alone and permuted), *pads* (their number and
    content do not matter), *one graph* (`torch.compile(fullgraph=True)`, one compilation), *vmap* (as a
    loop).

    Args:
        transform: what to check.
        vocab_size: V.
        batch_size: B, at least 2; that of its settings where these are a number a row.
        steps: how many tokens are generated.
        seed: of histories and logits.
        dtype: of the logits.
        backend: of `torch.compile`; None leaves that law out.
        except_laws: "rows" for a transform that reads several rows as one thing (`purgen.guidance`):
            a row alone, and the neighbours of a bad row, are not looked at. No other law has
            exceptions.

    Raises:
        AssertionError: a law is broken; the message begins with its name.
        ValueError: `except_laws` holds something else.

    Example:
        >>> import purgen
        >>> purgen.testing.check_transform(purgen.temperature(0.7))
        >>> purgen.testing.check_transform(purgen.guidance(2.0), except_laws=["rows"])
    """
    if not isinstance(transform, LogitsTransform):
        raise TypeError(f"transform must be a LogitsTransform, not {type(transform).__name__}")
    if isinstance(except_laws, str) or not set(except_laws) <= {"rows"}:
        raise ValueError(f'except_laws may hold "rows" and nothing else, not {except_laws!r}')
    alone = "rows" not in except_laws
    history = example_history(
        vocab_size=vocab_size, batch_size=batch_size, steps=steps, seed=seed, dtype=dtype
    )

    def advance(piece_state: Any, moment: Moment) -> tuple[Tensor, Any]:
        return transform.apply(piece_state, moment.logits, moment.view)

    _check_piece(_Piece("apply", transform.init, advance), history, backend, alone=alone)
    _check_total(transform, history, alone=alone)


def check_stop_rule(
    rule: StopRule,
    *,
    vocab_size: int = 32,
    batch_size: int = 4,
    steps: int = 20,
    seed: int = 0,
    backend: str | None = "aot_eager",
) -> None:
    """Checks that a stop rule keeps the laws of purgen on random histories.

    The laws are those of `check_transform` that apply.

    Args:
        rule: what to check.
        vocab_size: V.
        batch_size: B, at least 2; that of its settings where these are a number a row.
        steps: how many tokens are generated.
        seed: of the histories.
        backend: of `torch.compile`; None leaves that law out.

    Raises:
        AssertionError: a law is broken; the message begins with its name.

    Example:
        >>> import purgen
        >>> purgen.testing.check_stop_rule(purgen.eos([2, 3]))
    """
    if not isinstance(rule, StopRule):
        raise TypeError(f"rule must be a StopRule, not {type(rule).__name__}")
    history = example_history(vocab_size=vocab_size, batch_size=batch_size, steps=steps, seed=seed)

    def advance(piece_state: Any, moment: Moment) -> tuple[Tensor, Any]:
        return rule.check(piece_state, moment.view)

    _check_piece(_Piece("check", rule.init, advance), history, backend)


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A transform or stop rule as one kind of thing."""

    name: str
    init: Callable[[TokenView], Any]
    advance: Callable[[Any, Moment], tuple[Tensor, Any]]

    def run(self, history: list[Moment], begin: Any = None) -> list[Tensor]:
        """The outputs over a history, whose first moment is the prompt."""
        piece_state = self.init(history[0].view) if begin is None else begin
        outputs = []
        for moment in history:
            output, piece_state = self.advance(piece_state, moment)
            outputs.append(output)
        return outputs


def _check_piece(
    piece: _Piece, history: list[Moment], backend: str | None, *, alone: bool = True
) -> None:
    batch_size = len(history[0].logits)
    context = history[0].view
    with unchanged("pure", context=context), no_global_randomness("global randomness"):
        piece_state = piece.init(context)
    check_rows_first(piece_state, batch_size, "structure", "state")
    no_stop = torch.zeros(batch_size, dtype=torch.bool)
    for moment in history:
        inputs = unchanged("pure", state=piece_state, moment=moment)
        with inputs, no_global_randomness("global randomness"):
            output, after = piece.advance(piece_state, moment)
        again = piece.advance(piece_state, moment)
        found = difference((output, after), again)
        require(found is None, "deterministic", f"{piece.name} gave two results: {found}")
        like, name = (moment.logits, "logits") if piece.name == "apply" else (no_stop, "stop")
        check_same_structure(like, output, "structure", name)
        check_same_structure(piece_state, after, "structure", "state")
        piece_state = after
    if alone:
        _check_rows(piece, history)
    _check_pads(piece, history)
    if backend is not None:
        _check_compiled(piece, history, backend)
    _check_vmap(piece, history)


def _check_rows(piece: _Piece, history: list[Moment]) -> None:
    whole = piece.run(history)
    batch_size = len(history[0].logits)
    begin = piece.init(history[0].view)
    for index in [*torch.arange(batch_size)[:, None], torch.arange(batch_size).roll(1)]:
        which = f"row {int(index[0])} alone" if len(index) == 1 else "permuted rows"
        rows = [select_rows(moment, index) for moment in history]
        starts = [select_rows(begin, index)]
        if not _has_row_settings(piece, history[0].view):
            starts.append(piece.init(rows[0].view))
        for start in starts:
            try:
                outputs = piece.run(rows, start)
            except Exception as error:  # it ran on the whole batch
                raise AssertionError(f"rows: {which} does not run: {error}") from error
            found = difference([select_rows(output, index) for output in whole], outputs)
            require(found is None, "rows", f"{which} got another result: {found}")


def _has_row_settings(piece: _Piece, context: TokenView) -> bool:
    """Whether the piece has settings with a number a row, and so fits one batch size only."""
    try:
        piece.init(select_rows(context, torch.tensor([0])))
    except ValueError:
        return True
    return False


def _check_pads(piece: _Piece, history: list[Moment]) -> None:
    whole = piece.run(history)
    for more, pad in ((0, 1), (0, history[0].logits.shape[-1] - 1), (3, 0), (5, 2)):
        padded = [replace(moment, view=_repad(moment.view, more, pad)) for moment in history]
        found = difference(whole, piece.run(padded))
        text = f"{more} more left pads, with pad id {pad}, changed the result: {found}"
        require(found is None, "pads", text)


def _repad(view: TokenView, more: int, pad: int) -> TokenView:
    slot = torch.arange(view.tokens.shape[1])
    real = (slot >= view.start[:, None]) & (slot < view.length[:, None])
    tokens = torch.where(real, view.tokens, pad)
    return replace(
        view,
        tokens=torch.nn.functional.pad(tokens, (more, 0), value=pad),
        start=view.start + more,
        length=view.length + more,
        prompt_length=view.prompt_length + more,
    )


def _check_compiled(piece: _Piece, history: list[Moment], backend: str) -> None:
    compiled = CompileCounter(piece.advance, backend)
    try:
        outputs = dataclasses.replace(piece, advance=compiled).run(history)
    except Exception as error:  # it ran eagerly, so whatever this is comes of compiling
        raise AssertionError(f"one graph: {piece.name} does not trace: {error}") from error
    require(
        compiled.graphs <= 1,  # none where a piece does nothing
        "one graph",
        f"{piece.name} compiled {compiled.graphs} times over {len(history)} steps",
    )
    found = difference(piece.run(history), outputs, tolerance=1e-5)
    require(found is None, "one graph", f"compiled {piece.name} gave another result: {found}")


def _check_vmap(piece: _Piece, history: list[Moment]) -> None:
    flipped = [select_rows(moment, torch.arange(len(moment.logits)).flip(0)) for moment in history]
    states = [piece.init(history[0].view), piece.init(flipped[0].view)]
    together = stack_trees(*states)
    vmapped = torch.func.vmap(piece.advance)
    for moments in zip(history, flipped, strict=True):
        try:
            outputs, together = vmapped(together, stack_trees(*moments))
        except Exception as error:  # it ran without vmap
            raise AssertionError(f"vmap: {piece.name} does not run under vmap: {error}") from error
        for lane in (0, 1):
            expected, states[lane] = piece.advance(states[lane], moments[lane])
            found = difference(expected, unstack_tree(outputs, lane), tolerance=1e-6)
            require(found is None, "vmap", f"{piece.name} under vmap gave another result: {found}")


def _check_total(transform: LogitsTransform, history: list[Moment], *, alone: bool) -> None:
    moment = history[-1]
    state = transform.init(history[0].view)
    clean, _ = transform.apply(state, moment.logits, moment.view)
    some = torch.where(torch.arange(moment.logits.shape[-1]) % 3 == 0, torch.inf, moment.logits[0])
    bad_rows = {
        "-inf": torch.full_like(moment.logits[0], -torch.inf),
        "+inf": torch.full_like(moment.logits[0], torch.inf),
        "some +inf": some.to(moment.logits.dtype),
        "NaN": torch.full_like(moment.logits[0], torch.nan),
    }
    for name, row in bad_rows.items():
        logits = torch.cat([row[None], moment.logits[1:]])
        output, _ = transform.apply(state, logits, moment.view)
        require(
            name == "NaN" or not bool(output.isnan().any()),
            "total",
            f"a row of {name} logits became NaN",
        )
        found = difference(clean[1:], output[1:]) if alone else None
        require(found is None, "total", f"a row of {name} logits changed its neighbours: {found}")
