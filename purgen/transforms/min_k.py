r"""Min-k: only tokens before the steepest drop of the sorted logits.

With logits in descending order and their range $R = \ell_1 - \ell_V$,
$k = \max(\arg\max_i \frac{\ell_i - \ell_{i+1}}{R\, i}, \lfloor \tau / R \rfloor)$.

Ding, Li, Garces Arias, Aßenmacher, Heumann and Zhang, "Min-k sampling: decoupling truncation from
temperature scaling via relative logit dynamics", ACL 2026, arXiv:2604.11012.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["min_k"]


def min_k(
    tau: float | Tensor = 3.0,
    *,
    filter_value: float = float("-inf"),
    min_tokens_to_keep: int = 1,
) -> LogitsTransform:
    """Forbids tokens beyond the steepest drop between neighbours, each drop divided by its rank.

    Where logits are so close to each other that no drop means much, the `tau / range` best stay at
    least. Tokens tied with the last that stays stay too; those that are forbidden already count
    neither as a drop nor in the range. The drop does not depend on temperature, the range does: the
    paper puts temperature after this.

    Args:
        tau: at least 0, at 0 the drop alone decides; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: `tau` negative, infinite or NaN, `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.min_k()
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> logits = torch.tensor([[9.0, 8.0, 2.0, 0.0]])  # drops 1, 6 / 2 and 2 / 3
        >>> transform.apply(transform.init(view), logits, view)[0]
        tensor([[9., 8., -inf, -inf]])
    """
    check_min_tokens("min_k", min_tokens_to_keep)
    largest = torch.finfo(torch.float32).max
    least = setting("min_k", "tau", tau, low=0.0, high=largest)

    def init(context: TokenView) -> Tensor:
        return per_row("min_k", "tau", least, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        vocab_size = scores.shape[-1]
        ordered = scores.sort(dim=-1, descending=True).values.float()
        finite = ordered.isfinite()
        # The range scales all drops alike, so the steepest is found without it.
        rank = torch.arange(1, vocab_size, device=scores.device)
        drop = (ordered[:, :-1] - ordered[:, 1:]) / rank
        drop = torch.where(finite[:, :-1] & finite[:, 1:], drop, -1.0)
        drop = torch.nn.functional.pad(drop, (0, 1), value=-1.0)  # also where V is 1
        cliff = drop.argmax(dim=-1) + 1
        highest = torch.where(finite, ordered, -torch.inf).amax(dim=-1)
        lowest = torch.where(finite, ordered, torch.inf).amin(dim=-1)
        flat = torch.nan_to_num(tstate / (highest - lowest), nan=0.0).clamp(0, vocab_size)
        count = torch.maximum(cliff, flat.long()).clamp(min=min_tokens_to_keep, max=vocab_size)
        keep = scores.float() >= ordered.gather(-1, count[:, None] - 1)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
