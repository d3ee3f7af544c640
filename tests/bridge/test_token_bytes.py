"""The bytes of tokens, beside `decode`; stop strings, beside `StopStringCriteria`."""

from __future__ import annotations

import random

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import bridge
import purgen
from purgen.testing import example_view

TEXTS = [
    "The quick brown fox jumps over the lazy dog.\nAnd then? Stop!",
    "naïve café, 😀 smile, stop stopping the stopper",
    "def f(x):\n    return x + 1  # two  spaces",
]
SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens(["two words", "<think>", "é"])
    return tokenizer


def byte_fallback():
    """In the manner of Llama 2."""
    pieces = [*SPECIAL, *[f"<0x{byte:02X}>" for byte in range(256)], "▁", *"stopabc", "▁st", "op"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({piece: index for index, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def metaspace():
    """In the manner of T5."""
    pieces = [(piece, 0.0) for piece in [*SPECIAL, "▁", *"stopabcdefé", "▁st", "op", "▁▁a"]]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_pieces():
    """In the manner of BERT."""
    pieces = [*SPECIAL, "st", "##op", "stop", "##s", "a", "café", "abcdef"]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def words():
    pieces = [*SPECIAL, "stop", "a", "word", "abcdef"]
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


MAKERS = [byte_level, byte_fallback, metaspace, word_pieces, words]


def wrapped(make):
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=make(), unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def check_against_decode(tokenizer, texts, count, skip, lead=0):
    """Texts of random ids: what the bytes say is what `decode` says after a first, fixed token."""
    generator = random.Random(0)
    ids = [index for index, text in enumerate(texts) if text is not None]
    for _ in range(count):
        row = [generator.choice(ids) for _ in range(generator.randrange(1, 9))]
        row += [texts.index(None)] if None in texts else []
        generator.shuffle(row)
        ours = b"".join(texts[index] or b"" for index in row).decode("utf-8", "replace")
        theirs = tokenizer.decode([lead, *row], skip_special_tokens=True)
        theirs = theirs.removeprefix(tokenizer.decode([lead]))
        if skip and ("\ufffd" in ours or "\ufffd" in theirs):
            continue  # decoders differ in how they show bytes that are no text
        assert ours == theirs, row


@pytest.mark.parametrize("make", MAKERS)
def test_bytes_are_what_decode_says(make):
    for tokenizer in (make(), wrapped(make)):
        texts = bridge.token_bytes(tokenizer)
        assert [texts[tokenizer.get_vocab()[token]] for token in SPECIAL] == [None] * 3
        lead = next(index for index, text in enumerate(texts) if text and text.strip().isalpha())
        check_against_decode(tokenizer, texts, 300, skip=make is byte_fallback, lead=lead)


@pytest.mark.parametrize("make", MAKERS)
def test_stop_strings_equal_transformers(make):
    """On tokens with text; the prompt is empty, since transformers reads it, too."""
    tokenizer = wrapped(make)
    texts = bridge.token_bytes(tokenizer)
    ids = [index for index, text in enumerate(texts) if text]
    generator = random.Random(1)
    for strings in (["stop"], ["s", "top a"], [" st", "op"], ["os", "é"]):
        if not set("".join(strings).encode()) <= set(b"".join(text or b"" for text in texts)):
            continue
        ours = purgen.stop_strings(strings, tokenizer=tokenizer)
        theirs = transformers.StopStringCriteria(tokenizer, strings)
        likely = [index for index in ids if set(texts[index]) & set("".join(strings).encode())]
        for _ in range(20):
            rows = [[generator.choice(likely) for _ in range(10)] for _ in range(3)]
            assert steps_of(ours, rows) == steps_of_theirs(theirs, rows), strings


def steps_of(rule, rows):
    state = rule.init(example_view([[0]] * len(rows), vocab_size=0))
    fired = []
    for step in range(1, len(rows[0]) + 1):
        view = example_view([[0, *row[:step]] for row in rows], num_new_tokens=step)
        stop, state = rule.check(state, view)
        fired.append(stop.tolist())
    return fired


def steps_of_theirs(criterion, rows):
    ids = torch.tensor(rows)
    return [criterion(ids[:, :step], None).tolist() for step in range(1, ids.shape[1] + 1)]


def test_special_tokens_are_text_only_where_a_stop_string_names_them():
    tokenizer = wrapped(byte_level)
    eos, s, top = (tokenizer.get_vocab()[token] for token in ("</s>", "s", "t"))
    named = purgen.stop_strings(["</s>", "st"], tokenizer=tokenizer)
    assert steps_of(named, [[s, eos, top]]) == [[False], [True], [False]]
    plain = purgen.stop_strings(["st"], tokenizer=tokenizer)
    assert steps_of(plain, [[s, eos, top]]) == [[False], [False], [True]]


def test_a_padded_vocabulary_is_allowed():
    tokenizer = wrapped(byte_level)
    rule = purgen.stop_strings("st", tokenizer=tokenizer)
    s, t = (tokenizer.get_vocab()[token] for token in "st")
    assert steps_of(rule, [[s, 5000, t, s]]) == [[False], [False], [True], [False]]


def test_an_unknown_decoder_is_refused():
    tokenizer = words()
    tokenizer.decoder = decoders.CTC()
    with pytest.raises(ValueError, match=r"a decoder of \['CTC'\] is not known.*vocabulary="):
        bridge.token_bytes(tokenizer)


class Spelled:
    """A tokenizer of no library: ids are letters."""

    def get_vocab(self):
        return {letter: index for index, letter in enumerate("stop")}

    def decode(self, ids):
        return "".join("stop"[index] for index in ids)


def test_any_tokenizer_will_do():
    rule = purgen.stop_strings("top", tokenizer=Spelled())
    assert steps_of(rule, [[0, 1, 2, 3]]) == [[False], [False], [False], [True]]


class Slow:
    """In the manner of transformers' tokenizers that hold a SentencePiece model."""

    sp_model = None
    all_special_ids = (0,)

    def get_vocab(self):
        return {"</s>": 0, "<0x0A>": 1, "▁stop": 2, "▁": 3, "é": 4}


def test_sentence_piece_model_without_a_decoder():
    assert bridge.token_bytes(Slow()) == [None, b"\n", b" stop", b" ", "é".encode()]


@pytest.fixture(scope="module")
def model():
    return bridge.load(bridge.embedded_checkpoint())


@pytest.mark.real
class TestReal:
    def test_bytes_are_what_decode_says(self, model):
        texts = bridge.token_bytes(model.tokenizer)
        assert len(texts) == model.vocab_size
        check_against_decode(model.tokenizer, texts, 2000, skip=False, lead=504)

    def test_equal_transformers(self, model):
        tokenizer = model.tokenizer
        texts = bridge.token_bytes(tokenizer)
        generator = random.Random(2)
        for strings in (["stop"], ["e"], ["\n\nUser:", "###"], ["é", " the"], ["😀"]):
            ours = purgen.stop_strings(strings, tokenizer=tokenizer)
            theirs = transformers.StopStringCriteria(tokenizer, strings)
            bytes_of_them = set("".join(strings).encode())
            likely = [index for index, text in enumerate(texts) if bytes_of_them & set(text or b"")]
            rows = [[generator.choice(likely) for _ in range(12)] for _ in range(16)]
            for row in rows[:8]:  # some that do hold them, cut anywhere
                text = "x" * generator.randrange(3) + generator.choice(strings) + "y"
                pieces = tokenizer.encode(text, add_special_tokens=False)
                row[3 : 3 + len(pieces)] = pieces
                del row[12:]
            found = steps_of(ours, rows)
            assert found == steps_of_theirs(theirs, rows), strings
            assert any(any(step) for step in found)

    def test_stops_a_generation(self, model):
        prompt = model.encode(["The capital of France is", "Once upon a time"])
        plain = purgen.generate(purgen.greedy(model), model.params, prompt, max_new_tokens=12)
        texts = model.decode(plain.new_tokens)
        rule = purgen.stop_strings(["aris", texts[1][5:9]], tokenizer=model.tokenizer)
        out = purgen.generate(
            purgen.greedy(model, stop=rule), model.params, prompt, max_new_tokens=12
        )
        assert "Paris" in model.decode(out.new_tokens)[0]
        assert out.stop_reasons == ["STOP_STRING", "STOP_STRING"]
        for row, string in enumerate(("aris", texts[1][5:9])):
            new = out.new_tokens[row, : out.num_new_tokens[row]].tolist()
            assert string in model.tokenizer.decode(new)
            assert string not in model.tokenizer.decode(new[:-1])
