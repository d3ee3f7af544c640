"""Repetition penalty: tokens that are there already become less likely.

Keskar et al., "CTRL: a conditional transformer language model for controllable generation", 2019,
arXiv:1909.05858.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.settings import check_vocabulary, per_row, setting, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.seen import change_logits, check_scope, in_scope, member_of
from purgen.view import TokenView

__all__ = ["repetition_penalty"]


def repetition_penalty(
    penalty: float | Tensor,
    *,
    prompt_ignore_length: int | Tensor | None = None,
    scope: str = "all",
    exempt: int | Iterable[int] | Tensor = (),
    normalize: bool = False,
) -> LogitsTransform:
    """Divides positive logits of tokens seen by `penalty` and multiplies negative ones by it.

    Each token is penalised once, however often it was seen. Pads never count. The rule depends on
    where the model puts zero among its logits; with `normalize` it works on log-probabilities and
    so does not: `log p` of a token seen becomes `penalty · log p`.

    Args:
        penalty: above 0; above 1 discourages, below 1 encourages. A float, 0-d or [B] tensor.
        prompt_ignore_length: how many leading tokens of a row do not count; an int, 0-d or [B] tensor.
        scope: which tokens count: "all", those of the "prompt", or those "generated".
        exempt: ids that are never penalised.
        normalize: whether to take log-probabilities first.

    Returns:
        A `LogitsTransform`. Equal to `RepetitionPenaltyLogitsProcessor` on rows without pads.

    Raises:
        ValueError: `penalty` not above 0, an unknown `scope`, a negative length, an id outside the
            vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.repetition_penalty(2.0, exempt=[1])
        >>> view = purgen.testing.example_view([[0, 1, 2]], vocab_size=4)
        >>> logits = torch.tensor([[4.0, 4.0, -4.0, 4.0]])
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[ 2.,  4., -8.,  4.]])
    """
    owner = "repetition_penalty"
    largest = torch.finfo(torch.float32).max
    strength = setting(owner, "penalty", penalty, above=0.0, high=largest)
    ignored = setting(
        owner,
        "prompt_ignore_length",
        0 if prompt_ignore_length is None else prompt_ignore_length,
        low=0,
        integer=True,
    )
    spared = token_ids(owner, "exempt", exempt, empty=True)
    is_spared = member_of(spared)
    check_scope(owner, scope)

    def init(context: TokenView) -> dict[str, Any]:
        check_vocabulary(owner, "exempt", spared, context)
        return {
            "penalty": per_row(owner, "penalty", strength, context),
            "ignored": per_row(owner, "prompt_ignore_length", ignored, context),
        }

    def apply(tstate: dict[str, Any], logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        slot = torch.arange(view.tokens.shape[1], device=logits.device)
        counts = in_scope(view, scope) & (slot >= (view.start + tstate["ignored"])[:, None])
        counts = counts & ~is_spared(view.tokens)
        strength = tstate["penalty"][:, None]

        def penalised(old: Tensor, _: Tensor) -> Tensor:
            old = old.float()
            return torch.where(old < 0, old * strength, old / strength)

        scores = log_softmax(logits) if normalize else forbid_nan(logits)
        return change_logits(scores, view.tokens, counts, penalised).to(logits.dtype), tstate

    return LogitsTransform(init, apply)
