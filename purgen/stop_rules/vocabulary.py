"""The bytes that tokens stand for, read from a tokenizer.

Any object made like a tokenizer of `transformers` or `tokenizers` will do; neither is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["token_bytes"]

REPLACEMENT = "\ufffd"  # what a decoder shows for bytes that are no text
SPACE = "▁"  # of SentencePiece


def token_bytes(tokenizer: Any, *, named_in: Iterable[str] = ()) -> list[bytes | None]:
    """Returns the bytes of each token as it stands within a text, after other tokens.

    Byte-level vocabularies (GPT-2, Llama 3, SmolLM2, Qwen) are mapped back to bytes. In those of
    SentencePiece (Llama 2, Gemma, T5) "▁" is a space and `<0x0A>` a byte; their decoders drop the
    space that a whole text begins with, which is here. Others (WordPiece, words) are decoded token
    by token.

    Args:
        tokenizer: with `get_vocab()`, and a `decoder` (or a `backend_tokenizer` that has one) or
            `decode(ids)`.
        named_in: texts; a special token that stands in one of them counts as text.

    Returns:
        For each id its bytes; None for a special token, and for an id that the tokenizer lacks.

    Raises:
        TypeError: no tokenizer.
        ValueError: a decoder of an unknown kind.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not callable(getattr(tokenizer, "get_vocab", None)):
        raise TypeError(f"tokenizer must have get_vocab(), which {type(tokenizer).__name__} lacks")
    vocabulary = tokenizer.get_vocab()
    read = _reader(tokenizer, backend)
    special = _special_ids(tokenizer, backend)
    texts: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    named = list(named_in)
    for token, index in vocabulary.items():
        if index not in special:
            texts[index] = read(token, index)
        elif any(token in text for text in named):
            texts[index] = token.encode()
    return texts


def _special_ids(tokenizer: Any, backend: Any) -> set[int]:
    special = set(getattr(tokenizer, "all_special_ids", None) or ())
    added: dict[int, Any] = getattr(backend, "get_added_tokens_decoder", dict)()
    added = {**added, **(getattr(tokenizer, "added_tokens_decoder", None) or {})}
    return special | {index for index, token in added.items() if getattr(token, "special", False)}


def _reader(tokenizer: Any, backend: Any) -> Callable[[str, int], bytes]:
    """Returns the function of a token and its id that gives its bytes."""
    parts = _decoder_parts(getattr(backend, "decoder", None))
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return _byte_level
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return _sentence_piece(parts)
    if not kinds and hasattr(tokenizer, "sp_model"):
        return _sentence_piece([{"type": "Metaspace"}, {"type": "ByteFallback"}])
    if kinds <= {"WordPiece"} and callable(getattr(tokenizer, "decode", None)):
        return lambda token, index: _decoded(tokenizer, index)
    raise ValueError(
        f"tokenizer: a decoder of {sorted(kinds)} is not known; give the bytes of each token as "
        "vocabulary="
    )


def _decoder_parts(decoder: Any) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    config = json.loads(decoder.__getstate__())
    return list(config["decoders"]) if config["type"] == "Sequence" else [config]


def _byte_of_character() -> dict[str, int]:
    """The printable character that GPT-2 writes for each byte (Radford et al., 2019), inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [*map(chr, printable), *(chr(256 + index) for index in range(len(others)))]
    return dict(zip(characters, [*printable, *others], strict=True))


BYTE_OF_CHARACTER = _byte_of_character()


def _byte_level(token: str, index: int) -> bytes:
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:  # an added token, which is written as it is
        return token.encode()


def _sentence_piece(parts: list[dict[str, Any]]) -> Callable[[str, int], bytes]:
    bytes_are_written = any(part["type"] == "ByteFallback" for part in parts)
    replacements = [
        (part["pattern"], part["content"]) for part in parts if part["type"] == "Replace"
    ]
    replacements += [
        ({"String": part.get("replacement", SPACE)}, " ")
        for part in parts
        if part["type"] == "Metaspace"
    ]

    def read(token: str, index: int) -> bytes:
        if bytes_are_written and re.fullmatch("<0x[0-9A-Fa-f]{2}>", token):
            return bytes([int(token[3:5], 16)])
        for pattern, content in replacements:
            if "String" in pattern:
                token = token.replace(pattern["String"], content)
            else:
                token = re.sub(pattern["Regex"], lambda match: content, token)  # noqa: B023
        return token.encode()

    return read


def _decoded(tokenizer: Any, index: int) -> bytes:
    """What a token adds to a text: to that of itself, which is at hand."""
    once, twice = (tokenizer.decode([index] * count) for count in (1, 2))
    if not twice.startswith(once) or REPLACEMENT in twice:
        raise ValueError(
            f"tokenizer: token {index} has no text of its own ({once!r}, twice {twice!r}); give the "
            "bytes of each token as vocabulary="
        )
    return twice[len(once) :].encode()
