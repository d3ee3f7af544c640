r"""Forced first token: $\ell_\mathrm{bos} = 0$ and $-\infty$ for all others when a row begins.

Liu et al., "Multilingual denoising pre-training for neural machine translation" (mBART), TACL 2020,
arXiv:2001.08210, where the first token names the language.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purgen.concrete import is_concrete
from purgen.logits import forbid_nan
from purgen.settings import check_vocabulary, per_row, setting
from purgen.transforms.base import LogitsTransform
from purgen.transforms.positions import begin_per_row, num_tokens, optional_setting
from purgen.view import TokenView

__all__ = ["forced_bos"]


def forced_bos(
    bos_token_id: int | Tensor, *, begin_index: int | Tensor | None = 1
) -> LogitsTransform:
    """Forces a token where a row has `begin_index` tokens: its logit becomes 0, all others -inf.

    The default acts after the decoder start token of an encoder-decoder model, and nowhere in a row
    whose prompt is longer, as in transformers (of which pads are no part here). With None the first
    new token is forced, whatever the prompt.

    Args:
        bos_token_id: the token; an int, 0-d or [B] int64 tensor (a language a row).
        begin_index: how many tokens a row has when it is forced; an int, 0-d or [B] int64 tensor, or
            None for the length of its prompt.

    Returns:
        A `LogitsTransform`. Equal to `ForcedBOSTokenLogitsProcessor` on rows without pads.

    Raises:
        TypeError: not integers.
        ValueError: `begin_index` negative, an id outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.forced_bos(2)
        >>> view = purgen.testing.example_view([[5], [5]], vocab_size=3)
        >>> transform.apply(transform.init(view), torch.ones(2, 3), view)[0]
        tensor([[-inf, -inf, 0.],
                [-inf, -inf, 0.]])
    """
    owner = "forced_bos"
    forced = setting(owner, "bos_token_id", bos_token_id, low=0, integer=True)
    begin = optional_setting(owner, "begin_index", begin_index)

    def init(context: TokenView) -> dict[str, Tensor]:
        if is_concrete(forced):
            check_vocabulary(owner, "bos_token_id", forced, context)
        return {
            "token": per_row(owner, "bos_token_id", forced, context),
            "begin": begin_per_row(owner, "begin_index", begin, context),
        }

    def apply(
        tstate: dict[str, Tensor], logits: Tensor, view: TokenView
    ) -> tuple[Tensor, dict[str, Tensor]]:
        begins = num_tokens(view) == tstate["begin"]
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        alone = torch.where(vocabulary == tstate["token"][:, None], 0.0, -torch.inf)
        scores = torch.where(begins[:, None], alone.to(logits.dtype), forbid_nan(logits))
        return scores, tstate

    return LogitsTransform(init, apply)
