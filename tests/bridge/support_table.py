"""Writes docs/families.md: every supported family, tried, with its figures.

    python -m tests.bridge.support_table [name ...]

Without names, all; the file is written only then. Each family is a tiny random model, weights drawn so
that greedy tokens vary; each figure comes from a run of the two side by side.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_map

import bridge
import purgen
from tests.bridge.families import FAMILIES, NEW_TOKENS, generated, ragged_prompt, tiny_module
from tests.bridge.families_images import (
    IMAGE_TEXT,
    generated_images,
    image_prompt,
    tiny_image_text,
    token_types,
)
from tests.bridge.families_seq2seq import (
    SEQ2SEQ,
    generated_seq2seq,
    seq2seq_prompt,
    tiny_seq2seq,
)

TABLE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
CLOSE = 1e-4  # largest logit difference that counts as equal
BACKEND = "aot_eager"

HEAD = """# Families

Written by `python -m tests.bridge.support_table` (transformers {transformers}, torch {torch}, float32,
on a CPU). Each family is a tiny random model; a ragged batch of three rows generates {tokens} tokens
each, past every window. A row is one configuration of `tests/bridge/families.py` or, with the prefix
"seq2seq" or "images", of `families_seq2seq.py` or `families_images.py`.

* **eager, compiled, while**: greedy tokens equal to `generate` of transformers, out of how many;
  compiled loops with the backend {backend}.
* **distinct**: how many different tokens these are: few say little.
* **logits**: largest difference to the module's own forward, without a cache.
* **vmap**: over states at different positions, and over parameters: largest logit difference to
  a loop.
* **rows**: each row at a slot of its own: largest logit difference to the row alone; "no" where the
  cache cannot be rewound (a state without slots: keep the earlier cache, which is a value).

Types that are not listed are tried when they are loaded: `bridge.load` compares a short run with the
module's own forward, and refuses by name what does not agree.

"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One family, ready to run."""

    module: Any
    model: Any
    prompt: purgen.Prompt
    wanted: Tensor  # int64 [B, N]


def case_of(name: str) -> Case:
    """Returns the tiny model of a family and what transformers generates with it."""
    if name.startswith("seq2seq "):
        name = name.removeprefix("seq2seq ")
        module, prompt = tiny_seq2seq(name), seq2seq_prompt(name)
        return Case(module, bridge.load(module), prompt, generated_seq2seq(module, prompt))
    if name.startswith("images "):
        name = name.removeprefix("images ")
        module, prompt = tiny_image_text(name), image_prompt(name)
        return Case(module, bridge.load(module), prompt, generated_images(module, prompt))
    module = tiny_module(name)
    tokens, mask = ragged_prompt()
    prompt = purgen.Prompt(tokens=tokens, mask=mask)
    return Case(module, bridge.load(module), prompt, generated(module, tokens, mask))


def row_of(name: str) -> dict[str, Any]:
    """Returns the figures of a family."""
    case = case_of(name)
    row: dict[str, Any] = {"family": name, "model type": case.module.config.model_type}
    for loop in ("eager", "compiled", "while"):
        row[loop] = _tried(lambda loop=loop: _tokens(case, loop))
    row["distinct"] = len(set(case.wanted.flatten().tolist()))
    row["logits"] = _tried(lambda: f"{_logits(case):.0e}")
    row["vmap states"] = _tried(lambda: _difference(_vmap_states(case)))
    row["vmap params"] = _tried(lambda: _difference(_vmap_params(case)))
    row["rows"] = _tried(lambda: _difference(_rows(case))) if case.model.slot_addressed else "no"
    return row


def _tried(measure: Callable[[], str]) -> str:
    try:
        return measure()
    except Exception as error:  # a cell of the table, not a crash of the rest
        print(f"  {type(error).__name__}: {error}", file=sys.stderr)
        return f"no ({type(error).__name__})"


def _difference(pair: tuple[Tensor, Tensor]) -> str:
    error = float((pair[0] - pair[1]).abs().max())
    return f"{error:.0e}" if error < CLOSE else f"**{error:.0e}**"


