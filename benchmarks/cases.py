"""What is generated: models, batches, decodings and prompts; and the figures aimed at."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

Rows = list[list[int]]  # the new tokens of each prompt, the end token among them

MODELS = ("tiny", "smollm2", "shape")
DTYPES = ("float32", "bfloat16")
DECODINGS = ("greedy", "sample", "penalty", "skewed")
PROMPT_LENGTH = 32  # tokens of each prompt where all are of one length
SKEWED_PROMPTS = 64
TOP_P = 0.9
SETTINGS: dict[str, dict[str, Any]] = {  # by the names that transformers gives them
    "greedy": {},
    "sample": {"top_p": TOP_P},
    "penalty": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    "skewed": {},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One piece of work that every engine does.

    Attributes:
        model: "tiny" (random Llama: 2 layers, hidden 64, vocabulary 512), "smollm2" (the real
            checkpoint) or "shape" (random weights in the shape of SmolLM2).
        batch: rows at a time.
        dtype: of the weights.
        decoding: "greedy", "sample" (top-p), "penalty" (greedy under a repetition penalty and a ban
            on repeated trigrams) or "skewed" (greedy to the end token, 64 prompts).
        new_tokens: of a row; in "skewed" the most.
    """

    model: str
    batch: int
    dtype: str = "float32"
    decoding: str = "greedy"
    new_tokens: int = 64

    @property
    def name(self) -> str:
        """The name that `parse` takes, such as "smollm2/32/float32/sample"."""
        return f"{self.model}/{self.batch}/{self.dtype}/{self.decoding}"

    @classmethod
    def parse(cls, text: str, *, new_tokens: int | None = None) -> Case:
        """Makes a case of "model/batch", then a dtype, a decoding or both: "smollm2/1/bfloat16".

        Raises:
            ValueError: the text is none of that; the message says what would be.
        """
        model, batch, *rest = text.split("/") if "/" in text else (text, "")
        dtypes = [part for part in rest if part in DTYPES]
        decodings = [part for part in rest if part in DECODINGS]
        known = model in MODELS and batch.isdigit() and int(batch) > 0
        if (
            not known
            or len(rest) != len(dtypes) + len(decodings)
            or max(len(dtypes), len(decodings)) > 1
        ):
            raise ValueError(
                f"case must be MODEL/BATCH[/DTYPE][/DECODING] out of {MODELS}, {DTYPES} and "
                f"{DECODINGS}, such as smollm2/1/bfloat16, not {text!r}"
            )
        decoding = decodings[0] if decodings else "greedy"
        usual = 200 if model == "tiny" else 160 if decoding == "skewed" else 64
        return cls(model, int(batch), (dtypes or ["float32"])[0], decoding, new_tokens or usual)


def everything() -> list[str]:
    """Returns the names of the whole grid."""
    grid = itertools.product(("tiny", "smollm2"), (1, 8, 32), DTYPES, DECODINGS[:3])
    return ["/".join(map(str, parts)) for parts in grid] + ["smollm2/16/skewed"]


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure to be reached.

    Attributes:
        case: name of the case.
        ours: the engine; "purgen" for the fastest.
        against: engine, "best" (the fastest configuration of transformers), "limit", or "greedy"
            (this engine itself in the same case without sampling).
        least: speed of purgen over theirs.
    """

    case: str
    ours: str
    against: str
    least: float


TARGETS = (
    Target("tiny/1/float32/greedy", "purgen/while", "best", 3.0),
    Target("tiny/1/float32/greedy", "purgen/while", "transformers/dynamic", 5.0),
    Target("tiny/32/float32/greedy", "purgen/while", "best", 1.8),
    Target("smollm2/1/float32/greedy", "purgen", "best", 2.7),
    Target("smollm2/1/float32/greedy", "purgen", "ctranslate2", 1.0),
    Target("smollm2/1/float32/greedy", "purgen", "limit", 0.75),
    Target("smollm2/1/bfloat16/greedy", "purgen", "best", 2.2),
    Target("smollm2/32/float32/sample", "purgen", "best", 1.4),
    Target("smollm2/32/float32/sample", "purgen", "greedy", 0.95),
    Target("smollm2/16/float32/skewed", "purgen", "best", 1.5),
)
# The greedy run that one target needs is among them.
TARGET_CASES = (*dict.fromkeys(target.case for target in TARGETS), "smollm2/32/float32/greedy")

_SUBJECTS = (
    "the history of lighthouses", "how bread rises", "the life of Marie Curie", "sailing knots",
    "why the sky is blue", "the rules of chess", "volcanoes of Iceland", "growing tomatoes",
    "the invention of paper", "how bridges carry load", "the moons of Jupiter", "making cheese",
    "the Silk Road", "how vaccines work", "the migration of birds", "medieval castles",
)  # fmt: skip
_SHORT = (
    "What is the capital of {}? Answer with one word.", "Is {} a country? Answer yes or no.",
    "Name one river in {}.", "Which continent is {} in? One word.",
)  # fmt: skip
_PLACES = ("France", "Japan", "Brazil", "Egypt", "Canada", "India", "Kenya", "Norway")


def prompts_of(case: Case, tokenizer: Any) -> list[list[int]]:
    """Returns the prompts as token ids.

    All of one length, but in "skewed": short questions and long requests in turn, through the chat
    template, so that answers end after a few tokens or not before hundreds.
    """
    if case.decoding == "skewed":
        return [
            list(tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            ))
            for text in _skewed()
        ]  # fmt: skip
    if case.model == "smollm2":
        texts = (
            f"The following is chapter {row + 1} of a book about {_SUBJECTS[row % len(_SUBJECTS)]}, "
            "written for readers who are curious and patient, and who have no training in the subject."
            " It begins with a question, gives several answers"
            for row in range(case.batch)
        )
        return [tokenizer.encode(text)[:PROMPT_LENGTH] for text in texts]
    generator = torch.Generator().manual_seed(0)
    shape = (case.batch, PROMPT_LENGTH)
    return torch.randint(16, len(tokenizer), shape, generator=generator).tolist()


def _skewed() -> list[str]:
    texts = []
    for index in range(SKEWED_PROMPTS):
        if index % 4 == 3:
            texts.append(f"Tell me in detail about {_SUBJECTS[index // 4]}.")
        else:
            question = _SHORT[index % len(_SHORT)]
            texts.append(question.format(_PLACES[index // 4 % len(_PLACES)]))
    return texts
