r"""SynthID-Text: tournament sampling, as a change of probabilities.

For each layer $l$ in turn, $p_v \to p_v (1 + g_l(v) - \sum_w p_w g_l(w))$, where $g_l(v)$, 0 or 1, is a
keyed hash of the newest tokens and $v$.

Dathathri et al., "Scalable watermarking for identifying large language model outputs", Nature 634,
2024, doi:10.1038/s41586-024-08025-4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purgen.logits import forbid_nan
from purgen.transforms.base import LogitsTransform
from purgen.view import TokenView
from purgen.watermark.synthid import check_synthid, g_value, hash_of, make_table

__all__ = ["synthid_watermark"]

OWNER = "synthid_watermark"


def synthid_watermark(
    ngram_len: int,
    *,
    keys: Sequence[int],
    sampling_table_size: int = 2**16,
    sampling_table_seed: int = 0,
    sampling_table: Tensor | None = None,
    context_history_size: int = 1024,
    skip_first_ngram_calls: bool = False,
) -> LogitsTransform:
    """Favours tokens with g-values of 1; `purgen.watermark.detect_synthid` averages them later.

    The context of a token is the `ngram_len - 1` new tokens before it, with zeros where there are not
    so many: the prompt and pads are no part of it. Where a context was there among the last
    `context_history_size`, logits pass unchanged. Otherwise log-probabilities come out. It is for
    sampling; greedy decoding hardly marks.

    Args:
        ngram_len: how many tokens are hashed together, at least 2.
        keys: the secret, a number a layer; 20 to 30 of them are usual.
        sampling_table_size: bits in the table of g-values, at most 2**24.
        sampling_table_seed: what the table is made from.
        sampling_table: the table itself, integers 0 and 1 [size], in place of size and seed: such as
            the one that a processor of transformers holds.
        context_history_size: how many contexts back a repetition is noticed.
        skip_first_ngram_calls: whether the first `ngram_len - 1` new tokens are left alone.

    Returns:
        A `LogitsTransform`; its state is the history, int64 [B, context_history_size]. Equal to
        `SynthIDTextWatermarkLogitsProcessor` on a CPU (elsewhere that has another table), but that a
        forbidden token stays at -inf, where that makes it the least finite number.

    Raises:
        TypeError: no integers.
        ValueError: a number out of range, no key.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.synthid_watermark(3, keys=[654, 400, 836])
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> tstate = transform.init(view)
        >>> logits, tstate = transform.apply(tstate, torch.zeros(1, 4), view)
        >>> logits.exp()
        tensor([[0.2227, 0.2227, 0.0352, 0.5195]])
        >>> transform.apply(tstate, torch.zeros(1, 4), view)[0]  # the same context again
        tensor([[0., 0., 0., 0.]])
    """
    keys = list(keys)
    check_synthid(OWNER, ngram_len, keys, sampling_table_size, context_history_size)
    table = make_table(OWNER, sampling_table_size, sampling_table_seed, sampling_table)

    def init(context: TokenView) -> Tensor:
        return context.tokens.new_zeros(len(context.tokens), context_history_size)

    def apply(tstate: Tensor, logits: Tensor, view: TokenView) -> tuple[Tensor, Tensor]:
        slots = (view.length - ngram_len + 1)[:, None] + torch.arange(
            ngram_len - 1, device=logits.device
        )
        newest = view.tokens.gather(1, slots.clamp(min=0))
        context = hash_of(torch.where(slots >= view.prompt_length[:, None], newest, 0))[:, None]
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        hashed = hash_of(vocabulary[:, None], begin=context)  # [B, V]

        scores = forbid_nan(logits)
        marked = _tournament(scores, hashed, keys, table.to(logits.device))
        repeated = (tstate == context).any(dim=1)
        history = torch.cat([context, tstate], dim=1)[:, :context_history_size].contiguous()
        passes = repeated
        if skip_first_ngram_calls:
            skipped = view.num_new_tokens < ngram_len - 1
            passes = passes | skipped
            history = torch.where(skipped[:, None], tstate, history)
        return torch.where(passes[:, None], scores, marked), history

    return LogitsTransform(init, apply)


def _tournament(scores: Tensor, hashed: Tensor, keys: Sequence[int], table: Tensor) -> Tensor:
    """Returns the log-probabilities after all layers, [B, V] in the dtype of `scores`."""
    best = scores.amax(dim=-1, keepdim=True)
    certain = torch.where(scores == torch.inf, 0.0, -torch.inf)  # they share all probability
    finite = torch.where(best == torch.inf, certain, scores.float())
    probability = torch.softmax(torch.where(best == -torch.inf, 0.0, finite), dim=-1)
    for key in keys:
        value = g_value(hashed, key, table)
        mass = (value * probability).sum(dim=1, keepdim=True)
        probability = probability * (1 + value - mass)
    # What vanished is not forbidden: like transformers, give it the least finite number. (By rounding
    # a probability may end below 0.)
    least = torch.finfo(scores.dtype).min
    marked = torch.nan_to_num(probability.log(), nan=least, neginf=least).to(scores.dtype)
    return torch.where(scores == -torch.inf, scores, marked)
