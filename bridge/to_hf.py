"""`bridge.to_logits_processor`, `bridge.to_stopping_criteria`: purgen in transformers' `generate`.

transformers calls a processor with nothing but the tokens so far, and does not say when a generation
begins or which row is which: beam search reorders rows, assisted generation goes back. So the state of
a piece is kept beside the tokens it belongs to, and found again by them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import transformers
from torch import Tensor

import purgen
from bridge.track import Layout, Track, layout_of
from purgen import LogitsTransform, StopRule, TokenView

__all__ = [
    "PurgenLogitsProcessor",
    "PurgenStoppingCriteria",
    "to_logits_processor",
    "to_stopping_criteria",
]


def to_logits_processor(
    transform: LogitsTransform,
    *,
    pad_token_id: int | None = None,
    prompt_mask: Tensor | None = None,
    prompt_length: int | None = None,
    max_new_tokens: int | None = None,
    rng_key: Tensor | None = None,
    paired: bool | None = None,
    assisted: bool | None = None,
) -> PurgenLogitsProcessor:
    """Makes a logits processor of a transform, for `transformers`' own `generate`.

    It may be used for any number of generations, one at a time. A generation goes on where each row
    continues, by one token, a row of the call before; anything else begins a new one. What cannot be
    seen is a generation whose prompt is all that another one saw and one token more: call `reset()`
    before it.

    Args:
        transform: the transform.
        pad_token_id: tokens with which a prompt begins, if they are this, are pads. transformers does
            not tell a processor which tokens are; without this or `prompt_mask`, all count.
        prompt_mask: bool or 0/1 [R, P], True at real tokens, pads on the left; each of the R prompts is
            that of as many neighbouring rows. Needed where the pad id is also a token of prompts.
        prompt_length: how many columns are the prompt; None: what is there when a generation begins.
        max_new_tokens: the budget, where a transform asks for it.
        rng_key: int64 [2] or [B, 2], where a transform draws.
        paired: whether scores have two rows for each of the tokens, conditional ones first, of which
            the first half is returned, as models with classifier-free guidance want it; None: where
            there are twice as many. With another multiple, rows are channels side by side.
        assisted: whether a generation may go back, as assisted generation and prompt lookup do, by 64
            tokens; None: that raises, since a prompt that was once generated looks the same.

    Returns:
        A `transformers.LogitsProcessor`.

    Raises:
        TypeError: `transform` is no `LogitsTransform`.
        ValueError: in a call, scores or a mask of another shape, or tokens that may be of a generation
            that goes back.

    Example:
        >>> import bridge, torch, transformers, purgen
        >>> processor = bridge.to_logits_processor(purgen.min_new_tokens(1, eos_token_id=0))
        >>> processors = transformers.LogitsProcessorList([processor])
        >>> processors(torch.tensor([[5, 6]]), torch.zeros(1, 3))
        tensor([[-inf, 0., 0.]])
        >>> processors(torch.tensor([[5, 6, 1]]), torch.zeros(1, 3))
        tensor([[0., 0., 0.]])
    """
    if not isinstance(transform, LogitsTransform):
        raise TypeError(
            f"to_logits_processor: transform must be a LogitsTransform, not {type(transform).__name__}"
        )
    track = Track(pad_token_id, prompt_mask, prompt_length, max_new_tokens, rng_key, assisted)
    return PurgenLogitsProcessor(transform, track, paired)


def to_stopping_criteria(
    rule: StopRule,
    *,
    pad_token_id: int | None = None,
    prompt_mask: Tensor | None = None,
    prompt_length: int | None = None,
    max_new_tokens: int | None = None,
) -> PurgenStoppingCriteria:
    """Makes a stopping criterion of a stop rule, for `transformers`' own `generate`.

    The first call of a generation has one new token. Its time begins with that call. Rules on
    probabilities (`confidence`, …) need `return_dict_in_generate=True, output_scores=True`, and cannot
    be used with beams. Assisted generation adds several tokens at once, which looks like the beginning
    of another generation: it is not supported.

    Args:
        rule: the rule.
        pad_token_id: see `to_logits_processor`, like all others.
        prompt_mask: bool or 0/1 [R, P].
        prompt_length: how many columns are the prompt.
        max_new_tokens: the budget, where a rule asks for it.

    Returns:
        A `transformers.StoppingCriteria`.

    Raises:
        TypeError: `rule` is no `StopRule`.
        ValueError: in a call, a mask of another shape, or no scores where the rule looks at them.

    Example:
        >>> import bridge, torch, transformers, purgen
        >>> rule = purgen.any_of(purgen.eos(2), purgen.max_new_tokens(5))
        >>> criteria = transformers.StoppingCriteriaList([bridge.to_stopping_criteria(rule)])
        >>> criteria(torch.tensor([[5, 6, 2], [5, 6, 7]]), None)
        tensor([ True, False])
    """
    if not isinstance(rule, StopRule):
        raise TypeError(f"to_stopping_criteria: rule must be a StopRule, not {type(rule).__name__}")
    track = Track(pad_token_id, prompt_mask, prompt_length, max_new_tokens, None, False)
    return PurgenStoppingCriteria(rule, track)


class PurgenLogitsProcessor(transformers.LogitsProcessor):
    """A transform as transformers calls it; made by `to_logits_processor`.

    Attributes:
        purgen_transform: the transform.
    """

    def __init__(self, transform: LogitsTransform, track: Track, paired: bool | None) -> None:
        self.purgen_transform = transform
        self._track = track
        self._paired = paired

    def reset(self) -> None:
        """Makes the next call the first of a generation."""
        self._track.reset()

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        """Applies the transform.

        Args:
            input_ids: int64 [B, L], the tokens so far; None where they do not matter.
            scores: floating [B, V], or more rows (see `to_logits_processor`).

        Returns:
            The same shape and dtype as `scores`; half the rows where they are paired.
        """
        if scores.ndim != 2:
            raise ValueError(f"scores must be [B, V], not {list(scores.shape)}")
        if input_ids is None:
            input_ids = torch.zeros(len(scores), 1, dtype=torch.int64, device=scores.device)
        layout = layout_of(scores, input_ids, self._paired)
        ids = layout.spread(input_ids)
        moment = self._track.find(input_ids, layout)
        if moment is None:
            moment = self._track.begin(ids, ids.shape[1], self.purgen_transform, scores.shape[1])
        view = moment.view(ids, self._track)
        result, state = self.purgen_transform.apply(moment.state, scores, view)
        self._track.keep(input_ids, dataclasses.replace(moment, state=state))
        return result[: len(result) // 2] if layout.paired else result


class PurgenStoppingCriteria(transformers.StoppingCriteria):
    """A stop rule as transformers calls it; made by `to_stopping_criteria`.

    Attributes:
        purgen_rule: the rule.
    """

    def __init__(self, rule: StopRule, track: Track) -> None:
        self.purgen_rule = rule
        self._track = track

    def reset(self) -> None:
        """Makes the next call the first of a generation."""
        self._track.reset()

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Asks the rule about the newest token of each row.

        Args:
            input_ids: int64 [B, L], the tokens so far.
            scores: floating [B, V] of each step so far, or None.
            **kwargs: not looked at.

        Returns:
            bool [B].
        """
        moment = self._track.find(input_ids, Layout())
        if moment is None:
            prompt_length = max(input_ids.shape[1] - 1, 1)
            moment = self._track.begin(input_ids, prompt_length, self.purgen_rule, 0)
        view = moment.view(input_ids, self._track)
        stop, state = self.purgen_rule.check(moment.state, _with_scores(view, scores))
        self._track.keep(input_ids, dataclasses.replace(moment, state=state))
        return stop


class _ViewWithoutScores(TokenView):
    """A view that says what is missing when a rule looks at probabilities."""

    @property
    def logprob(self) -> Tensor:
        return self._missing()

    @property
    def entropy(self) -> Tensor:
        return self._missing()

    def _missing(self) -> Tensor:
        raise ValueError(
            "this stop rule looks at probabilities, which transformers hands over without beams and "
            "with generate(…, return_dict_in_generate=True, output_scores=True) only"
        )


def _with_scores(view: TokenView, scores: Any) -> TokenView:
    if isinstance(scores, tuple | list) and scores and len(scores[-1]) == len(view.start):
        logprobs = purgen.log_softmax(scores[-1])
        newest = purgen.last_token(view)[:, None]
        logprob = logprobs.gather(1, newest)[:, 0]
        return purgen.replace(view, logprob=logprob, entropy=purgen.entropy(scores[-1]))
    bare: TokenView = object.__new__(_ViewWithoutScores)
    fields = {field.name: getattr(view, field.name) for field in dataclasses.fields(view)}
    vars(bare).update(fields)
    return bare
