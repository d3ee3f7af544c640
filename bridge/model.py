"""A Hugging Face checkpoint as a `purgen.Model`, with its tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bridge.cache_kinds import CacheKind, with_kind
from bridge.decoder_only import DecoderOnly
from bridge.errors import Unsupported
from bridge.families import FAMILIES, Adapter, Functions, adapter_of
from bridge.self_check import self_check
from bridge.settle import settle
from bridge.skeleton import Skeleton, parameters_of, skeleton_of
from purgen.model import Model
from purgen.prompt import Prompt

__all__ = ["HFModel", "from_module"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HFModel(Model):
    """A `purgen.Model` made from a Hugging Face module (`bridge.load`).

    Attributes:
        params: dict from parameter name to tensor; a tied parameter appears once.
        tokenizer: the transformers tokenizer, or None.
        config: the transformers configuration, a copy.
        layout: `purgen.CacheLayout`, the form of its caches: `layout.bytes_per_token()`,
            `layout.bytes_per_row(max_length)`, each also for one layer.
        decoder_start_token_id: int, what the decoder of an encoder-decoder model begins with.

    Example:
        >>> import bridge, torch, transformers
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=64,
        ...     hidden_size=16,
        ...     intermediate_size=32,
        ...     num_hidden_layers=2,
        ...     num_attention_heads=2,
        ... )
        >>> model = bridge.load(transformers.LlamaForCausalLM(config))
        >>> model
        HFModel('llama', 7,248 parameters, float32, cpu, vocab_size=64)
        >>> cache = model.init_cache(1, 8)
        >>> mask = torch.ones(1, 3, dtype=torch.bool)
        >>> out = model.prefill(model.params, torch.tensor([[5, 6, 7]]), cache, mask=mask)
        >>> out = model.apply(model.params, torch.tensor([[8]]), out.cache)
        >>> out.logits.shape, out.cache.cache_position
        (torch.Size([1, 1, 64]), tensor([4]))
    """

    tokenizer: Any = None
    config: Any = None
    layout: Any = None
    decoder_start_token_id: int = 0

    def __repr__(self) -> str:
        first = next(iter(self.params.values()))
        count = sum(tensor.numel() for tensor in self.params.values())
        return (
            f"HFModel({self.config.model_type!r}, {count:,} parameters, "
            f"{str(first.dtype).removeprefix('torch.')}, {first.device}, "
            f"vocab_size={self.vocab_size})"
        )

    def encode(self, texts: Any, *, add_special_tokens: bool = True) -> Prompt:
        """Turns texts, conversations or what a processor made into a prompt.

        Args:
            texts: a text, a list of B texts, a conversation (list of `{"role": …, "content": …}`),
                or a list of B conversations. Conversations go through the tokenizer's chat
                template, which ends where the model's answer begins. Or what a processor of
                transformers returns for texts with images or for sound, a mapping of tensors
                (`return_tensors="pt"`).
            add_special_tokens: whether texts get the tokens that the tokenizer adds (such as bos).
                A chat template has its own.

        Returns:
            `purgen.Prompt` with tokens int64 [B, P], padded on the left, and mask bool [B, P], on the
            model's device. For an encoder-decoder model the texts are its `inputs`, and tokens are the
            start token.

        Raises:
            ValueError: no texts, a text without tokens, or a model without tokenizer; or a mapping
                without the tokens that the model needs.
            TypeError: `texts` is none of these.

        Example:
            >>> model = bridge.load(bridge.embedded_checkpoint())  # doctest: +SKIP
            >>> model.encode(["The capital of France is", "Two"])  # doctest: +SKIP
            Prompt(tokens=int64[2, 5], mask=bool[2, 5], inputs={})
        """
        if isinstance(texts, Mapping):
            return self._processed(texts)
        tokenizer = self._tokenizer("encode")
        batch = _as_batch(texts)
        if not batch:
            raise ValueError("encode: texts is empty; at least one text is needed")
        rows = [_encode_one(tokenizer, text, add_special_tokens) for text in batch]
        for index, row in enumerate(rows):
            if not row:
                raise ValueError(f"encode: texts[{index}] is {batch[index]!r}, which has no tokens")
        prompt = Prompt.from_lists(rows, pad_token_id=self.pad_token_id)
        return self._processed({"input_ids": prompt.tokens, "attention_mask": prompt.mask})

    def _processed(self, encoding: Mapping[str, Any]) -> Prompt:
        """Returns the prompt that a processor's tensors make."""
        device = next(iter(self.params.values())).device
        for name, value in encoding.items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"encode: {name!r} is a {type(value).__name__}, not a tensor; "
                    'call the processor with return_tensors="pt"'
                )
        given = {name: value.to(device) for name, value in encoding.items()}
        if not self.needs_inputs:
            if "input_ids" not in given:
                raise ValueError(f"encode: there are no 'input_ids' among {sorted(given)}")
            tokens, mask = given.pop("input_ids"), given.pop("attention_mask", None)
            return Prompt(tokens=tokens, mask=None if mask is None else mask != 0, inputs=given)
        if not given:
            raise ValueError("encode: the mapping is empty; the encoder needs something to read")
        if "attention_mask" in given:
            given["attention_mask"] = given["attention_mask"] != 0
        rows = len(next(iter(given.values())))
        start = torch.full((rows, 1), self.decoder_start_token_id, device=device)
        return Prompt(tokens=start, mask=torch.ones_like(start, dtype=torch.bool), inputs=given)

    def decode(
        self, tokens: Tensor | Sequence[Any], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Turns token ids into texts.

        Args:
            tokens: int64 [B, N], or B lists of ids; or one row, int64 [N] or a list of ids.
            skip_special_tokens: whether to leave out special tokens (eos, pad, …).

        Returns:
            B texts; one for a single row.

        Raises:
            ValueError: a model without tokenizer, or a tensor with more than two dimensions.
        """
        tokenizer = self._tokenizer("decode")
        if isinstance(tokens, Tensor):
            if tokens.ndim not in (1, 2):
                raise ValueError(f"decode: tokens must be [B, N] or [N], not {list(tokens.shape)}")
            tokens = tokens.tolist()
        rows = [row.tolist() if isinstance(row, Tensor) else row for row in tokens]
        if rows and not isinstance(rows[0], Iterable):
            rows = [rows]
        return [
            tokenizer.decode(list(row), skip_special_tokens=skip_special_tokens) for row in rows
        ]

    def _tokenizer(self, call: str) -> Any:
        if self.tokenizer is None:
            raise ValueError(
                f"{call}: this model has no tokenizer; give one to bridge.load(…, tokenizer=…)"
            )
        return self.tokenizer


def from_module(
    module: Any, *, tokenizer: Any, max_length: int | None, cache: CacheKind | None = None
) -> HFModel:
    """Makes the model of a module, and checks that it computes the same.

    Args:
        module: a `PreTrainedModel`; only read.
        tokenizer: its tokenizer, or None.
        max_length: the longest sequence it can read; None: what its configuration says.
        cache: what its layers keep; None: everything.

    Returns:
        The model.

    Raises:
        Unsupported: the model type, or a setting of it, is not supported.
        ValueError: `max_length` is below 1.
    """
    if max_length is not None and max_length < 1:
        raise ValueError(f"load: max_length must be at least 1, not {max_length}")
    adapter = adapter_of(module.config)
    params = parameters_of(module)
    # Adapters may change their copy of the module; the check compares with one that is as it was.
    skeleton, reference = skeleton_of(module), skeleton_of(module)
    longest = settle(skeleton.module, max_length)
    settle(reference.module, max_length)
    functions, vocab_size = _functions_of(adapter, skeleton, reference, params)
    if cache is not None:
        layout = with_kind(functions.layout, cache, skeleton, params)
        functions = dataclasses.replace(functions, layout=layout)  # type: ignore[type-var]
    sources = (getattr(module, "generation_config", None), module.config, tokenizer)
    eos = _ids(sources, "eos_token_id")
    pads = [token for token in _ids(sources, "pad_token_id") if token >= 0]
    if longest is not None:
        max_length = min(longest, max_length or longest)
    elif max_length is None:
        max_length = functions.max_length
    return HFModel(
        params=params,
        prefill=functions.prefill,
        apply=functions.apply,
        init_cache=functions.init_cache,
        vocab_size=vocab_size,
        eos_token_id=eos,
        pad_token_id=next(iter((*pads, *eos)), 0),
        bos_token_id=next(iter(_ids(sources, "bos_token_id")), None),
        max_length=max_length,
        slot_addressed=functions.layout.slot_addressed,
        shared_position=True,
        prefill_takes_logits=isinstance(functions, DecoderOnly),
        needs_inputs=getattr(module.config, "is_encoder_decoder", False),
        tokenizer=tokenizer,
        config=skeleton.module.config,
        layout=functions.layout,
        decoder_start_token_id=next(
            iter((*_ids(sources, "decoder_start_token_id"), *_ids(sources, "bos_token_id"))), 0
        ),
    )


def _functions_of(
    adapter: Adapter, skeleton: Skeleton, reference: Skeleton, params: dict[str, Tensor]
) -> tuple[Functions, int]:
    """Returns the functions, checked, and V; whatever a type that is only tried raises is a no."""
    if skeleton.config.model_type in FAMILIES:
        functions = adapter(skeleton, params)
        return functions, self_check(functions, reference, params)
    try:
        functions = adapter(skeleton, params)
        return functions, self_check(functions, reference, params)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(
            f"model type {skeleton.config.model_type!r} is not among the supported ones "
            f"({', '.join(FAMILIES)}), and could not be run as one: "
            f"{type(error).__name__}: {error}"
        ) from error


def _ids(sources: Iterable[Any], name: str) -> tuple[int, ...]:
    """Returns the ids that the first source which has any gives: one, several, or none at all."""
    for source in sources:
        value = getattr(source, name, None)
        if isinstance(value, torch.Tensor):
            value = value.tolist()
        if isinstance(value, int):
            return (value,)
        if value:
            return tuple(dict.fromkeys(int(token) for token in value))
    return ()


def _as_batch(texts: Any) -> list[Any]:
    """Returns a list of texts or of conversations."""
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, list | tuple):
        raise TypeError(f"encode: texts must be a str or a list, not {type(texts).__name__}")
    if texts and all(isinstance(message, dict) for message in texts):
        return [texts]
    return list(texts)


def _encode_one(tokenizer: Any, text: Any, add_special_tokens: bool) -> list[int]:
    if isinstance(text, str):
        return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])
    if not isinstance(text, list | tuple) or not all(isinstance(part, dict) for part in text):
        raise TypeError(
            "encode: a text must be a str or a conversation (list of dicts), "
            f"not {type(text).__name__}"
        )
    rendered = tokenizer.apply_chat_template(
        list(text), add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return list(rendered["input_ids"])
