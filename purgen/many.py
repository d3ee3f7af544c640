"""Many prompts through one batch: rows that have stopped make room for prompts that wait.

Continuous batching as functions of a state: a prompt is read by the decoder's own `init`, its rows are
written over those of a prompt that is done (refill); when none waits, the rows that still run go on in
a smaller batch (compaction). Yu et al., "Orca: A Distributed Serving System for Transformer-Based
Generative Models", 2022.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor
from tqdm.auto import tqdm

from purgen import random
from purgen.buckets import Buckets, parts_of, with_slots
from purgen.buffers import handed_out
from purgen.cache import Cache
from purgen.decoder import Decoder, GenerationOutput
from purgen.loop import DEFAULT, Plan, Record, begin_run, drive_run, plan_of
from purgen.prompt import Prompt
from purgen.pytree import replace, select_rows
from purgen.record import resolve_record
from purgen.state import GenerationState, StopReason

__all__ = ["Finished", "generate_many"]


@dataclasses.dataclass(frozen=True)
class Finished:
    """A prompt that is done.

    Attributes:
        index: int, its place among the prompts.
        output: `GenerationOutput`, what `generate` gives for the prompt alone.
    """

    index: int
    output: GenerationOutput


def generate_many(
    decoder: Decoder,
    params: Any,
    prompts: Iterable[Any],
    *,
    batch_size: int,
    max_new_tokens: int,
    rng_key: Tensor | None = None,
    loop: str = "eager",
    record: Record = (),
    progress: bool = False,
    buckets: Buckets | None = DEFAULT,
    chunk: int | None = None,
    backend: str = "inductor",
    freeze: bool = False,
) -> Iterator[Finished]:
    """Generates for any number of prompts, a batch of them at a time, and yields each when it is done.

    Rows that have stopped cost nothing: whenever the host looks (each step in the eager loop, each
    turn of the others), prompts that wait take their places. No more than `batch_size` prompts are in
    memory.

    Args:
        decoder: the strategy. Each prompt may have several rows (beams); settings a row are refused by
            whoever has them, since a row serves many prompts.
        params: the model's parameters.
        prompts: lists of token ids, `Prompt`s of one row, or one `Prompt` of many; read as they are
            needed.
        batch_size: the most prompts at once, at least 1.
        max_new_tokens: the most new tokens of each.
        rng_key: int64 [2]; prompt `i` gets `random.split(rng_key, n)[i]`, which does not depend on `n`:
            its tokens are those of `generate` with that key.
        loop: see `generate`, like all that follow.
        record: what to keep of each step.
        progress: whether to show a bar that counts prompts.
        buckets: how buffers are lengthened.
        chunk: the most steps between two looks at the stop flags.
        backend: what `torch.compile` makes programs with.
        freeze: whether the parameters are built into the programs.

    Yields:
        `Finished`, in the order in which they are done.

    Raises:
        TypeError: an argument or a prompt of the wrong kind.
        ValueError: a wrong value; the message names it.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model(eos_token_id=3)
        >>> prompts = [[1, 2], [4], [5, 6, 7], [8], [2, 2]]
        >>> done = purgen.generate_many(
        ...     purgen.greedy(model), model.params, prompts, batch_size=2, max_new_tokens=6
        ... )
        >>> sorted(each.index for each in done)
        [0, 1, 2, 3, 4]
    """
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size must be an int of at least 1, not {batch_size!r}")
    if rng_key is not None and rng_key.shape != (2,):
        raise ValueError(
            f"rng_key must be one key [2], from which each prompt gets its own, not "
            f"{list(rng_key.shape)}"
        )
    plan = plan_of(
        decoder,
        params,
        loop,
        buckets,
        chunk,
        backend,
        progress=False,
        steps=max_new_tokens,
        freeze=freeze,
    )
    batch = _Batch(plan, params, max_new_tokens, rng_key, resolve_record(record))
    total = len(prompts) if isinstance(prompts, Sequence) else None
    return _run(batch, _numbered(prompts), batch_size, tqdm(total=total, disable=not progress))


def _run(
    batch: _Batch, waiting: Iterator[tuple[int, Prompt]], batch_size: int, bar: Any
) -> Iterator[Finished]:
    with bar:
        live = batch.started(_taken(waiting, batch_size))
        while live is not None:
            live = batch.advanced(live)
            done = [place for place in range(len(live.prompts)) if live.is_done(place)]
            for place in done:
                bar.update(1)
                yield batch.finished(live, place)
                live.prompts[place] = None
            live = batch.refilled(live, _taken(waiting, live.prompts.count(None)))


@dataclasses.dataclass
class _Row:
    """A prompt that runs: its place among all, and its record so far."""

    index: int
    prompt: Prompt
    record: dict[str, list[Tensor]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Live:
    """The prompts that run, each with `group` rows of `state`; None where a place is vacant."""

    prompts: list[_Row | None]
    state: GenerationState
    group: int

    def rows(self, places: list[int]) -> Tensor:
        """Returns the rows of some prompts, int64 [n * group]."""
        first = torch.tensor(places, dtype=torch.int64)[:, None] * self.group
        return (first + torch.arange(self.group)).reshape(-1).to(self.state.length.device)

    def is_done(self, place: int) -> bool:
        """Whether there is a prompt, and all its rows have stopped."""
        return self.prompts[place] is not None and bool(
            self.state.stopped[place * self.group :][: self.group].all()
        )


@dataclasses.dataclass(frozen=True)
class _Batch:
    """How prompts are started, run and handed out."""

    plan: Plan
    params: Any
    max_new_tokens: int
    rng_key: Tensor | None
    recorders: tuple[Any, ...]

    def started(self, taken: list[tuple[int, Prompt]]) -> _Live | None:
        """Reads some prompts; None if there are none."""
        if not taken:
            return None
        keys = None
        if self.rng_key is not None:
            last = max(index for index, _ in taken)
            keys = random.split(self.rng_key, last + 1)[[index for index, _ in taken]]
        prompt = _joined([prompt for _, prompt in taken])
        state = begin_run(self.plan, self.params, prompt, keys, self.max_new_tokens, self.recorders)
        group, left = divmod(len(state.length), len(taken))
        if left:
            raise ValueError(
                f"generate_many: the decoder made {len(state.length)} rows of {len(taken)} prompts"
            )
        return _Live([_Row(index, one) for index, one in taken], state, group)

    def advanced(self, live: _Live) -> _Live:
        """Runs until a prompt is done."""
        state = live.state
        run = None
        for run, _ in drive_run(self.plan, self.params, state, fresh=True):
            now = dataclasses.replace(live, state=run.state)
            if any(now.is_done(place) for place in range(len(live.prompts))):
                break
        assert run is not None
        made = int(run.made)
        for name, kept in run.record.items():
            for place, row in enumerate(live.prompts):
                if row is None:
                    continue
                part = kept.values[place * live.group :][: live.group, :made]
                row.record.setdefault(name, []).append(part.clone())
        return dataclasses.replace(live, state=replace(run.state, lockstep=False))

    def finished(self, live: _Live, place: int) -> Finished:
        """Returns the result of a prompt that is done."""
        row = live.prompts[place]
        assert row is not None
        state = select_rows(live.state, live.rows([place]))
        widths = [int(part.limit.max()) for part in parts_of(state)]
        output = self.plan.decoder.finish(handed_out(state, widths))
        dead = state.stop_reason == int(StopReason.NO_TOKEN)
        steps = int((state.num_new_tokens + dead).max())
        record = {
            name: torch.cat(parts, dim=1)[:, :steps].contiguous()
            for name, parts in row.record.items()
        }
        given = row.prompt.tokens.to(output.new_tokens).expand(len(output.new_tokens), -1)
        sequences = torch.cat([given, output.new_tokens], dim=1)
        return Finished(row.index, replace(output, record=record, sequences=sequences))

    def refilled(self, live: _Live, more: list[tuple[int, Prompt]]) -> _Live | None:
        """Puts new prompts in vacant places, and drops places where too many stay vacant."""
        new = self.started(more)
        prompts, state = list(live.prompts), live.state
        if new is not None:
            vacant = [place for place, row in enumerate(prompts) if row is None]
            places = vacant[: len(more)]
            state = _written(state, live.rows(places), new.state)
            for place, row in zip(places, new.prompts, strict=True):
                prompts[place] = row
        kept = [place for place, row in enumerate(prompts) if row is not None]
        if not kept:
            return None
        # A batch of a power of two, so that the programs of smaller batches are few.
        size = 1 << (len(kept) - 1).bit_length()
        if size < len(prompts):
            vacant = [place for place, row in enumerate(prompts) if row is None]
            places = kept + vacant[: size - len(kept)]
            state = select_rows(state, live.rows(places))
            prompts = [prompts[place] for place in places]
        return _Live(prompts, state, live.group)


def _written(state: GenerationState, rows: Tensor, new: GenerationState) -> GenerationState:
    """Writes the rows of `new` over some rows of `state`, whose buffers are the loop's own."""
    sizes = [
        max(slots)
        for slots in zip(
            *([_slots(part) for part in parts_of(s)] for s in (state, new)), strict=True
        )
    ]
    both = []
    for each in (state, new):
        of = {id(part): size for part, size in zip(parts_of(each), sizes, strict=True)}
        both.append(with_slots(each, functools.partial(_looked_up, of)))
    state, new = both

    def put(old: Any, value: Any) -> Any:
        own = isinstance(old, Cache) and old.layout is not None  # large, and the loop's

        def write(leaf: Tensor, rows_of: Tensor) -> Tensor:
            copy = leaf.index_copy_ if own else leaf.index_copy
            return copy(0, rows, rows_of)

        return torch_pytree.tree_map(write, old, value)

    for old, value in zip(
        torch_pytree.tree_leaves(state), torch_pytree.tree_leaves(new), strict=True
    ):
        if isinstance(old, Tensor) and old.shape[1:] != value.shape[1:]:
            raise ValueError(
                f"prompts: one that waits needs a state of {list(value.shape[1:])} a row, where those "
                f"that run have {list(old.shape[1:])}; pad the inputs of all prompts alike"
            )
    return torch_pytree.tree_map(
        put,
        state,
        replace(new, lockstep=state.lockstep),
        is_leaf=lambda value: isinstance(value, Cache),
    )


