"""The check that a bridged model makes at load: does it compute what its module computes?

A few tokens go through `prefill` and `apply`, with a left pad, rows at positions of their own (where
rows can be rewound) and past a small window, and once through the module's own forward, without a
cache and with its own masks. A model that reads images goes through it once more, with some.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.encoder_decoder import EncoderDecoder, example_inputs
from bridge.errors import Unsupported
from bridge.families import Functions
from bridge.image_text import ImageText, example_images
from bridge.skeleton import Skeleton

__all__ = ["self_check"]

# Largest error allowed, relative to the size of the logits (root mean square of both). Rounding
# gives 1e-6 in float32 and 1e-2 in 16 bits; a wrong mask or position gives 1e-1 and more.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_TOLERANCE_OTHERS = 1e-1

_WIDTH = 7  # slots, of which the last three are fed by apply
_LONGEST = 40  # slots, where a window can be passed with them
_PADS = 2


@torch.no_grad()
def self_check(functions: Functions, skeleton: Skeleton, params: dict[str, Tensor]) -> int:
    """Compares the pure functions with the module's forward.

    Args:
        functions: what an adapter made.
        skeleton: the structure that it was made from.
        params: the parameters.

    Returns:
        V, the width of the logits.

    Raises:
        Unsupported: they disagree; the message says by how much.
    """
    cases = [_inputs_case if isinstance(functions, EncoderDecoder) else _text_case]
    if isinstance(functions, ImageText):
        cases.append(_images_case)
    for case in cases:
        error, logits = _error(functions, params, *case(functions, skeleton, params))
        tolerance = _TOLERANCE.get(logits.dtype, _TOLERANCE_OTHERS)
        if not error <= tolerance:  # NaN disagrees too
            raise Unsupported(
                f"model type {skeleton.module.config.model_type!r}: prefill and apply give other "
                f"logits than the module's own forward (relative error {error:.1e}, allowed "
                f"{tolerance:.0e})"
            )
    return logits.shape[-1]


# tokens [2, P], mask [2, P], inputs of the prefill, logits [2, P, V] of the module's own forward
_Case = tuple[Tensor, Tensor, Any, Tensor]


def _text_case(functions: Functions, skeleton: Skeleton, params: dict[str, Tensor]) -> _Case:
    tokens = _text(functions, skeleton, params)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, :_PADS] = False
    expected = skeleton(
        params, tokens, position_ids=_rank(mask), attention_mask=mask.to(torch.int64)
    ).logits
    return tokens, mask, None, expected


def _inputs_case(functions: Functions, skeleton: Skeleton, params: dict[str, Tensor]) -> _Case:
    tokens = _text(functions, skeleton, params)
    inputs = example_inputs(skeleton, params, rows=2)
    expected = skeleton.run(params, {**inputs, "decoder_input_ids": tokens, "use_cache": False})
    return tokens, torch.ones_like(tokens, dtype=torch.bool), inputs, expected.logits


def _images_case(functions: Functions, skeleton: Skeleton, params: dict[str, Tensor]) -> _Case:
    assert isinstance(functions, ImageText)
    inputs, count = example_images(skeleton, params, count=2)
    text = _text(functions, skeleton, params)
    pixels = text.new_full((2, count), functions.image_token)
    tokens = torch.cat([text[:, :_PADS], pixels, text[:, _PADS:]], dim=1)
    # In the second row the image begins elsewhere.
    tokens[1] = torch.cat([text[1, :1], pixels[1], text[1, 1:]])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, : _PADS - 1] = False
    kinds = (tokens == functions.image_token).to(torch.int64)
    types = {name: kinds for name in functions.known if name.endswith("token_type_ids")}
    expected = skeleton(
        params,
        tokens,
        position_ids=None if functions.moves else _rank(mask),
        attention_mask=mask.to(torch.int64),
        inputs={**inputs, **types},
    ).logits
    return tokens, mask, inputs, expected


def _text(functions: Functions, skeleton: Skeleton, params: dict[str, Tensor]) -> Tensor:
    """Returns int64 [2, P] ids, none of which stands for anything but itself."""
    width, ids = _width(functions), skeleton.num_ids
    device = params[skeleton.embedding].device
    tokens = (torch.arange(2 * width, device=device) * 31 + 7).reshape(2, width) % ids
    for special in (getattr(functions, name, None) for name in ("image_token", "video_token")):
        tokens = torch.where(tokens == special, (tokens + 1) % ids, tokens) if special else tokens
    return tokens


def _rank(mask: Tensor) -> Tensor:
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def _error(
    functions: Functions,
    params: dict[str, Tensor],
    tokens: Tensor,
    mask: Tensor,
    inputs: Any,
    expected: Tensor,
) -> tuple[float, Tensor]:
    """Returns the relative error of the pure functions' logits, and these."""
    width, device = tokens.shape[1], tokens.device
    out = functions.prefill(
        params,
        tokens[:, :-3],
        functions.init_cache(2, width + 1),
        mask=mask[:, :-3],
        inputs=inputs,
    )
    got = [out.logits]
    out = functions.apply(params, tokens[:, -3:-1], out.cache)
    got.append(out.logits)
    # Where that is allowed, row 1 rewinds by one slot and is fed the same token again: rows at
    # positions of their own.
    back = int(functions.layout.slot_addressed)
    last = torch.stack([tokens[0, -1], tokens[1, -1 - back]])[:, None]
    position = torch.tensor([width - 1, width - 1 - back], device=device)
    out = functions.apply(params, last, out.cache, cache_position=position)
    got.append(out.logits)
    actual = torch.cat(got, dim=1)
    expected = torch.cat(
        [expected[:, :-1], torch.stack([expected[0, -1:], expected[1, width - 1 - back :][:1]])],
        dim=1,
    )
    wanted, found = expected[mask].double(), actual[mask].double()
    error = (found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    return float(error), actual


def _width(functions: Functions) -> int:
    """Returns how many slots the check goes over: past the smallest window, if that is small."""
    windows = [
        spec.attention.window
        for spec in functions.layout.specs
        if spec.attention is not None and spec.attention.window is not None
    ]
    passed = min(windows, default=_LONGEST) + 4
    return max(_WIDTH, passed) if passed <= _LONGEST else _WIDTH
