"""Top-k: only the k best tokens may be chosen.

Fan, Lewis and Dauphin, "Hierarchical neural story generation", ACL 2018, arXiv:1805.04833.
"""

from __future__ import annotations

from torch import Tensor

from purgen.concrete import is_concrete
from purgen.logits import forbid_nan
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["top_k"]


def top_k(
    top_k: int | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids all but the k tokens with the highest logits.

    Tokens tied with the k-th stay too. The cost is that of finding the best tokens, up to the next
    power of two above the largest k: changing k within that compiles nothing anew.

    Args:
        top_k: at least 1; more than V means all. An int, 0-d or [B] int64 tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`. Equal to `TopKLogitsWarper`.

    Raises:
        TypeError: `top_k` is no integer.
        ValueError: `top_k` or `min_tokens_to_keep` is below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.top_k(2)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> transform.apply(transform.init(view), torch.tensor([[1.0, 3.0, 2.0, 0.0]]), view)[0]
        tensor([[-inf, 3., 2., -inf]])
    """
    check_min_tokens("top_k", min_tokens_to_keep)
    count = setting("top_k", "top_k", top_k, low=1, integer=True).clamp(min=min_tokens_to_keep)
    # How many of the best are looked at: static, since it is a shape. Under vmap it is not known.
    bound = 1 << (int(count.max()) - 1).bit_length() if is_concrete(count) else None

    def init(context: TokenView) -> Tensor:
        return per_row("top_k", "top_k", count, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        looked_at = min(bound or scores.shape[-1], scores.shape[-1])
        best = scores.topk(looked_at, dim=-1).values
        threshold = best.gather(-1, (tstate.clamp(1, looked_at) - 1)[:, None])
        return keep_only(scores, scores >= threshold, filter_value), tstate

    return LogitsTransform(init, apply)
