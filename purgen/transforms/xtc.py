r"""XTC (exclude top choices): now and then, all viable tokens but the least likely go.

Weidmann (p-e-w), "Exclude top choices (XTC): a sampler that boosts creativity, breaks writing
clichés, and inhibits non-verbatim repetition", 2024,
https://github.com/oobabooga/text-generation-webui/pull/6335.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from purgen import random
from purgen.logits import forbid_nan, log_softmax
from purgen.settings import check_vocabulary, per_row, setting, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import keep_only
from purgen.view import TokenView, step_key

__all__ = ["xtc"]

TAG = 0x585443  # "XTC", folded into the key of the step: a draw that no one else makes


def xtc(
    probability: float | Tensor,
    *,
    threshold: float | Tensor = 0.1,
    special_token_ids: int | Iterable[int] | Tensor = (),
    filter_value: float = float("-inf"),
) -> LogitsTransform:
    """With some probability, forbids every token above a threshold except the least likely of them.

    A token is viable if its probability is at least `threshold`. Where two or more are, the row
    draws; if it acts, of the viable tokens only the least likely one stays (of tied ones the one with
    the highest id), beside all that are not viable. Above a threshold of 0.5 nothing ever happens.

    The draw depends on the row's key and on the index of the token alone. Two of these in one chain
    draw the same number.

    Args:
        probability: of acting at a step, in [0, 1]; a float, 0-d or [B] tensor.
        threshold: probability from which a token is viable, in [0, 1]; likewise.
        special_token_ids: ids, such as eos and the line break, that are never excluded: where one of
            them would be, the row does not act.
        filter_value: logit of the forbidden tokens.

    Returns:
        A `LogitsTransform`. A generation with it needs `rng_key`, also a greedy one.

    Raises:
        ValueError: a number outside [0, 1], an id outside the vocabulary; from `init`, a generation
            without a random key.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.xtc(1.0, threshold=0.15)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.0000, 0.0000, 0.2000, 0.1000]])
    """
    chance = setting("xtc", "probability", probability, low=0.0, high=1.0)
    bound = setting("xtc", "threshold", threshold, low=0.0, high=1.0)
    special = token_ids("xtc", "special_token_ids", special_token_ids, empty=True)

    def init(context: TokenView) -> dict[str, Tensor]:
        step_key(context)  # raises where there is no key to draw with
        check_vocabulary("xtc", "special_token_ids", special, context)
        return {
            "probability": per_row("xtc", "probability", chance, context),
            "threshold": per_row("xtc", "threshold", bound, context),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        scores = forbid_nan(logits)
        viable = log_softmax(scores).exp() >= tstate["threshold"][:, None]
        viable = viable & (scores > -torch.inf)
        lowest = torch.where(viable, scores, torch.inf).amin(dim=-1, keepdim=True)
        token = torch.arange(scores.shape[-1], device=scores.device)
        least = torch.where(viable & (scores == lowest), token, -1).amax(dim=-1, keepdim=True)
        excluded = viable & (token != least)
        acts = random.bernoulli(random.fold_in(step_key(view), TAG), tstate["probability"])
        if special.numel():
            acts = acts & ~excluded.index_select(1, special.to(scores.device)).any(dim=-1)
        return keep_only(scores, ~(excluded & acts[:, None]), filter_value), tstate

    return LogitsTransform(init, apply)