def _tokens(case: Case, loop: str) -> str:
    decoder = purgen.greedy(case.model, stop=purgen.any_of())
    got = purgen.generate(
        decoder,
        case.model.params,
        case.prompt,
        max_new_tokens=NEW_TOKENS,
        loop=loop,
        backend=BACKEND,
    ).new_tokens
    equal = int((got == case.wanted).sum())
    text = f"{equal}/{case.wanted.numel()}"
    return text if equal == case.wanted.numel() else f"**{text}**"


def _cache(case: Case) -> purgen.Cache:
    """Returns the cache after the prompt and two more tokens, with room for a few."""
    prompt, model = case.prompt, case.model
    rows, width = prompt.tokens.shape
    out = model.prefill(
        model.params,
        prompt.tokens,
        model.init_cache(rows, width + 10),
        mask=prompt.mask,
        inputs=prompt.inputs or None,
    )
    return model.apply(model.params, case.wanted[:, :2], out.cache).cache


def _logits(case: Case) -> float:
    """Returns the largest difference to the forward of the module, without a cache."""
    prompt, model = case.prompt, case.model
    tokens = torch.cat([prompt.tokens, case.wanted[:, :6]], dim=1)
    mask = torch.nn.functional.pad(prompt.mask, (0, 6), value=True)
    cache = model.init_cache(*tokens.shape)
    width = prompt.tokens.shape[1]
    out = model.prefill(
        model.params, prompt.tokens, cache, mask=prompt.mask, inputs=prompt.inputs or None
    )
    out = model.apply(model.params, tokens[:, width:], out.cache)
    with torch.no_grad():
        if case.module.config.is_encoder_decoder:
            expected = case.module(**prompt.inputs, decoder_input_ids=tokens).logits
        else:
            accepted = inspect.signature(type(case.module).forward).parameters
            kinds = token_types(case.module, tokens) if prompt.inputs else {}
            options = {**prompt.inputs, **kinds}
            if "position_ids" in accepted and "image_grid_thw" not in prompt.inputs:
                options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
            expected = case.module(tokens, attention_mask=mask.long(), **options).logits
    return float((out.logits - expected[:, width:]).abs().max())


def _vmap_states(case: Case) -> tuple[Tensor, Tensor]:
    model, first = case.model, _cache(case)
    second = model.apply(model.params, case.wanted[:, 2:3], first).cache
    caches = tree_map(lambda *leaves: torch.stack(leaves), first, second)
    token = case.wanted[:, 3:4]
    got = torch.vmap(lambda cache: model.apply(model.params, token, cache).logits)(caches)
    want = [model.apply(model.params, token, cache).logits for cache in (first, second)]
    return got, torch.stack(want)


def _vmap_params(case: Case) -> tuple[Tensor, Tensor]:
    model, cache = case.model, _cache(case)
    stacked = {name: torch.stack([value, value * 1.05]) for name, value in model.params.items()}
    token = case.wanted[:, 2:3]
    got = torch.vmap(lambda params: model.apply(params, token, cache).logits)(stacked)
    want = [
        model.apply({k: v[lane] for k, v in stacked.items()}, token, cache).logits
        for lane in range(2)
    ]
    return got, torch.stack(want)


def _rows(case: Case) -> tuple[Tensor, Tensor]:
    model, cache = case.model, _cache(case)
    ragged = purgen.replace(cache, cache_position=cache.cache_position - torch.tensor([0, 2, 1]))
    token = case.wanted[:, 2:3]
    got = model.apply(model.params, token, ragged).logits
    want = [
        model.apply(
            model.params,
            token[row : row + 1],
            purgen.select_rows(ragged, torch.tensor([row])),
        ).logits
        for row in range(3)
    ]
    return got, torch.cat(want)


def main(names: list[str]) -> None:
    """Prints the rows of some families, or writes the table of all."""
    every = [
        *FAMILIES,
        *(f"seq2seq {name}" for name in SEQ2SEQ),
        *(f"images {name}" for name in IMAGE_TEXT),
    ]
    rows = []
    for name in names or every:
        print(name, file=sys.stderr, flush=True)
        rows.append(row_of(name))
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([*row.values()] for row in rows)]
    table = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    if names:
        print(table)
        return
    TABLE.parent.mkdir(exist_ok=True)
    head = HEAD.format(
        transformers=transformers.__version__,
        torch=torch.__version__.split("+")[0],
        tokens=NEW_TOKENS,
        backend=BACKEND,
    )
    TABLE.write_text(head + table + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
