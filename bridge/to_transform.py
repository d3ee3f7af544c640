"""`bridge.to_transform`: logits processors of transformers as purgen's transforms."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from transformers.generation import logits_process

import purgen
from bridge.errors import Unsupported
from bridge.processors import PROCESSORS, prefix_constrained
from purgen import LogitsTransform

__all__ = ["nearest", "to_transform"]


def to_transform(
    processor: Any, *, eos_token_id: int | Iterable[int] | Tensor | None = None
) -> LogitsTransform:
    """Makes a pure transform of a logits processor of transformers.

    Settings are read off its attributes; the processor is neither called nor kept. What it gives
    on rows without pads, the transform gives, wherever the class is right (each factory of purgen says
    where it is not). Three differ by nature:

    - `WatermarkLogitsProcessor` becomes `purgen.green_list_watermark`: the same watermark with other
      lists, which `purgen.watermark` detects, and the detector of transformers does not.
    - `ClassifierFreeGuidanceLogitsProcessor` and Dia's return half of the rows; a transform keeps all.
    - `PrefixConstrainedLogitsProcessor` calls a Python function. Given `eos_token_id`, that is
      tabulated when a generation begins (`purgen.prefix_allowed_tokens`); else it is called in each
      step, which runs under `loop="eager"` only.

    A processor that counts from a column of the batch (such as `prompt_length_to_skip`) was made for
    one batch: a column at or behind the end of the longest prompt is so many tokens behind the end of
    each row's own prompt, whatever its pads.

    Args:
        processor: a logits processor, or a list of them, such as a `LogitsProcessorList`; lists within
            lists are allowed, and purgen's transforms among them.
        eos_token_id: ids that end a row, for a `PrefixConstrainedLogitsProcessor`, which does not know.

    Returns:
        A `LogitsTransform`; of a list, their `purgen.chain`.

    Raises:
        Unsupported: a class of your own or otherwise unknown; the message names the nearest factory.
            `UnbatchedClassifierFreeGuidanceLogitsProcessor`, which is the strategy `purgen.guided`.

    Example:
        >>> import bridge, torch, transformers, purgen
        >>> processors = transformers.LogitsProcessorList(
        ...     [transformers.TemperatureLogitsWarper(0.5), transformers.TopKLogitsWarper(2)]
        ... )
        >>> warp = bridge.to_transform(processors)
        >>> view = purgen.testing.example_view(batch_size=1, vocab_size=4)
        >>> warp.apply(warp.init(view), torch.tensor([[1.0, 3.0, 2.0, 0.0]]), view)[0]
        tensor([[-inf, 6., 4., -inf]])
    """
    if isinstance(processor, LogitsTransform):
        return processor
    if isinstance(processor, list | tuple):
        members = [to_transform(member, eos_token_id=eos_token_id) for member in processor]
        return purgen.chain(*members)
    made = getattr(processor, "purgen_transform", None)
    if isinstance(made, LogitsTransform):  # one of ours, on its way back
        return made
    kind = type(processor)
    name = kind.__name__
    if kind is not getattr(logits_process, name, None) or name not in PROCESSORS:
        raise Unsupported(
            f"to_transform: {name} is no logits processor that bridge knows; "
            f"{nearest(name, PROCESSORS)}. A pure function of your own becomes a transform by "
            "purgen.stateless(fn) or purgen.LogitsTransform(init, apply)"
        )
    if kind is logits_process.PrefixConstrainedLogitsProcessor:
        return prefix_constrained(processor, eos_token_id)
    return PROCESSORS[name][1](processor)


def nearest(name: str, table: Mapping[str, tuple[str, Any]]) -> str:
    """Says which of purgen's factories a class is likely to be.

    Args:
        name: the name of a class.
        table: by names of transformers, names of purgen and more.

    Returns:
        A part of a sentence.
    """
    found = difflib.get_close_matches(name, table, n=1, cutoff=0.5)
    if not found:
        return f"purgen has {', '.join(factory for factory, _ in table.values())}"
    return f"the nearest is purgen.{table[found[0]][0]} (for {found[0]})"
