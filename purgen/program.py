"""One compiled program: how it is made, what is known of it, and how it is run again and again."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
from tqdm import tqdm

from purgen.advance import advance, advance_many, advance_while

__all__ = ["KINDS", "Bound", "Compiler", "Program", "make_program"]

KINDS: dict[str, Callable[..., Any]] = {
    "step": advance,
    "chunk": advance_many,
    "while": advance_while,
}

# Matrices as constants are laid out anew, those that read the same numbers as one; for each shape, rows
# included, the faster of torch's own product and of inductor's templates is found by measuring.
FROZEN = {
    "freezing": True,
    "cpp.enable_concat_linear": True,
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "CPP,ATEN",
    "autotune_num_choices_displayed": 0,  # no table a shape on stderr
    "max_autotune_report_choices_stats": False,
}

# Kernels called from C++ double the speed of a tiny model at batch 1, and are one file to the C++
# compiler: for the 30 layers of SmolLM2 it takes many minutes, to win nothing that can be measured.
CPP_BELOW = 700


@dataclasses.dataclass(frozen=True)
class Compiler:
    """How programs are compiled.

    Attributes:
        backend: of `torch.compile`.
        options: tuple of (name, value), settings of inductor for these programs.
        freeze: bool, whether parameters are constants of the program.
        cpp_below: int, graphs of fewer nodes call their kernels from C++ rather than from Python.
    """

    backend: str = "inductor"
    options: tuple[tuple[str, Any], ...] = ()
    freeze: bool = False
    cpp_below: int = 0

    @classmethod
    def of(cls, backend: str, device: torch.device, *, freeze: bool = False) -> Compiler:
        """Returns the one for a device."""
        options: tuple[tuple[str, Any], ...] = ()
        if backend == "inductor" and freeze:
            options += tuple(FROZEN.items())
        return cls(backend, options, freeze, cpp_below=CPP_BELOW if device.type == "cpu" else 0)

    def options_for(self, graph: torch.fx.GraphModule) -> dict[str, Any]:
        """Returns the settings of inductor for a graph: `options`, and the language of its wrapper."""
        modules = [part for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
        size = sum(len(part.graph.nodes) for part in modules)
        return {"cpp_wrapper": size < self.cpp_below, **dict(self.options)}


@dataclasses.dataclass(eq=False)
class Program:
    """A compiled program and what is known of it.

    Attributes:
        kind: "step", "chunk" or "while".
        traits: dict from what was compiled in ("cache slots", …) to its value.
        why: what none of the programs had that were there before.
        graphs: int, how often torch compiled it; more than 1 where a guard failed.
        seconds: float, how long that took.
        calls: int.
        donated: int, how many buffers it writes in place.
        donated_bytes: int, their size.
        called: float, the clock when it was last called.
        constants: the parameters that are built in, or None.
        function: what runs.
    """

    kind: str
    traits: dict[str, Any]
    why: str
    graphs: int = 0
    seconds: float = 0.0
    calls: int = 0
    donated: int = 0
    donated_bytes: int = 0
    called: float = 0.0
    constants: Any = dataclasses.field(default=None, repr=False)
    function: Callable[..., Any] = dataclasses.field(default=lambda: None, repr=False)

    def __call__(self, *args: Any, announce: bool = False) -> Any:
        """Runs it; the first time, compiles it, and says so on stderr if asked to."""
        announce = announce and self.calls == 0
        if announce:
            tqdm.write(f"purgen: compiling {self.kind} ({self.why}) …", file=sys.stderr)
        self.called = time.monotonic()
        # Tensors that the function closes over become constants of the graph.
        settings = {"install_free_tensors": True} if self.constants is not None else {}
        with dynamo_config.patch(settings) if settings else contextlib.nullcontext():
            result = self.function(*args)
        self.calls += 1
        if announce:
            tqdm.write(f"purgen: compiled in {self.seconds:.1f} s", file=sys.stderr)
        return result


def make_program(program: Program, compiler: Compiler) -> Callable[..., Any]:
    """Makes the compiled function `(step, params, run, …)` of a program.

    Args:
        program: counts its compilations.
        compiler: how.

    Returns:
        The function; it compiles when it is first called.
    """
    from torch._dynamo import lookup_backend  # takes seconds to import

    body = KINDS[program.kind]

    def backend(graph: Any, inputs: Any) -> Any:
        if compiler.backend == "inductor":
            from torch._inductor.compile_fx import compile_fx

            made: Any = compile_fx(graph, inputs, config_patches=compiler.options_for(graph))
        else:
            made = lookup_backend(compiler.backend)(graph, inputs)
        program.graphs += 1
        program.seconds += time.monotonic() - program.called

        def entry(*tensors: Any) -> Any:
            seen = _entries.get()
            if seen is not None:
                seen.append((made, tensors))
            return made(*tensors)

        return entry

    # A code object of its own: torch keeps what it compiled with the code, so that dropping the one
    # drops the other.
    constants = program.constants

    def run(step: Any, params: Any, *args: Any) -> Any:
        return body(step, params if constants is None else constants, *args)

    run.__code__ = run.__code__.replace(co_name=f"purgen_{program.kind}_{id(program)}")
    return torch.compile(run, fullgraph=True, dynamic=False, backend=backend)


class Bound:
    """A program that writes in place, with the tensors that it is to run on each time.

    Before a program runs, torch looks over everything that it was compiled for. While the arguments
    are the same objects, and nobody changed what they are, that is done once: from the second call on
    the compiled code gets the tensors at once. At a step of 0.1 ms that halves the time.

    Args:
        program: of a kind that returns nothing.
        args: its arguments.
        announce: see `Program`.
    """

    def __init__(self, program: Program, *args: Any, announce: bool = False) -> None:
        self._program = program
        self._args = args
        self._announce = announce
        self._entry: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def __call__(self) -> None:
        """Runs it."""
        if len(self._entry) == 1:
            made, tensors = self._entry[0]
            made(*tensors)
            self._program.calls += 1
            return
        self._entry.clear()
        token = _entries.set(self._entry)
        try:
            self._program(*self._args, announce=self._announce)
        finally:
            _entries.reset(token)


# Where compiled code that is entered by the way of torch's guards leaves word of itself.
_entries: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("entries", default=None)
