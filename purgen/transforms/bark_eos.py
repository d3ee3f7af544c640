r"""Bark's early end: eos alone where $p_\mathrm{eos} > m$.

Suno, "Bark: text-prompted generative audio model", 2023, https://github.com/suno-ai/bark
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.settings import check_vocabulary, per_row, setting, token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.by_id import forbid, is_one_of
from purgen.view import TokenView

__all__ = ["bark_eos"]


def bark_eos(
    eos_token_id: int | Iterable[int] | Tensor, *, min_eos_p: float | Tensor
) -> LogitsTransform:
    """Forbids all but the eos tokens where one of these is likelier than `min_eos_p`.

    Args:
        eos_token_id: an id or several, each compared by itself.
        min_eos_p: in (0, 1]; a float, 0-d or [B] tensor. At 1 nothing changes.

    Returns:
        A `LogitsTransform`. Equal to `BarkEosPrioritizerLogitsProcessor`.

    Raises:
        TypeError: not integers, or no number.
        ValueError: `min_eos_p` outside (0, 1]; no id, or one outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.bark_eos(0, min_eos_p=torch.tensor([0.2, 0.3]))
        >>> view = purgen.testing.example_view(batch_size=2, vocab_size=4)
        >>> transform.apply(transform.init(view), torch.zeros(2, 4), view)[0]
        tensor([[0., -inf, -inf, -inf],
                [0., 0., 0., 0.]])
    """
    ids = token_ids("bark_eos", "eos_token_id", eos_token_id)
    least = setting("bark_eos", "min_eos_p", min_eos_p, above=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        check_vocabulary("bark_eos", "eos_token_id", ids, context)
        return per_row("bark_eos", "min_eos_p", least, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        is_eos = is_one_of(ids, logits)
        likely = log_softmax(logits).exp() > tstate[:, None]
        ends = (likely & is_eos).any(dim=-1, keepdim=True)
        return forbid(forbid_nan(logits), ends & ~is_eos), tstate

    return LogitsTransform(init, apply)
