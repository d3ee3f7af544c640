"""Greedy decoding: the likeliest token at each step."""

from __future__ import annotations

from torch import Tensor

from purgen.decoder import Decoder
from purgen.logits import forbid_nan
from purgen.model import Model
from purgen.state import GenerationState
from purgen.stop_rules import StopRule
from purgen.strategies.token_strategy import token_strategy
from purgen.transforms import LogitsTransform

__all__ = ["greedy"]


def greedy(
    model: Model, *, transform: LogitsTransform | None = None, stop: StopRule | None = None
) -> Decoder:
    """Takes the token with the highest logit; of several, the one with the lowest id.

    Needs no random key. One that is given stays in the state, for a strategy that goes on from it.

    Args:
        model: the model.
        transform: changes the logits first.
        stop: the stop rule; None stands for the model's eos ids.

    Returns:
        A `Decoder`.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> prompt = purgen.Prompt.from_lists([[1, 2], [3]], pad_token_id=0)
        >>> out = purgen.generate(purgen.greedy(model), model.params, prompt, max_new_tokens=5)
        >>> out.new_tokens.shape
        torch.Size([2, 5])
    """

    def choose(logits: Tensor, state: GenerationState) -> Tensor:
        return forbid_nan(logits).argmax(dim=-1)

    return token_strategy(model, choose, transform=transform, stop=stop)
