"""Stops a row where its text holds a string: an automaton over the bytes of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from purgen.stop_rules.automaton import over_vocabulary, rule_of
from purgen.stop_rules.base import StopRule
from purgen.stop_rules.vocabulary import token_bytes
from purgen.view import TokenView

__all__ = ["stop_strings"]


def stop_strings(
    stop_strings: str | Iterable[str],
    *,
    tokenizer: Any = None,
    vocabulary: Sequence[bytes | None] | None = None,
) -> StopRule:
    """Stops a row when the text of its new tokens holds one of several strings.

    Exact on bytes: a string may begin and end within tokens, span many of them, or share a character
    with its neighbours. The token that completes it stays in the output, whole. Text of the prompt
    does not count. The search is one look-up a step, however many strings there are.

    Special tokens have no text, as in `tokenizer.decode(…, skip_special_tokens=True)`, unless they
    are themselves part of a stop string, such as `"<|im_end|>"`. A word that SentencePiece begins
    with "▁" has its space, though `decode` drops it where the text begins.

    Args:
        stop_strings: one or several, none empty.
        tokenizer: of transformers, or any object with `get_vocab()` and `decode(ids)`. Ids that it
            lacks have no text: vocabularies of models are often padded.
        vocabulary: in its place, the bytes of each of the V tokens; None or b"" for one without text.

    Returns:
        A `StopRule` with `StopReason.STOP_STRING`. Where `StopStringCriteria` counts text of the
        prompt, or misses or invents matches of special tokens, it differs; else equal.

    Raises:
        TypeError: not strings, or neither or both of `tokenizer` and `vocabulary`.
        ValueError: no string, an empty one, or one with a byte that no token has; when a generation
            begins, a vocabulary of another length than the model's.

    Example:
        >>> import purgen
        >>> vocabulary = [None, b"st", b"op", b"stop", b"opera", b"o", b"pped"]
        >>> rule = purgen.stop_strings("stop", vocabulary=vocabulary)
        >>> state = rule.init(purgen.testing.example_view([[1], [1]], vocab_size=7))
        >>> for rows in ([[1, 1], [1, 4]], [[1, 1, 5], [1, 4, 1]], [[1, 1, 5, 6], [1, 4, 1, 4]]):
        ...     view = purgen.testing.example_view(rows, num_new_tokens=len(rows[0]) - 1)
        ...     stop, state = rule.check(state, view)
        ...     stop.tolist()
        [False, False]
        [False, False]
        [True, True]

    Reference:
        Aho and Corasick, "Efficient string matching: an aid to bibliographic search", 1975.
    """
    strings = _checked(stop_strings)
    if (tokenizer is None) == (vocabulary is None):
        raise TypeError(
            "stop_strings: give either tokenizer= or vocabulary=, the bytes of each token"
        )
    if tokenizer is not None:
        texts = token_bytes(tokenizer, named_in=strings)
    else:
        texts = _checked_vocabulary(vocabulary)
    wanted = [string.encode() for string in strings]
    tokens = [text or b"" for text in texts]
    available = set(b"".join(tokens))
    for string, data in zip(strings, wanted, strict=True):
        if missing := set(data) - available:
            raise ValueError(
                f"stop_strings: no token has the byte {min(missing):#04x} of {string!r}, so it cannot "
                "come up"
            )
    rule = rule_of(over_vocabulary(wanted, tokens))

    def init(context: TokenView) -> Any:
        if vocabulary is not None and context.vocab_size not in (0, len(texts)):
            raise ValueError(
                f"stop_strings: vocabulary has {len(texts)} tokens, the model {context.vocab_size}"
            )
        return rule.init(context)

    return StopRule(init, rule.check, code=rule.code)


def _checked(stop_strings: str | Iterable[str]) -> list[str]:
    strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop_strings: stop_strings must hold str, not {string!r}")
        if not string:
            raise ValueError(f"stop_strings: stop_strings holds an empty string: {strings!r}")
    if not strings:
        raise ValueError("stop_strings: stop_strings is empty; it must hold a string")
    return strings


def _checked_vocabulary(vocabulary: Any) -> list[bytes | None]:
    texts = list(vocabulary)
    for index, text in enumerate(texts):
        if not (text is None or isinstance(text, bytes)):
            raise TypeError(
                f"stop_strings: vocabulary must hold bytes or None, not {text!r} (token {index})"
            )
    return texts
