"""The seam to a language model: pure functions of parameters, tokens and cache.

Anything with these attributes is a model: a Hugging Face checkpoint through `bridge.load`, or five
lines of tensor code in a test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from purgen.cache import Cache
from purgen.pytree import pytree_dataclass

__all__ = ["Model", "ModelOutput"]


@pytree_dataclass
class ModelOutput:
    """What a model returns for `q` tokens a row.

    Attributes:
        logits: floating [B, q, V].
        cache: `Cache`, the input cache with these tokens in it; the input cache is unchanged.
        hidden_states: floating [B, q, H] of the last layer, or None where the model keeps it.
    """

    logits: Tensor  # [B, q, V]
    cache: Cache
    hidden_states: Any = None  # [B, q, H] or None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A language model as pure functions.

    Attributes:
        params: pytree of tensors, handed to each call by whoever runs the model.
        prefill: `(params, tokens [B, P], cache, *, mask [B, P], inputs=None) -> ModelOutput`, fills
            an empty cache. `mask` is True at real tokens; `inputs` are a prompt's other inputs.
        apply: `(params, tokens [B, q], cache, *, cache_position=None, attention_mask=None,
            position_ids=None) -> ModelOutput`. `cache_position` int64 [B] says which slot the first
            of the `q` tokens goes to: left out, the cache's own. `attention_mask` bool [B, T] says
            which slots hold real tokens, those of this call among them. `position_ids` int64 [B, q].
        init_cache: `(batch_size, max_length) -> Cache`, an empty cache of `max_length` slots.
        vocab_size: int, V.
        eos_token_id: tuple of ints, the ids that end a sequence; an int stands for a tuple of one.
        pad_token_id: int, the id written where there is no token.
        bos_token_id: int or None.
        max_length: int or None, the longest sequence that the model can read.
        slot_addressed: bool, whether all that the cache keeps of a token is in the slot of that token
            (attention), so that feeding it again changes nothing. Where it is not (a recurrent
            state), the cache of a row that has stopped is kept by a copy in each step.
        prefill_takes_logits: bool, whether `prefill` also takes `logits=False`, to leave out those that
            nobody wants: all but, at most, the last.
        needs_inputs: bool, whether a prompt must have `inputs` (an encoder's).
        shared_position: bool, whether `apply` also takes a 0-d `cache_position`: one slot for all rows,
            which is cheaper to write to.

    Example:
        >>> import torch, purgen
        >>> def apply(params, tokens, cache, *, cache_position=None, **_):
        ...     position = cache.cache_position if cache_position is None else cache_position
        ...     cache = purgen.Cache(layers=(), cache_position=position + tokens.shape[1])
        ...     return purgen.ModelOutput(logits=params[tokens], cache=cache)
        >>> bigram = purgen.Model(
        ...     params=torch.eye(5).roll(1, dims=1),  # [V, V]: token t is followed by t + 1
        ...     prefill=lambda params, tokens, cache, *, mask, inputs=None: apply(
        ...         params, tokens, cache
        ...     ),
        ...     apply=apply,
        ...     init_cache=lambda batch_size, max_length: purgen.Cache(
        ...         layers=(), cache_position=torch.zeros(batch_size, dtype=torch.int64)
        ...     ),
        ...     vocab_size=5,
        ...     eos_token_id=(4,),
        ... )
        >>> prompt = purgen.Prompt.from_lists([[0], [2]], pad_token_id=0)
        >>> out = purgen.generate(purgen.greedy(bigram), bigram.params, prompt, max_new_tokens=8)
        >>> out.new_tokens
        tensor([[1, 2, 3, 4],
                [3, 4, 0, 0]])
    """

    params: Any
    prefill: Callable[..., ModelOutput]
    apply: Callable[..., ModelOutput]
    init_cache: Callable[..., Cache]
    vocab_size: int
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int = 0
    bos_token_id: int | None = None
    max_length: int | None = None
    slot_addressed: bool = False
    prefill_takes_logits: bool = False
    needs_inputs: bool = False
    shared_position: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.eos_token_id, int):
            object.__setattr__(self, "eos_token_id", (self.eos_token_id,))
