"""The contract of decoders, as a check that anyone can run on their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor

from purgen import random
from purgen.buckets import Buckets
from purgen.cache import Cache
from purgen.decoder import Decoder, GenerationOutput
from purgen.loop import generate, resume
from purgen.prompt import Prompt
from purgen.pytree import select_rows, where_rows
from purgen.state import GenerationState
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

__all__ = ["check_decoder"]


@torch.no_grad()
def check_decoder(
    decoder: Decoder,
    params: Any,
    prompt: Prompt,
    *,
    rng_key: Tensor | None = None,
    max_new_tokens: int = 20,
    backend: str | None = "aot_eager",
    tolerance: float = 1e-4,
) -> None:
    """Checks that a decoder keeps the laws of purgen.

    The laws: *pure* (state, params, prompt and key bitwise unchanged), *global randomness* (none
    drawn), *deterministic*, *structure* (shapes and dtypes kept over all steps, rows first), *frozen*
    (a row that stopped does not change), *budget*, *rows* (the same tokens alone and permuted), *pads*
    (left, right, more of them, another pad id), *one graph* (`torch.compile(fullgraph=True)`, one
    compilation over all steps, the same tokens), *loops* (`generate` gives what stepping by hand
    gives, in a loop that writes its buffers in place and in one that is one program), *vmap* (over
    states at different positions, as a loop). A decoder over several rows a prompt (beams) is checked
    row by row of its output.

    Args:
        decoder: what to check.
        params: its parameters.
        prompt: at least two prompts, of different lengths.
        rng_key: int64 [2], where the strategy draws.
        max_new_tokens: the budget.
        backend: of `torch.compile`; None leaves out what compiles.
        tolerance: for floating leaves that two programs compute in another order.

    Raises:
        AssertionError: a law is broken; the message begins with its name.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model(eos_token_id=3)
        >>> prompt = purgen.Prompt.from_lists([[1, 2], [4, 5, 6]], pad_token_id=0)
        >>> purgen.testing.check_decoder(purgen.greedy(model), model.params, prompt)
    """
    run = _Run(decoder, params, prompt, rng_key, max_new_tokens)
    states = _check_steps(run)
    whole = run.generate()
    require(
        bool((whole.num_new_tokens <= max_new_tokens).all()),
        "budget",
        f"{int(whole.num_new_tokens.max())} new tokens of at most {max_new_tokens}",
    )
    found = difference(whole.new_tokens, run.generate().new_tokens)
    require(found is None, "deterministic", f"two runs gave other tokens: {found}")
    by_hand = run.decoder.finish(states[-1])
    _require_same_tokens(
        by_hand, whole, _rows(whole), "loops", "generate, against stepping by hand"
    )
    _check_rows(run, whole)
    _check_pads(run, whole)
    if backend is not None:
        _check_compiled(run, states, backend, tolerance)
        _check_while(run, whole, backend)
    _check_vmap(run, states, tolerance)


@dataclasses.dataclass(frozen=True)
class _Run:
    """A generation that can be had again with something changed."""

    decoder: Decoder
    params: Any
    prompt: Prompt
    rng_key: Tensor | None
    max_new_tokens: int

    def init(self) -> GenerationState:
        return self.decoder.init(
            self.params, self.prompt, rng_key=self.rng_key, max_new_tokens=self.max_new_tokens
        )

    def generate(self, **options: Any) -> GenerationOutput:
        return generate(
            self.decoder,
            self.params,
            self.prompt,
            rng_key=self.rng_key,
            max_new_tokens=self.max_new_tokens,
            **options,
        )


def _check_steps(run: _Run) -> list[GenerationState]:
    """Walks through a generation and returns its states, the first before any step."""
    inputs = {"params": run.params, "prompt": run.prompt, "rng_key": run.rng_key}
    with unchanged("pure", **inputs), no_global_randomness("global randomness"):
        state = run.init()
    batch_size = len(state.tokens)
    check_rows_first(state, batch_size, "structure", "state")
    states = [state]
    while not bool(state.stopped.all()):
        require(len(states) <= run.max_new_tokens, "budget", "rows run on after their budget")
        untouched = unchanged("pure", state=state, params=run.params)
        with untouched, no_global_randomness("global randomness"):
            after, info = run.decoder.step(run.params, state)
        again, _ = run.decoder.step(run.params, state)
        found = difference(after, again)
        require(found is None, "deterministic", f"two steps from one state differ: {found}")
        check_same_structure(state, after, "structure", "state")
        check_rows_first(info, batch_size, "structure", "info")
        _check_frozen(state, after)
        state = after
        states.append(state)
    return states


def _check_frozen(before: GenerationState, after: GenerationState) -> None:
    def visible(state: GenerationState) -> Any:
        """What must not change: everything but what a cache holds at and beyond its position."""
        names = (
            "tokens",
            "start",
            "length",
            "stopped",
            "stop_reason",
            "rng_key",
            "transform",
            "stop",
        )
        fields = {name: getattr(state, name) for name in (*names, "extra", "cache_position")}
        return torch_pytree.tree_map(
            lambda value: value.cache_position if isinstance(value, Cache) else value,
            fields,
            is_leaf=lambda value: isinstance(value, Cache),
        )

    stopped = before.stopped
    found = difference(visible(before), where_rows(stopped, visible(after), visible(before)))
    require(found is None, "frozen", f"a row that had stopped changed: {found}")


def _check_rows(run: _Run, whole: GenerationOutput) -> None:
    batch_size = len(run.prompt.tokens)
    copies = len(whole.new_tokens) // batch_size  # sequences returned for each prompt
    keys = _row_keys(run.rng_key, batch_size)
    whole_state = run.init()
    row_settings = False
    for index in [*torch.arange(batch_size)[:, None], torch.arange(batch_size).roll(1)]:
        part = dataclasses.replace(
            run,
            prompt=select_rows(run.prompt, index),
            rng_key=None if keys is None else select_rows(keys, index),
        )
        rows = (index[:, None] * copies + torch.arange(copies)).flatten()
        try:
            state = part.init()
        except ValueError:  # settings with a number a row fit one batch size only
            row_settings = True
        if row_settings:
            state = select_rows(whole_state, rows)
        which = f"row {int(index[0])} alone" if len(index) == 1 else "permuted rows"
        _require_same_tokens(whole, resume(run.decoder, run.params, state), rows, "rows", which)


def _check_pads(run: _Run, whole: GenerationOutput) -> None:
    rows = _rows(whole)
    sequences = _real_tokens(run.prompt)
    last = int(sequences[0][-1])  # a pad id that is a token, too: only the mask can tell
    for side, more, pad in (("left", 0, last), ("right", 0, 0), ("left", 3, 1), ("right", 2, last)):
        narrow = Prompt.from_lists(sequences, pad_token_id=pad, padding_side=side)
        assert narrow.mask is not None
        widths = (more, 0) if side == "left" else (0, more)
        padded = Prompt(
            tokens=torch.nn.functional.pad(narrow.tokens, widths, value=pad),
            mask=torch.nn.functional.pad(narrow.mask, widths),
            inputs=run.prompt.inputs,
        )
        result = dataclasses.replace(run, prompt=padded).generate()
        which = f"padding on the {side} with {more} more pads of id {pad}"
        _require_same_tokens(whole, result, rows, "pads", which)


def _check_compiled(
    run: _Run, states: list[GenerationState], backend: str, tolerance: float
) -> None:
    compiled = CompileCounter(run.decoder.step, backend)
    state = states[0]
    for expected in states[1:]:
        try:
            state, _ = compiled(run.params, state)
        except Exception as error:  # it ran eagerly, so whatever this is comes of compiling
            raise AssertionError(f"one graph: step does not trace: {error}") from error
        found = difference(_tokens_of(expected), _tokens_of(state))
        require(found is None, "one graph", f"the compiled step gave other tokens: {found}")
    text = f"step compiled {compiled.graphs} times over {len(states) - 1} steps"
    require(compiled.graphs == 1, "one graph", text)
    found = difference(states[-1], state, tolerance=tolerance)
    require(found is None, "one graph", f"the compiled steps gave another state: {found}")


def _check_while(run: _Run, whole: GenerationOutput, backend: str) -> None:
    try:
        result = run.generate(loop="while", backend=backend, buckets=Buckets(smallest=16))
    except Exception as error:  # the step traces, so whatever this is comes of the loop
        raise AssertionError(f"loops: loop='while' does not run: {error}") from error
    _require_same_tokens(whole, result, _rows(whole), "loops", "loop='while'")


def _rows(output: GenerationOutput) -> Tensor:
    return torch.arange(len(output.new_tokens))


def _tokens_of(state: GenerationState) -> list[Tensor]:
    return [state.tokens, state.length, state.stop_reason]


def _check_vmap(run: _Run, states: list[GenerationState], tolerance: float) -> None:
    if len(states) < 3:
        return
    lanes = [states[0], states[1]]
    vmapped = torch.func.vmap(run.decoder.step, in_dims=(None, 0))
    try:
        together, info = vmapped(run.params, stack_trees(*lanes))
    except Exception as error:  # it ran without vmap
        raise AssertionError(f"vmap: step does not run under vmap: {error}") from error
    for lane, state in enumerate(lanes):
        expected = run.decoder.step(run.params, state)
        result = (unstack_tree(together, lane), unstack_tree(info, lane))
        found = difference(expected, result, tolerance=tolerance)
        require(found is None, "vmap", f"step under vmap gave another result: {found}")


def _require_same_tokens(
    whole: GenerationOutput, result: GenerationOutput, rows: Tensor, law: str, which: str
) -> None:
    for place, row in enumerate(rows.tolist()):
        ours = result.new_tokens[place, : int(result.num_new_tokens[place])].tolist()
        theirs = whole.new_tokens[row, : int(whole.num_new_tokens[row])].tolist()
        require(ours == theirs, law, f"{which}: row {row} became {ours}, it was {theirs}")
        same = int(result.stop_reason[place]) == int(whole.stop_reason[row])
        require(same, law, f"{which}: row {row} stopped for another reason")


def _row_keys(rng_key: Tensor | None, batch_size: int) -> Tensor | None:
    if rng_key is None or rng_key.ndim == 2:
        return rng_key
    return random.split(rng_key, batch_size)


def _real_tokens(prompt: Prompt) -> list[list[int]]:
    mask = torch.ones_like(prompt.tokens) if prompt.mask is None else prompt.mask
    return [row[real].tolist() for row, real in zip(prompt.tokens, mask.bool(), strict=True)]