def _looked_up(sizes: dict[int, tuple[int, int]], part: GenerationState) -> tuple[int, int]:
    return sizes[id(part)]


def _slots(state: GenerationState) -> tuple[int, int]:
    cache = state.cache
    room = 0 if cache.layout is None else cache.layout.capacity(cache)
    return state.tokens.shape[1], room


def _taken(waiting: Iterator[tuple[int, Prompt]], count: int) -> list[tuple[int, Prompt]]:
    return [item for _, item in zip(range(count), waiting)]  # noqa: B905 (as many as there are)


def _numbered(prompts: Iterable[Any]) -> Iterator[tuple[int, Prompt]]:
    """Yields each prompt as one row, with its place."""
    if isinstance(prompts, Prompt):
        count = len(prompts.tokens)
        rows: Iterable[Any] = (select_rows(prompts, torch.tensor([i])) for i in range(count))
    else:
        rows = prompts
    for index, prompt in enumerate(rows):
        if isinstance(prompt, Prompt):
            if len(prompt.tokens) != 1:
                raise ValueError(
                    f"prompts[{index}] has {len(prompt.tokens)} rows; give one Prompt of many rows, or "
                    "an iterable of prompts of one"
                )
            yield index, prompt
        elif isinstance(prompt, list | tuple) and all(isinstance(item, int) for item in prompt):
            yield index, Prompt.from_lists([list(prompt)], pad_token_id=0)
        else:
            raise TypeError(
                f"prompts[{index}] must be a Prompt of one row or a list of token ids, not "
                f"{type(prompt).__name__}"
            )


def _joined(prompts: list[Prompt]) -> Prompt:
    """Makes one prompt of several, padded on the left."""
    if len(prompts) == 1:
        return prompts[0]
    rows = []
    for prompt in prompts:
        mask = prompt.mask
        rows.append(prompt.tokens[0] if mask is None else prompt.tokens[0][mask[0].bool()])
    joined = Prompt.from_lists([row.tolist() for row in rows], pad_token_id=0)
    assert joined.mask is not None
    device = prompts[0].tokens.device
    names = list(prompts[0].inputs)
    inputs = {name: torch.cat([prompt.inputs[name] for prompt in prompts]) for name in names}
    return Prompt(tokens=joined.tokens.to(device), mask=joined.mask.to(device), inputs=inputs)
