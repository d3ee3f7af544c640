"""Each transform beside its transformers class: how to draw settings, how to make both."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from hypothesis import strategies as st

import purgen
from purgen import LogitsTransform, TokenView

VOCAB = 40
NEAR = 1e-6  # relative, for logits that are computed and not only kept or forbidden


@dataclasses.dataclass(frozen=True)
class Parity:
    """One class of transformers and what is to equal it.

    Attributes:
        settings: strategy of the factory's keyword arguments.
        ours: factory.
        theirs: `(settings, input_ids) -> LogitsProcessor`.
        undecided: `(settings, logits) -> bool [B, V]`, tokens at an edge that float32 rounding decides.
    """

    settings: st.SearchStrategy[dict[str, Any]]
    ours: Callable[..., LogitsTransform]
    theirs: Callable[[dict[str, Any], torch.Tensor], Any]
    undecided: Callable[[dict[str, Any], torch.Tensor], torch.Tensor] | None = None

    @property
    def principal(self) -> str:
        """The name of the setting that the factory takes positionally."""
        return next(iter(inspect.signature(self.ours).parameters))


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    bounds = torch.tensor([low, high]).tolist()  # as float32 has them
    return st.floats(*bounds, width=32, allow_subnormal=False)


KEEP = st.integers(1, VOCAB + 3)


def near_mass(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens before which, in order of probability, the mass is p but for rounding."""
    ordered, order = logits.double().softmax(-1).sort(descending=True, stable=True)
    before = torch.nn.functional.pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    near = (before - settings["top_p"]).abs() < 1e-5
    return torch.zeros_like(near).scatter(-1, order, near)


def near_share(settings: dict[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Tokens whose share of the best probability is min_p, or 0, but for rounding."""
    share = (logits.double() - logits.double().amax(-1, keepdim=True)).exp()
    return ((share - settings["min_p"]).abs() < 1e-5 * settings["min_p"]) | (share < 1e-35)


PARITY: dict[str, Parity] = {
    "temperature": Parity(
        st.fixed_dictionaries({"temperature": numbers(0.01, 50)}),
        purgen.temperature,
        lambda settings, ids: transformers.TemperatureLogitsWarper(**settings),
    ),
    "top_k": Parity(
        st.fixed_dictionaries(
            {"top_k": st.integers(1, VOCAB + 9)}, optional={"min_tokens_to_keep": KEEP}
        ),
        purgen.top_k,
        lambda settings, ids: transformers.TopKLogitsWarper(**settings),
    ),
    "top_p": Parity(
        st.fixed_dictionaries({"top_p": numbers(0, 1)}, optional={"min_tokens_to_keep": KEEP}),
        purgen.top_p,
        lambda settings, ids: transformers.TopPLogitsWarper(**settings),
        near_mass,
    ),
    "min_p": Parity(
        st.fixed_dictionaries({"min_p": numbers(0, 1)}, optional={"min_tokens_to_keep": KEEP}),
        purgen.min_p,
        lambda settings, ids: transformers.MinPLogitsWarper(**settings),
        near_share,
    ),
    "repetition_penalty": Parity(
        st.fixed_dictionaries(
            {"penalty": numbers(0.1, 10)}, optional={"prompt_ignore_length": st.integers(0, 9)}
        ),
        purgen.repetition_penalty,
        lambda settings, ids: transformers.RepetitionPenaltyLogitsProcessor(**settings),
    ),
}


def view_of_ids(ids: torch.Tensor, prompt_length: int, pads: int = 0, pad: int = 0) -> TokenView:
    """The view of rows [B, L] without pads, shifted right by `pads` of id `pad`."""
    batch, width = ids.shape
    tokens = torch.nn.functional.pad(ids, (pads, 3), value=pad)
    length = torch.full((batch,), width + pads)
    prompt = torch.full((batch,), prompt_length + pads)
    return TokenView(
        tokens=tokens,
        start=torch.full((batch,), pads),
        length=length,
        prompt_length=prompt,
        num_new_tokens=length - prompt,
        rng_key=purgen.random.split(purgen.random.key(0), batch),
        elapsed=torch.zeros(batch),
        logprob=torch.zeros(batch),
        entropy=torch.zeros(batch),
        vocab_size=VOCAB,
        max_new_tokens=3,
    )
