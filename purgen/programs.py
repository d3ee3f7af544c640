"""Compiled programs: made once for each kind of decoder and size of buffers, kept for the process.

`PROGRAMS` finds the program by what would be built into it (`purgen.structure`), and drops the one
that was used longest ago when there are too many. Within a program torch's own guards still decide
whether it fits, so that a description that says too little costs a compilation, never a wrong token.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo.config as config
import torch.utils._pytree as torch_pytree

from purgen.advance import Run, Step
from purgen.buckets import parts_of
from purgen.cache import caches_of
from purgen.program import Compiler, Program, make_program
from purgen.structure import form_of, structure_of

__all__ = ["PROGRAMS", "Programs", "keep_many_programs"]

# What torch keeps for one function and in all, where a step is compiled by hand: the eight that it
# keeps by default are too few for a notebook.
PER_FUNCTION, TOGETHER = 256, 4096


def keep_many_programs() -> None:
    """Raises torch's limits on programs a function and in all, where they are lower."""
    config.recompile_limit = max(config.recompile_limit, PER_FUNCTION)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, TOGETHER)


class Programs:
    """The programs of a process.

    Args:
        bound: how many are kept.
    """

    def __init__(self, bound: int = 128) -> None:
        self.bound = bound
        self._kept: OrderedDict[Any, Program] = OrderedDict()
        self._lock = threading.Lock()

    def find(
        self, kind: str, step: Step, params: Any, run: Run, *rest: Any, compiler: Compiler
    ) -> Program:
        """Returns the program for these arguments; it is compiled when it is first called.

        Args:
            kind: a key of `purgen.program.KINDS`.
            step: `Decoder.step`.
            params: the parameters.
            run: the generation; of another kind than "step", its buffers are written.
            *rest: what the kind takes besides: an int is built in, a tensor is not.
            compiler: how to compile it.

        Returns:
            A `Program`, to be called as `program(step, params, run, *rest)`.
        """
        traits = _traits(kind, step, params, run, rest, compiler)
        key = tuple(traits.items())
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return _seen(self._kept[key])
            program = Program(kind, traits, _why(traits, [p.traits for p in self._kept.values()]))
            if compiler.freeze:
                program.constants = params
            if kind != "step":
                leaves = torch_pytree.tree_leaves(run)
                program.donated = len(leaves)
                program.donated_bytes = sum(leaf.nbytes for leaf in leaves)
            program.function = make_program(program, compiler)
            self._kept[key] = program
            while len(self._kept) > self.bound:
                self._kept.popitem(last=False)
            return _seen(program)

    def clear(self) -> None:
        """Forgets all."""
        with self._lock:
            self._kept.clear()

    def __iter__(self) -> Iterator[Program]:
        return iter(tuple(self._kept.values()))

    def __len__(self) -> int:
        return len(self._kept)

    @contextlib.contextmanager
    def watch(self) -> Iterator[list[Program]]:
        """Collects the programs that are asked for in a block, in order."""
        used: list[Program] = []
        token = _watched.set((*_watched.get(), used))
        try:
            yield used
        finally:
            _watched.reset(token)


_watched: contextvars.ContextVar[tuple[list[Program], ...]] = contextvars.ContextVar(
    "watched", default=()
)

PROGRAMS = Programs()


def _seen(program: Program) -> Program:
    for watcher in _watched.get():
        watcher.append(program)
    return program


def _traits(
    kind: str, step: Step, params: Any, run: Run, rest: tuple[Any, ...], compiler: Compiler
) -> dict[str, Any]:
    """What a program is made for, the most telling first."""
    state = run.state
    layouts = [cache for cache in caches_of(state) if cache.layout is not None]
    return {
        "loop": kind,
        "compiler": compiler,
        "decoder": structure_of(step),
        "rows": len(state.length),
        "cache slots": tuple([cache.layout.capacity(cache) for cache in layouts]),
        "token slots": tuple([part.tokens.shape[1] for part in parts_of(state)]),
        "record": tuple([recorder.name for recorder in state.record]),
        "lockstep": state.lockstep,
        "steps a turn": tuple([item for item in rest if isinstance(item, int)]),
        "parameters": form_of(params),
        "constants": _identity(params) if compiler.freeze else None,
        "state": form_of(run),
        "grad mode": torch.is_grad_enabled(),
    }


def _identity(params: Any) -> tuple[Any, ...]:
    """Tells tensors apart by what they are and how often they were written; the program keeps them."""
    leaves = torch_pytree.tree_leaves(params)
    return tuple(
        [(id(leaf), leaf._version) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    )


def _why(traits: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """Says what sets a program apart from the one that is most like it."""
    alike = [other for other in others if other["loop"] == traits["loop"]]
    alike = [other for other in alike if other["decoder"] == traits["decoder"]]
    if not alike:
        return "the first of this decoder and loop"
    differing = [[name for name in traits if traits[name] != other[name]] for other in alike]
    fewest = min(differing, key=len)
    shown = [name for name in fewest if name != "state"] or fewest
    return "new: " + ", ".join(_shown(name, traits[name]) for name in shown)


def _shown(name: str, value: Any) -> str:
    if name == "constants":
        return "other parameters built in"
    if name in ("decoder", "parameters", "state"):
        return f"the form of the {name}"
    if isinstance(value, tuple):
        return f"{name} {', '.join(map(str, value)) or 'none'}"
    return f"{name} {value}"
