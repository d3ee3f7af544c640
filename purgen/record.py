"""What a generation can record of its steps, reduced in the step: O(B · N), never [N, B, V]."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from torch import Tensor

from purgen.logits import entropy, forbid_nan, log_softmax

__all__ = ["Recorder", "resolve_record", "top_logprobs", "top_tokens"]


@dataclasses.dataclass(frozen=True)
class Recorder:
    """A quantity computed in each step.

    Attributes:
        name: its key in `GenerationOutput.record`.
        measure: `measure(logits [B, V], model_logits [B, V], token [B]) -> [B] or [B, …]`, a pure
            function. `logits` are those that the token was chosen from.

    Example:
        >>> import purgen
        >>> def measure(logits, model_logits, token):
        ...     best = logits.topk(2).values
        ...     return best[:, 0] - best[:, 1]
        >>> margin = purgen.Recorder("margin", measure)  # generate(..., record=["logprob", margin])
    """

    name: str
    measure: Callable[[Tensor, Tensor, Tensor], Tensor]


def top_logprobs(k: int) -> Recorder:
    """Records the k highest log-probabilities, best first.

    Args:
        k: how many, at least 1.

    Returns:
        A `Recorder` of float32 [B, k] named "top_logprobs".

    Example:
        >>> import purgen
        >>> purgen.top_logprobs(3).name
        'top_logprobs'
    """
    _check_count("top_logprobs", k)
    return Recorder("top_logprobs", _Top(k, ids=False))


def top_tokens(k: int) -> Recorder:
    """Records the ids of the k likeliest tokens, best first.

    Args:
        k: how many, at least 1.

    Returns:
        A `Recorder` of int64 [B, k] named "top_tokens".

    Example:
        >>> import purgen
        >>> purgen.top_tokens(3).name
        'top_tokens'
    """
    _check_count("top_tokens", k)
    return Recorder("top_tokens", _Top(k, ids=True))


def resolve_record(record: str | Recorder | Iterable[str | Recorder]) -> tuple[Recorder, ...]:
    """Turns what the caller of `generate` wrote into recorders.

    Args:
        record: names ("token", "logprob", "entropy", "model_logprob", "model_entropy", "rank",
            "top_logprobs", "top_tokens": the last two with k = 5) or recorders.

    Returns:
        The recorders, in order.

    Raises:
        TypeError: something else.
        ValueError: an unknown name, or one given twice.
    """
    items = [record] if isinstance(record, str | Recorder) else list(record)
    known = {recorder.name: recorder for recorder in _BUILT_IN}
    chosen: dict[str, Recorder] = {}
    for item in items:
        if not isinstance(item, str | Recorder):
            raise TypeError(f"record must hold names and Recorders, not {item!r}")
        if isinstance(item, str) and item not in known:
            raise ValueError(f"record: unknown name {item!r}; known are {sorted(known)}")
        recorder = known[item] if isinstance(item, str) else item
        if recorder.name in chosen:
            raise ValueError(f"record: {recorder.name!r} is given twice")
        chosen[recorder.name] = recorder
    return tuple(chosen.values())


@dataclasses.dataclass(frozen=True)
class _Top:
    k: int
    ids: bool

    def __call__(self, logits: Tensor, model_logits: Tensor, token: Tensor) -> Tensor:
        best = log_softmax(logits).topk(min(self.k, logits.shape[-1]), dim=-1)
        return best.indices if self.ids else best.values


def _check_count(owner: str, k: int) -> None:
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ValueError(f"{owner}: k must be an int of at least 1, not {k!r}")


def _at(scores: Tensor, token: Tensor) -> Tensor:
    return scores.gather(-1, token[:, None])[:, 0]


def _token(logits: Tensor, model_logits: Tensor, token: Tensor) -> Tensor:
    return token


def _logprob(logits: Tensor, model_logits: Tensor, token: Tensor) -> Tensor:
    return _at(log_softmax(logits), token)


def _model_logprob(logits: Tensor, model_logits: Tensor, token: Tensor) -> Tensor:
    return _at(log_softmax(model_logits), token)


def _entropy(logits: Tensor, model_logits: Tensor, token: Tensor) -> Tensor:
    return entropy(logits)


def _model_entropy(logits: Tensor, model_logits: Tensor, token: Tensor) -> Tensor:
    return entropy(model_logits)


def _rank(logits: Tensor, model_logits: Tensor, token: Tensor) -> Tensor:
    """How many tokens the model likes better than the one chosen."""
    scores = forbid_nan(model_logits)
    return (scores > _at(scores, token)[:, None]).sum(dim=-1)


_BUILT_IN = (
    Recorder("token", _token),
    Recorder("logprob", _logprob),
    Recorder("entropy", _entropy),
    Recorder("model_logprob", _model_logprob),
    Recorder("model_entropy", _model_entropy),
    Recorder("rank", _rank),
    top_logprobs(5),
    top_tokens(5),
)
