"""Every public piece, as the contract tests try it. A new piece is one line here."""

from __future__ import annotations

from collections.abc import Callable

import torch

import purgen
from purgen import Decoder, LogitsTransform, Model, StopRule

ROWS = 4  # the batch size of the contract tests


def per_row(*values: float) -> torch.Tensor:
    return torch.tensor(values)


TRANSFORMS: dict[str, list[Callable[[], LogitsTransform]]] = {
    "chain": [
        purgen.chain,
        lambda: purgen.chain(
            purgen.repetition_penalty(1.3),
            purgen.temperature(0.7),
            purgen.top_k(20),
            purgen.top_p(0.9),
            purgen.min_p(0.02),
        ),
    ],
    "min_p": [
        lambda: purgen.min_p(0.1),
        lambda: purgen.min_p(per_row(0.0, 0.1, 0.5, 1.0), min_tokens_to_keep=3),
    ],
    "named_chain": [
        lambda: purgen.named_chain(heat=purgen.temperature(2.0), best=purgen.top_k(3)),
        lambda: purgen.named_chain(("best", purgen.top_k(3)), ("nucleus", purgen.top_p(0.5))),
    ],
    "repetition_penalty": [
        lambda: purgen.repetition_penalty(1.5),
        lambda: purgen.repetition_penalty(per_row(0.5, 1.0, 1.5, 9.0), scope="generated"),
        lambda: purgen.repetition_penalty(1.2, normalize=True, exempt=[0, 3], scope="prompt"),
        lambda: purgen.repetition_penalty(1.2, prompt_ignore_length=torch.tensor([0, 1, 2, 3])),
    ],
    "stateless": [lambda: purgen.stateless(lambda logits, view: logits * 0.5)],
    "temperature": [
        lambda: purgen.temperature(0.7),
        lambda: purgen.temperature(0.0),
        lambda: purgen.temperature(per_row(0.0, 1e-40, 1.0, 3.0)),
    ],
    "top_k": [
        lambda: purgen.top_k(5),
        lambda: purgen.top_k(torch.tensor([1, 2, 33, 64]), min_tokens_to_keep=2),
    ],
    "top_p": [
        lambda: purgen.top_p(0.8),
        lambda: purgen.top_p(per_row(0.0, 0.3, 0.99, 1.0), min_tokens_to_keep=2),
    ],
    "when": [lambda: purgen.when(lambda view: view.num_new_tokens % 2 == 0, purgen.top_k(4))],
}

STOP_RULES: dict[str, list[Callable[[], StopRule]]] = {
    "all_of": [lambda: purgen.all_of(purgen.eos([1, 2]), purgen.max_new_tokens(3))],
    "any_of": [
        purgen.any_of,
        lambda: purgen.any_of(purgen.eos([1, 2]), purgen.max_length(12), purgen.max_new_tokens(9)),
    ],
    "eos": [lambda: purgen.eos(3), lambda: purgen.eos([3, 1])],
    "max_length": [
        lambda: purgen.max_length(12),
        lambda: purgen.max_length(torch.tensor([8, 9, 11, 30])),
    ],
    "max_new_tokens": [
        lambda: purgen.max_new_tokens(5),
        lambda: purgen.max_new_tokens(torch.tensor([1, 2, 3, 50])),
    ],
    "when": [lambda: purgen.when(lambda view: view.num_new_tokens > 2, purgen.eos([1, 2]))],
}

STRATEGIES: dict[str, list[Callable[[Model], Decoder]]] = {
    "greedy": [
        purgen.greedy,
        lambda model: purgen.greedy(
            model,
            transform=purgen.repetition_penalty(per_row(1.0, 1.1, 1.5, 2.0)),
            stop=purgen.any_of(purgen.eos([3, 4]), purgen.max_new_tokens(9)),
        ),
    ],
    "sample": [
        purgen.sample,
        lambda model: purgen.sample(
            model,
            transform=purgen.chain(purgen.temperature(1.5), purgen.top_k(9), purgen.top_p(0.9)),
        ),
    ],
    "token_strategy": [
        lambda model: purgen.token_strategy(
            model, lambda logits, state: logits.topk(2, dim=-1).indices[:, 1]
        )
    ],
}


def cases(table: dict) -> list:
    """The entries of a table as pytest parameters `name-index`."""
    import pytest

    return [
        pytest.param(make, id=f"{name}-{index}")
        for name, makers in table.items()
        for index, make in enumerate(makers)
    ]
