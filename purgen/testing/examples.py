"""Small inputs to try pieces on: a view and a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purgen import random
from purgen.cache import Cache
from purgen.donation import write
from purgen.model import Model, ModelOutput
from purgen.pytree import pytree_dataclass, replace
from purgen.view import TokenView

__all__ = ["Moment", "example_history", "example_view", "toy_model"]


def example_view(
    rows: Sequence[Sequence[int]] | None = None,
    *,
    batch_size: int = 2,
    vocab_size: int = 32,
    num_new_tokens: int = 0,
    capacity: int = 8,
    pad_token_id: int = 0,
) -> TokenView:
    """Builds the view that a transform or stop rule gets.

    Args:
        rows: token ids of each row, prompt and new ones; they are padded left. None stands for
            `batch_size` rows of three tokens.
        batch_size: B, where `rows` is None.
        vocab_size: V.
        num_new_tokens: how many at the end of each row are new.
        capacity: free slots on the right.
        pad_token_id: the id in slots without a token.

    Returns:
        A `TokenView`.

    Example:
        >>> import purgen
        >>> purgen.testing.example_view([[5, 6], [7]], capacity=1).tokens
        tensor([[5, 6, 0],
                [0, 7, 0]])
    """
    if rows is None:
        rows = [
            [1 + (row + place) % (vocab_size - 1) for place in range(3)]
            for row in range(batch_size)
        ]
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width + capacity), pad_token_id, dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, width - len(row) : width] = torch.tensor(list(row), dtype=torch.int64)
    length = torch.full((len(rows),), width)
    return TokenView(
        tokens=tokens,
        start=torch.tensor([width - len(row) for row in rows]),
        length=length,
        prompt_length=length - num_new_tokens,
        num_new_tokens=torch.full_like(length, num_new_tokens),
        rng_key=random.split(random.key(0), len(rows)),
        elapsed=torch.zeros(len(rows)),
        logprob=torch.zeros(len(rows)),
        entropy=torch.zeros(len(rows)),
        vocab_size=vocab_size,
        max_new_tokens=num_new_tokens + capacity,
    )


@pytree_dataclass
class Moment:
    """What a piece is given at one step."""

    view: TokenView
    logits: Tensor  # [B, V]


def example_history(
    *,
    vocab_size: int = 32,
    batch_size: int = 4,
    steps: int = 20,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> list[Moment]:
    """Makes random rows with different numbers of left pads, at each step of a generation.

    Args:
        vocab_size: V.
        batch_size: B.
        steps: how many steps, the first with the prompt alone.
        seed: of tokens and logits.
        dtype: of the logits, of which a tenth is -inf.

    Returns:
        What a transform or stop rule is given at each step.
    """
    generator = torch.Generator().manual_seed(seed)
    width, capacity = 7, 7 + steps

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    # Few distinct tokens, so that repetitions and rules on ids have something to find.
    tokens = draw(min(vocab_size, 8), batch_size, capacity)
    start = draw(width - 3, batch_size)
    # Rows that began apart: they differ in how many new tokens they have at a step.
    prompt_length = width - torch.arange(batch_size) % 3
    slot = torch.arange(capacity)
    moments = []
    for step in range(steps):
        length = torch.full((batch_size,), width + step)
        real = (slot >= start[:, None]) & (slot < length[:, None])
        view = TokenView(
            tokens=torch.where(real, tokens, 0),
            start=start,
            length=length,
            prompt_length=prompt_length,
            num_new_tokens=length - prompt_length,
            rng_key=random.split(random.key(seed), batch_size),
            elapsed=torch.full((batch_size,), 0.1 * step),
            logprob=-torch.rand(batch_size, generator=generator) * 5,
            entropy=torch.rand(batch_size, generator=generator) * 3,
            vocab_size=vocab_size,
            max_new_tokens=steps + 2,
        )
        logits = torch.randn(batch_size, vocab_size, generator=generator) * 3
        forbidden = torch.rand(batch_size, vocab_size, generator=generator) < 0.1
        moments.append(Moment(view, logits.masked_fill(forbidden, -torch.inf).to(dtype)))
    return moments


@dataclasses.dataclass(frozen=True)
class ToyLayout:
    """`purgen.CacheLayout` of the toy model: `{"key": [B, T, H], "value": [B, T, H]}`.

    Attributes:
        hidden_size: int, H.
    """

    hidden_size: int

    def capacity(self, cache: Cache) -> int:
        """Returns T."""
        return int(cache.layers["key"].shape[1])

    def resized(self, cache: Cache, max_length: int) -> Cache:
        """Returns a cache of `max_length` slots with the same content."""
        missing = max_length - self.capacity(cache)
        layers = {
            name: torch.nn.functional.pad(buffer, (0, 0, 0, missing)).clone()
            for name, buffer in cache.layers.items()
        }
        return replace(cache, layers=layers)

    def kept(self, moves: Tensor, after: Cache, before: Cache) -> Cache:
        """Returns `after`: beyond its position a row holds nothing."""
        return after

    def seen(self, cache: Cache, layer: int) -> Tensor:
        """Returns the slots fed, int64 [B]."""
        return cache.cache_position

    def held(self, cache: Cache, layer: int) -> Tensor:
        """Returns the slots held, all of them, int64 [B]."""
        return cache.cache_position

    def bytes_per_token(self, layer: int | None = None) -> int:
        """Returns the bytes of a slot."""
        return 2 * 4 * self.hidden_size

    def bytes_per_row(self, max_length: int, layer: int | None = None) -> int:
        """Returns the bytes of a row."""
        return max_length * self.bytes_per_token(layer)


def toy_model(
    vocab_size: int = 32,
    *,
    hidden_size: int = 16,
    eos_token_id: int | tuple[int, ...] = (),
    seed: int = 0,
) -> Model:
    """Makes a one-layer attention model with random weights, in plain tensor code.

    Its logits depend on all tokens of a row and on their order, so a mistake in masks, positions or
    the cache shows in its tokens.

    Args:
        vocab_size: V.
        hidden_size: H, even.
        eos_token_id: ids that end a sequence.
        seed: of the weights.

    Returns:
        A `Model` whose params are a dict of float32 tensors.

    Example:
        >>> import purgen
        >>> purgen.testing.toy_model().init_cache(2, 8)
        Cache(layers={'key': float32[2, 8, 16], 'value': float32[2, 8, 16]}, cache_position=int64[2],
              layout=ToyLayout(hidden_size=16))
    """
    shapes = {
        "embed": (vocab_size, hidden_size),
        "query": (hidden_size, hidden_size),
        "key": (hidden_size, hidden_size),
        "value": (hidden_size, hidden_size),
        "head": (hidden_size, vocab_size),
    }
    keys = random.split(random.key(seed), len(shapes))
    scale = {"embed": 1.0, "head": 2.0}
    params = {
        name: random.normal(key, shape)
        * scale.get(name, 1.5)
        / (1 if name == "embed" else hidden_size**0.5)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }

    layout = ToyLayout(hidden_size)

    def init_cache(batch_size: int, max_length: int) -> Cache:
        empty = torch.zeros(batch_size, max_length, hidden_size)
        layers = {"key": empty, "value": empty.clone()}
        position = torch.zeros(batch_size, dtype=torch.int64)
        return Cache(layers=layers, cache_position=position, layout=layout)

    def apply(
        params: Any,
        tokens: Tensor,
        cache: Cache,
        *,
        cache_position: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> ModelOutput:
        first = cache.cache_position if cache_position is None else cache_position
        slots = (first[..., None] + torch.arange(tokens.shape[1])).expand_as(tokens)  # [B, q]
        columns = torch.arange(cache.layers["key"].shape[1])  # [T]
        valid = columns < (slots[:, -1:] + 1) if attention_mask is None else attention_mask.bool()
        if position_ids is None:
            position_ids = slots - valid.long().argmax(dim=1, keepdim=True)
        hidden = params["embed"][tokens] + _sinusoid(position_ids, hidden_size)
        row = torch.arange(len(tokens))[:, None]
        layers = {
            name: write(cache.layers[name], [row, slots], hidden @ params[name])
            for name in ("key", "value")
        }
        visible = valid[:, None, :] & (columns <= slots[:, :, None])  # [B, q, T]
        scores = (hidden @ params["query"]) @ layers["key"].transpose(1, 2) / hidden_size**0.5
        weights = torch.where(visible, scores, -1e9).softmax(dim=-1)
        hidden = torch.tanh(hidden + weights @ layers["value"])
        after = (slots[:, -1] + 1).contiguous()
        cache = Cache(layers=layers, cache_position=after, layout=layout)
        return ModelOutput(logits=hidden @ params["head"], cache=cache, hidden_states=hidden)

    def prefill(
        params: Any, tokens: Tensor, cache: Cache, *, mask: Tensor, inputs: Any = None
    ) -> ModelOutput:
        room = cache.layers["key"].shape[1] - tokens.shape[1]
        valid = torch.nn.functional.pad(mask.bool(), (0, room))
        positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        return apply(params, tokens, cache, attention_mask=valid, position_ids=positions)

    return Model(
        params=params,
        prefill=prefill,
        apply=apply,
        init_cache=init_cache,
        vocab_size=vocab_size,
        slot_addressed=True,
        shared_position=True,
        eos_token_id=eos_token_id if isinstance(eos_token_id, tuple) else (eos_token_id,),
    )


def _sinusoid(position: Tensor, size: int) -> Tensor:
    """Position encodings [..., size] of Vaswani et al., 2017."""
    rate = torch.exp(-torch.arange(0, size, 2) * (4.0 / size))
    angle = position[..., None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
