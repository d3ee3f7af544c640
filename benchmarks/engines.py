"""Engines: purgen and its peers, each doing one case in its own process.

An engine is named "KIND/HOW", for purgen with settings after it: "purgen/compiled+freeze".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.cases import SETTINGS, Case, Rows, prompts_of
from benchmarks.peers import CTranslate2, Transformers


class Engine(Protocol):
    """What the worker asks of an engine."""

    def generate(self) -> Rows:
        """Does the case once."""

    def first_token(self) -> float:
        """Returns the seconds until a first token is there."""


class Purgen:
    """purgen, "eager", "compiled", "while" or "auto"; "+freeze", "+reduce-overhead" after it."""

    def __init__(self, folder: Path, case: Case, device: str, how: str) -> None:
        import bridge
        import purgen

        loop, *extra = how.split("+")
        if not set(extra) <= {"freeze", "reduce-overhead"}:
            raise ValueError(f"purgen/{how}: after + comes freeze or reduce-overhead")
        self.case, self.loop, self.device = case, loop, device
        self.options: dict[str, Any] = {"max_new_tokens": case.new_tokens, "loop": loop}
        if "freeze" in extra:
            self.options["freeze"] = True
        if "reduce-overhead" in extra:
            self.options["mode"] = "reduce-overhead"
        self.model = bridge.load(folder, dtype=case.dtype, device=device)
        stop = None if case.decoding == "skewed" else purgen.any_of()
        if case.decoding == "sample":
            warp = purgen.top_p(SETTINGS["sample"]["top_p"])
            self.decoder = purgen.sample(self.model, transform=warp, stop=stop)
            self.options["rng_key"] = purgen.random.key(0)
        elif case.decoding == "penalty":
            values = SETTINGS["penalty"]
            warp = purgen.chain(
                purgen.repetition_penalty(values["repetition_penalty"]),
                purgen.no_repeat_ngram(values["no_repeat_ngram_size"]),
            )
            self.decoder = purgen.greedy(self.model, transform=warp, stop=stop)
        else:
            self.decoder = purgen.greedy(self.model, stop=stop)
        self.rows = prompts_of(case, self.model.tokenizer)
        self.prompt = self._prompt(self.rows)

    def _prompt(self, rows: Rows) -> Any:
        import purgen

        prompt = purgen.Prompt.from_lists(rows, pad_token_id=self.model.pad_token_id)
        assert prompt.mask is not None
        return purgen.replace(
            prompt, tokens=prompt.tokens.to(self.device), mask=prompt.mask.to(self.device)
        )

    def generate(self) -> Rows:
        import purgen

        if self.case.decoding == "skewed":
            return _in_order(
                purgen.generate_many(
                    self.decoder,
                    self.model.params,
                    self.prompt,
                    batch_size=self.case.batch,
                    **self.options,
                )
            )
        out = purgen.generate(self.decoder, self.model.params, self.prompt, **self.options)
        return _new_tokens(out)

    def first_token(self) -> float:
        """By `stream`, or where the loop has none by a generation of one token."""
        import purgen

        began = time.perf_counter()
        if self.loop in ("eager", "compiled") and self.case.decoding != "skewed":
            steps = purgen.stream(self.decoder, self.model.params, self.prompt, **self.options)
            next(iter(steps))[1].token.tolist()
        else:
            options = {**self.options, "max_new_tokens": 1}
            prompt = self._prompt(self.rows[: self.case.batch])
            purgen.generate(self.decoder, self.model.params, prompt, **options)
        return time.perf_counter() - began

    def judge(self, rows: Rows) -> list[float]:
        """Tells how far each row is from what the eager model itself would give.

        The model reads each row once, eagerly, and every token is looked at after those before it.

        Args:
            rows: new tokens, as `generate` gives them.

        Returns:
            A number a row, its greatest over the tokens: greedy, how much less the token's logit is
            than the greatest (0: the very token); sampling, the probability of the tokens more likely
            than it (it may be up to top-p).
        """
        return [self._judge(prompt, row) for prompt, row in zip(self.rows, rows, strict=True)]

    def _judge(self, prompt: list[int], row: list[int]) -> float:
        read = torch.tensor([[*prompt, *row[:-1]]], device=self.device)
        with torch.no_grad():
            cache = self.model.init_cache(1, read.shape[1])
            logits = self.model.apply(self.model.params, read, cache).logits[0, len(prompt) - 1 :]
        logits = logits.float()
        chosen = logits.gather(1, torch.tensor(row, device=self.device)[:, None])
        if self.case.decoding == "sample":
            probabilities = logits.softmax(dim=-1)
            return float((probabilities * (logits > chosen)).sum(dim=-1).max())
        return float((logits.amax(dim=-1, keepdim=True) - chosen).max())


def _new_tokens(out: Any) -> Rows:
    counts = out.num_new_tokens.tolist()
    return [row[:n] for row, n in zip(out.new_tokens.tolist(), counts, strict=True)]


def _in_order(results: Iterator[tuple[int, Any]]) -> Rows:
    """Returns the rows of `(index of the prompt, output)` pairs by index."""
    rows = {index: _new_tokens(out)[0] for index, out in results}
    return [rows[index] for index in sorted(rows)]


KINDS: dict[str, Any] = {
    "transformers": Transformers,
    "purgen": Purgen,
    "ctranslate2": CTranslate2,
}


def make_engine(name: str, folder: Path, case: Case, device: str) -> Any:
    """Loads the model of a case into an engine.

    Raises:
        ValueError: there is no such engine.
    """
    kind, _, how = name.partition("/")
    if kind not in KINDS:
        raise ValueError(f"engine must be one of {sorted(KINDS)}, then /HOW, not {name!r}")
    return KINDS[kind](folder, case, device, how)
