r"""Top-H: only the best tokens that hold a share of the entropy.

The first k tokens in order of probability, for the largest k with
$\sum_{i \le k} -p_i \log p_i \le h\, H(p)$.

Baghaei Potraghloo, Azizi, Kundu and Pedram, "Top-H decoding: adapting the creativity and coherence
with bounded entropy in text generation", NeurIPS 2025, arXiv:2509.02510. The paper bounds the
entropy of the tokens that stay after renormalisation; the sum above is what transformers bounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.logits import forbid_nan, log_softmax
from purgen.settings import per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.filtering import check_min_tokens, keep_only
from purgen.view import TokenView

__all__ = ["top_h"]


def top_h(
    top_h: float | Tensor, *, filter_value: float = float("-inf"), min_tokens_to_keep: int = 1
) -> LogitsTransform:
    """Forbids tokens once those before them, in order of probability, hold a share of the entropy.

    A token stays if it and those before it hold at most `top_h` times the entropy, so the set ends
    with the token that holds it exactly; of tied tokens the lower id comes first. At 0 the best token
    stays, at 1 all do.

    Args:
        top_h: in [0, 1]; a float, 0-d or [B] tensor.
        filter_value: logit of the forbidden tokens.
        min_tokens_to_keep: keeps at least so many.

    Returns:
        A `LogitsTransform`. Equal to `TopHLogitsWarper` up to a vocabulary of 100. Beyond it that
        class looks at the 100 best tokens only, and at their entropy; here all count. It also
        raises on a row without a token, which here stays as it is.

    Raises:
        ValueError: `top_h` outside [0, 1], `min_tokens_to_keep` below 1.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.top_h(0.75)  # 0.31 and 0.36 of an entropy of 0.90
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=3)
        >>> logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
        >>> transform.apply(transform.init(view), logits, view)[0].exp()
        tensor([[0.6000, 0.3000, 0.0000]])
    """
    check_min_tokens("top_h", min_tokens_to_keep)
    share = setting("top_h", "top_h", top_h, low=0.0, high=1.0)

    def init(context: TokenView) -> Tensor:
        return per_row("top_h", "top_h", share, context)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        scores = forbid_nan(logits)
        share = tstate[:, None]
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        logprobs = log_softmax(ordered)
        probability = logprobs.exp()
        # 0 · log 0 is 0: with a finite logarithm the product is that.
        terms = -probability * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)
        held = terms.cumsum(dim=-1)
        # Where the probability is too small for float32, so is the entropy that it would exceed.
        keep = (held <= share * held[:, -1:]) & (probability > 0)
        rank = torch.arange(scores.shape[-1], device=scores.device)
        keep = keep | (rank < min_tokens_to_keep) | (share >= 1)
        keep = torch.zeros_like(keep).scatter(-1, order, keep)
        return keep_only(scores, keep, filter_value), tstate

    return LogitsTransform(init, apply)
