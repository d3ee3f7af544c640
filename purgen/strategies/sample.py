"""Ancestral sampling, by the Gumbel-max trick on one key a row.

Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014, arXiv:1411.0030.
"""

from __future__ import annotations

from torch import Tensor

from purgen import random
from purgen.decoder import Decoder
from purgen.model import Model
from purgen.state import GenerationState
from purgen.stop_rules import StopRule
from purgen.strategies.token_strategy import token_strategy
from purgen.transforms import LogitsTransform
from purgen.view import step_key

__all__ = ["sample"]


def sample(
    model: Model, *, transform: LogitsTransform | None = None, stop: StopRule | None = None
) -> Decoder:
    """Draws each token from the distribution that the logits define.

    The noise of a row's n-th token depends on the row's key and on n alone: a row gets the same
    tokens alone, in any batch, in any order, padded on either side.

    Args:
        model: the model.
        transform: changes the logits first.
        stop: the stop rule; None stands for the model's eos ids.

    Returns:
        A `Decoder`; its `init` requires `rng_key`.

    Example:
        >>> import purgen
        >>> model = purgen.testing.toy_model()
        >>> decoder = purgen.sample(model, transform=purgen.chain(purgen.temperature(0.8)))
        >>> prompt = purgen.Prompt.from_lists([[1, 2], [3]], pad_token_id=0)
        >>> key = purgen.random.key(0)
        >>> out = purgen.generate(decoder, model.params, prompt, rng_key=key, max_new_tokens=5)
        >>> out.new_tokens.shape
        torch.Size([2, 5])
    """

    def choose(logits: Tensor, state: GenerationState) -> Tensor:
        return random.categorical(step_key(state), logits)

    return token_strategy(model, choose, transform=transform, stop=stop, needs_key=True)
