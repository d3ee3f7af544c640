"""Texts to prompts and back."""

from __future__ import annotations

import dataclasses

import pytest
import tokenizers
import torch
import transformers

import bridge

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", ":", "hello", "world", "again"]
TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} : {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant :{% endif %}"
)


def word_tokenizer(**options):
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        **options,
    )


@pytest.fixture(scope="module")
def model(models, modules):
    return bridge.load(modules("llama"), tokenizer=word_tokenizer(chat_template=TEMPLATE))


def test_texts(model):
    prompt = model.encode(["hello world again", "world"])
    assert prompt.tokens.tolist() == [[7, 8, 9], [0, 0, 8]]
    assert prompt.mask.tolist() == [[True, True, True], [False, False, True]]
    assert prompt.tokens.dtype == torch.int64
    assert prompt.inputs == {}
    assert model.encode("hello world").tokens.tolist() == [[7, 8]]
    assert model.encode(("hello",)).tokens.tolist() == [[7]]


def test_special_tokens(model):
    adding = word_tokenizer()
    adding._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    other = dataclasses.replace(model, tokenizer=adding)
    assert other.encode("hello").tokens.tolist() == [[1, 7]]
    assert other.encode("hello", add_special_tokens=False).tokens.tolist() == [[7]]


def test_conversations(model):
    one = [{"role": "user", "content": "hello"}]
    two = [*one, {"role": "assistant", "content": "world"}, {"role": "user", "content": "again"}]
    assert model.encode(one).tokens.tolist() == [[1, 4, 6, 7, 2, 1, 5, 6]]
    prompt = model.encode([one, two])
    assert prompt.mask.sum(1).tolist() == [8, 18]
    assert prompt.tokens[0, -8:].tolist() == [1, 4, 6, 7, 2, 1, 5, 6]


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["hello", ""], ValueError, r"texts\[1\] is '', which has no tokens"),
        ([], ValueError, "texts is empty"),
        (7, TypeError, "texts must be a str or a list, not int"),
        (["hello", 7], TypeError, "must be a str or a conversation .*, not int"),
        ([[7]], TypeError, "must be a str or a conversation .*, not list"),
    ],
)
def test_what_is_no_text(model, texts, error, message):
    with pytest.raises(error, match=f"encode: .*{message}"):
        model.encode(texts)


def test_decode(model):
    ids = [[7, 8, 2], [9, 0, 0]]
    assert model.decode(torch.tensor(ids)) == ["hello world", "again"]
    assert model.decode(ids) == ["hello world", "again"]
    assert model.decode([torch.tensor(row) for row in ids]) == ["hello world", "again"]
    assert model.decode(torch.tensor(ids[0])) == ["hello world"]
    assert model.decode(ids[0]) == ["hello world"]
    assert model.decode([[7], []]) == ["hello", ""]
    assert model.decode([]) == []
    assert model.decode(ids, skip_special_tokens=False) == ["hello world </s>", "again <pad> <pad>"]
    with pytest.raises(ValueError, match=r"tokens must be \[B, N\] or \[N\], not \[1, 1, 3\]"):
        model.decode(torch.tensor([ids[:1]]))


def test_no_tokenizer(models):
    with pytest.raises(ValueError, match="encode: this model has no tokenizer"):
        models("llama").encode("hello")
    with pytest.raises(ValueError, match="decode: this model has no tokenizer"):
        models("llama").decode([[1]])


def test_tokenizer_is_the_last_source_of_ids(model):
    assert model.eos_token_id == (2,)
    assert model.pad_token_id == 0
