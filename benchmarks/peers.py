"""The peers: transformers and CTranslate2, each on one case."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import SETTINGS, Case, Rows, prompts_of


class Transformers:
    """`generate` of transformers: "dynamic" (its default), "static" or "compiled" (static too).

    Args:
        folder: of the checkpoint.
        case: what to do.
        device: where.
        how: which cache, and whether its forward is compiled.
    """

    def __init__(self, folder: Path, case: Case, device: str, how: str) -> None:
        import transformers
        from transformers import GenerationConfig

        self.case = case
        dtype = getattr(torch, case.dtype)
        self.module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.module.to(device).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        settings: dict[str, Any] = dict(SETTINGS[case.decoding])
        if case.decoding == "sample":
            settings |= {"do_sample": True, "top_k": 0, "temperature": 1.0}
        if how != "dynamic":
            settings["cache_implementation"] = "static"
        if how == "compiled":
            settings["compile_config"] = _compile_config(device)
        else:
            settings["disable_compile"] = True
        # A configuration of its own: the checkpoint's must not add an end token or a penalty.
        self.module.generation_config = GenerationConfig(
            max_new_tokens=case.new_tokens,
            eos_token_id=tokenizer.eos_token_id if case.decoding == "skewed" else None,
            pad_token_id=0,
            **{"do_sample": False, **settings},
        )
        self.end = tokenizer.eos_token_id
        self.tokens, self.mask = _left_padded(prompts_of(case, tokenizer), device)

    def generate(self, streamer: Any = None) -> Rows:
        rows: Rows = []
        for tokens, mask in zip(
            self.tokens.split(self.case.batch), self.mask.split(self.case.batch), strict=True
        ):
            torch.manual_seed(0)
            out = self.module.generate(tokens, attention_mask=mask, streamer=streamer)
            rows += out[:, tokens.shape[1] :].tolist()
        if self.case.decoding != "skewed":
            return rows
        return [row[: row.index(self.end) + 1] if self.end in row else row for row in rows]

    def first_token(self) -> float:
        began = time.perf_counter()
        try:
            self.generate(_StopAtFirst())
        except _Arrived:
            return time.perf_counter() - began
        raise AssertionError("generate ended without a first token")


class _Arrived(Exception):
    """The first token is there."""


class _StopAtFirst:
    """A streamer that ends the run at the first new token; the prompt comes first."""

    def __init__(self) -> None:
        self.seen = 0

    def put(self, value: Any) -> None:
        self.seen += 1
        if self.seen == 2:
            raise _Arrived

    def end(self) -> None:
        """Part of the protocol."""


def _compile_config(device: str) -> Any:
    from transformers.generation.configuration_utils import CompileConfig

    mode = "default" if device == "cpu" else "reduce-overhead"
    config = CompileConfig(fullgraph=True, dynamic=False, mode=mode)
    config._compile_all_devices = True  # without it, transformers leaves a CPU uncompiled
    return config


def _left_padded(prompts: Rows, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and mask, int64 [B, P]; one length for all batches spares recompilation."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(row)) + row for row in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    return tokens, mask.to(device)


class CTranslate2:
    """CTranslate2 on the same weights."""

    def __init__(self, folder: Path, case: Case, device: str, how: str) -> None:
        import ctranslate2
        import transformers

        from benchmarks.checkpoints import ctranslate2_folder_of

        self.generator = ctranslate2.Generator(
            str(ctranslate2_folder_of(folder)),
            device=device,
            compute_type=case.dtype,
            intra_threads=torch.get_num_threads(),
            inter_threads=1,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.prompts = [tokenizer.convert_ids_to_tokens(row) for row in prompts_of(case, tokenizer)]
        settings = dict(SETTINGS[case.decoding])
        if "top_p" in settings:
            settings = {"sampling_topk": 0, "sampling_topp": settings["top_p"]}
        skewed = case.decoding == "skewed"
        # There is no way to have none: where nothing should end, it is a token that never comes.
        never = len(tokenizer) - 1 if case.model == "smollm2" else tokenizer.pad_token_id
        end = tokenizer.eos_token_id if skewed else never
        self.options = {
            "max_length": case.new_tokens,
            "beam_size": 1,
            "include_prompt_in_result": False,
            "end_token": [end],
            "return_end_token": True,
            "max_batch_size": case.batch,
            **settings,
        }

    def generate(self) -> Rows:
        results = self.generator.generate_batch(self.prompts, **self.options)
        return [result.sequences_ids[0] for result in results]

    def first_token(self) -> float:
        began = time.perf_counter()
        one = {**self.options, "max_length": 1}
        self.generator.generate_batch(self.prompts[: self.options["max_batch_size"]], **one)
        return time.perf_counter() - began
