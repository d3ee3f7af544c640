"""A whole generation as a file: the prefill and the loop in one exported program.

Two forms of it lie in one folder: `generation.pt2`, by `torch.export`, and `generation.aoti.pt2`, a
package of AOTInductor that needs torch alone, neither purgen nor transformers. Both take and give the
same tensors (`SIGNATURE`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch import Tensor, nn

from purgen.advance import complete
from purgen.cache import Cache
from purgen.decoder import Decoder, GenerationOutput
from purgen.prompt import Prompt, right_align
from purgen.pytree import replace
from purgen.state import GenerationState
from purgen.verbs import finish, require_key, row_keys
from purgen.view import NO_KEY

__all__ = ["export", "load_program"]

EXPORTED, PACKAGED, DESCRIPTION = "generation.pt2", "generation.aoti.pt2", "generation.json"

# tokens int64 [B, P] and mask bool [B, P], padded on the left; rng_key int64 [B, 2]; budget int64 [B],
# the most new tokens of a row, 0 in one that is not used. With `params` outside, their leaves first.
SIGNATURE = ("tokens", "mask", "rng_key", "budget")

# As in `GenerationState`; tokens are int64 [B, P + N].
RESULTS = (
    "tokens",
    "start",
    "length",
    "prompt_length",
    "stopped",
    "stop_reason",
    "rng_key",
    "limit",
)


def export(
    decoder: Decoder,
    params: Any,
    path: str | Path,
    *,
    prompt: Prompt,
    max_new_tokens: int,
    params_inside: bool = True,
    package: bool = True,
) -> Path:
    """Saves a decoder as programs that read a prompt and generate.

    The prompts and budgets of a call may be smaller than those of the export. What a transform
    works out of the budget when a generation begins (`forced_eos` does) is that of the export; a
    program has no clock, so `max_time` does not stop it, and it keeps no record.

    Args:
        decoder: the strategy; its rows must be those of the prompt.
        params: the model's parameters.
        path: a folder; made if it is not there.
        prompt: an example: its B and P are the most that the program takes, rows and slots. Inputs
            besides tokens are not supported.
        max_new_tokens: the largest budget that the program takes.
        params_inside: whether the parameters are in the files; if not, they are given at each call.
        package: whether to compile the AOTInductor package besides, which takes a C++ compiler.

    Returns:
        The folder.

    Raises:
        ValueError: the prompt has other inputs, or the decoder other rows.

    Example:
        >>> import purgen, tempfile
        >>> model = purgen.testing.toy_model()
        >>> prompt = purgen.Prompt.from_lists([[1, 2, 3], [4]], pad_token_id=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = purgen.export(
        ...         purgen.greedy(model),
        ...         model.params,
        ...         folder,
        ...         prompt=prompt,
        ...         max_new_tokens=8,
        ...         package=False,
        ...     )
        ...     run = purgen.load_program(path)
        ...     run(prompt, max_new_tokens=3).new_tokens.shape
        torch.Size([2, 3])
    """
    if prompt.inputs:
        raise ValueError(
            f"export: prompt has inputs {sorted(prompt.inputs)}; only tokens are supported"
        )
    folder = Path(path)
    rows, slots = prompt.tokens.shape
    leaves, structure = torch_pytree.tree_flatten(params)
    with torch.no_grad():
        draws = _draws(decoder, params, prompt)
        arguments = _arguments(prompt, None, max_new_tokens, rows, slots)
        state = decoder.init(params, prompt, rng_key=arguments[2], max_new_tokens=max_new_tokens)
        if len(state.length) != rows:
            raise ValueError(
                f"export: the decoder makes {len(state.length)} rows of {rows} prompts; one row a "
                "prompt is supported"
            )
        program = _Generation(decoder, structure, leaves if params_inside else None, max_new_tokens)
        given: tuple[Any, ...] = arguments if params_inside else (leaves, *arguments)
        exported = torch.export.export(program, given, strict=False)
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(exported, folder / EXPORTED)
    if package:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / PACKAGED))
    description = {
        "rows": rows,
        "slots": slots,
        "max_new_tokens": max_new_tokens,
        "pad_token_id": state.pad_token_id,
        "params_inside": params_inside,
        "draws": draws,
        "takes": SIGNATURE,
        "gives": RESULTS,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return folder


def load_program(
    path: str | Path, *, package: bool | None = None
) -> Callable[..., GenerationOutput]:
    """Loads what `export` saved.

    Args:
        path: the folder.
        package: whether to run the AOTInductor package rather than the exported program; None: where
            there is one.

    Returns:
        `run(prompt, *, rng_key=None, max_new_tokens, params=None) -> GenerationOutput`, the tokens of
        `generate`. The prompt has at most the rows and slots, and the budget is at most that, of the
        export. `params` are needed where they are not inside. The state of the output has tokens and
        no cache.

    Raises:
        FileNotFoundError: there is no such program.
    """
    folder = Path(path)
    if not (folder / DESCRIPTION).is_file():
        raise FileNotFoundError(f"load_program: {str(folder)!r} holds no {DESCRIPTION}")
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    if package is None:
        package = (folder / PACKAGED).is_file()
    call: Callable[..., Any]
    if package:
        call = torch._inductor.aoti_load_package(str(folder / PACKAGED))
    else:
        call = torch.export.load(folder / EXPORTED).module()
    rows, slots, most = (description[name] for name in ("rows", "slots", "max_new_tokens"))

    def run(
        prompt: Prompt, *, rng_key: Tensor | None = None, max_new_tokens: int, params: Any = None
    ) -> GenerationOutput:
        given, width = prompt.tokens.shape
        if given > rows or width > slots:
            raise ValueError(
                f"prompt has {given} rows of {width} slots; the program takes {rows} of {slots}"
            )
        if not 1 <= max_new_tokens <= most:
            raise ValueError(f"max_new_tokens must be 1 to {most}, not {max_new_tokens}")
        if (params is None) != description["params_inside"]:
            verb = "are" if description["params_inside"] else "are not"
            raise ValueError(f"params: those of this program {verb} inside")
        if description["draws"]:
            require_key(rng_key)
        pad_token_id = description["pad_token_id"]
        # Refuses what `generate` refuses; ids beyond the vocabulary are refused by the program.
        right_align(prompt, vocab_size=torch.iinfo(torch.int64).max, pad_token_id=pad_token_id)
        arguments: tuple[Any, ...] = _arguments(prompt, rng_key, max_new_tokens, rows, slots)
        if params is not None:
            arguments = (torch_pytree.tree_leaves(params), *arguments)
        with torch.no_grad():
            out = dict(zip(RESULTS, call(*arguments), strict=True))
        return _output(prompt, out, given, pad_token_id)

    return run


class _Generation(nn.Module):
    """What is exported: prefill and loop as a function of `SIGNATURE`."""

    def __init__(
        self, decoder: Decoder, structure: Any, leaves: list[Tensor] | None, max_new_tokens: int
    ) -> None:
        super().__init__()
        self.decoder, self.structure, self.budget = decoder, structure, max_new_tokens
        self.names = None if leaves is None else [f"leaf_{index}" for index in range(len(leaves))]
        for name, leaf in zip(self.names or (), leaves or (), strict=True):
            self.register_buffer(name, leaf)

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        """Returns the tensors of `RESULTS`."""
        if self.names is None:
            leaves, *arguments = arguments  # type: ignore[assignment]
        else:
            leaves = [getattr(self, name) for name in self.names]
        tokens, mask, rng_key, budget = arguments
        params = torch_pytree.tree_unflatten(leaves, self.structure)
        state = self.decoder.init(
            params,
            Prompt(tokens=tokens, mask=mask),
            rng_key=rng_key,
            max_new_tokens=self.budget,
        )
        state = replace(
            state,
            limit=state.length + budget,
            stopped=state.stopped | (budget == 0),
            lockstep=self.decoder.lockstep,
        )
        state = complete(self.decoder.step, params, state)
        return tuple([getattr(state, name).clone() for name in RESULTS])


def _draws(decoder: Decoder, params: Any, prompt: Prompt) -> bool:
    """Tells whether a strategy needs random keys."""
    try:
        decoder.step(params, decoder.init(params, prompt, max_new_tokens=1))
    except ValueError as error:
        if str(error) != NO_KEY:
            raise
        return True
    return False


def _arguments(
    prompt: Prompt, rng_key: Tensor | None, max_new_tokens: int, rows: int, slots: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the tensors of `SIGNATURE`, with rows that are not used after those of the prompt."""
    tokens = prompt.tokens.long()
    given, width = tokens.shape
    mask = torch.ones_like(tokens, dtype=torch.bool) if prompt.mask is None else prompt.mask != 0
    keys = row_keys(rng_key, given, tokens.device)
    budget = tokens.new_full((given,), max_new_tokens)

    def padded(tensor: Tensor, *before: int) -> Tensor:
        return torch.nn.functional.pad(tensor, (*before, 0, rows - given))

    mask = padded(mask, slots - width, 0)
    mask[given:, -1] = True  # a row has a token
    return padded(tokens, slots - width, 0), mask, padded(keys, 0, 0), padded(budget)


def _output(prompt: Prompt, out: dict[str, Any], rows: int, pad_token_id: int) -> GenerationOutput:
    """Lays out what a program gives, for the rows that were asked for."""
    out = {name: value[:rows] for name, value in out.items()}
    cache = Cache(layers=(), cache_position=out["length"] - 1)
    output = finish(GenerationState(cache=cache, pad_token_id=pad_token_id, **out))
    return replace(output, sequences=torch.cat([prompt.tokens.long(), output.new_tokens], dim=1))
