"""Bad words: sequences of tokens that must not occur.

The last token of a sequence is forbidden where the tokens before it are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from purgen.settings import token_ids
from purgen.transforms.base import LogitsTransform
from purgen.transforms.seen import forbid_tokens
from purgen.transforms.sequences import check_sequences, sequence_of_ids, sequence_table
from purgen.view import TokenView

__all__ = ["bad_words"]


def bad_words(
    bad_words_ids: Sequence[Sequence[int]],
    *,
    eos_token_id: int | Iterable[int] | Tensor | None = None,
) -> LogitsTransform:
    """Forbids the token that would complete one of the given sequences.

    A sequence of one token is forbidden everywhere. One that reaches back before the start of a row
    never fires; pads are no tokens.

    Args:
        bad_words_ids: `[[id, …], …]`.
        eos_token_id: ids that end a row, so that forbidding one by mistake is noticed; a sequence that
            is just one of them is refused. Leave it out to forbid an eos id.

    Returns:
        A `LogitsTransform`. Equal to `NoBadWordsLogitsProcessor` on rows without pads; that class
        drops a sequence that is an eos id without a word.

    Raises:
        TypeError: an id is no integer.
        ValueError: no sequence, an empty one, one that is an eos id, an id outside the vocabulary.

    Example:
        >>> import torch, purgen
        >>> transform = purgen.bad_words([[3], [1, 2]])
        >>> view = purgen.testing.example_view([[0, 1], [1, 0]], vocab_size=4)
        >>> transform.apply(transform.init(view), torch.zeros(2, 4), view)[0]
        tensor([[0., 0., -inf, -inf],
                [0., 0., 0., -inf]])
    """
    owner, name = "bad_words", "bad_words_ids"
    if isinstance(bad_words_ids, str) or not isinstance(bad_words_ids, Iterable):
        raise TypeError(f"{owner}: {name} must be [[id, …], …], not {bad_words_ids!r}")
    words = [sequence_of_ids(owner, name, ids) for ids in bad_words_ids]
    if not words:
        raise ValueError(f"{owner}: {name} is empty; it must hold a sequence of token ids")
    if eos_token_id is not None:
        for end in token_ids(owner, "eos_token_id", eos_token_id, empty=True).tolist():
            if (end,) in words:
                raise ValueError(
                    f"{owner}: {name} holds [{end}], which is an eos id: rows could not end there. "
                    "Leave it out, or leave eos_token_id out to forbid it"
                )
    table = sequence_table(words)

    def init(context: TokenView) -> tuple[()]:
        check_sequences(owner, name, words, context)
        return ()

    def apply(tstate: tuple[()], logits: Tensor, view: TokenView) -> tuple[Tensor, Any]:
        hits = table.completed(view)
        tokens = table.last.to(logits.device).expand(hits.shape)
        return forbid_tokens(logits, tokens, hits), tstate

    return LogitsTransform(init, apply)
