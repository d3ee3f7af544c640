r"""Top-a: only tokens of at least a share of the square of the best probability.

$p_i \ge a \max_j p_j^2$.

BlinkDL, RWKV-LM, 2022, https://github.com/BlinkDL/RWKV-LM#the-top-a-sampling-method; the form above
is that of KoboldAI and text-generation-webui.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_at_least, keep_only
from purgen.view import TokenView

__all__ = ["top_a"]


def top_a(
    top_a: float | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids tokens less likely than `top_a` times the square of the best probability.

    Strict where the model is sure, lenient where it is not. At 0 all stay; the best always does.

    Args:
        top_a: in [0, 1]; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`.

    Raises:
        ValueError: `top_a` outside [0, 1], `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.top_a(0.5)  # from 0.18 up
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.6000, 0.3000, 0.0000]])
    """
    check_min_tokens("top_a", min_tokens_to_keep)
    share = setting("top_a", "top_a", top_a, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("top_a", "top_a", share, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        share = tstate[:, None]
        logprobs = log_softmax(scores)
        best = logprobs.amax(dim=-1, keepdim=True)
        threshold = torch.where(share > 0, share.log() + 2 * best, -torch.inf)
        keep = logprobs >= threshold
        if min_tokens_to_keep > 1:
            keep = keep_at_least(keep, scores, min_tokens_to_keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
