"""The check that a bridged model makes at load: does it compute what its module computes?

A few tokens go through `prefill` and `apply`, with a left pad, rows at positions of their own (where
rows can be rewound) and past a small window, and once through the module's own forward, without a
cache and with its own masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bridge.encoder_decoder import EncoderDecoder, example_inputs
from bridge.errors import Unsupported
from bridge.families import Functions
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
    device = params[skeleton.embedding].device
    width = _width(functions)
    inputs = None
    tokens = (torch.arange(2 * width, device=device) * 31 + 7).reshape(2, width) % skeleton.num_ids
    mask = torch.ones(2, width, dtype=torch.bool, device=device)
    if isinstance(functions, EncoderDecoder):
        inputs = example_inputs(skeleton, params, rows=2)
        arguments = {**inputs, "decoder_input_ids": tokens, "use_cache": False}
        expected = skeleton.run(params, arguments).logits
    else:
        mask[0, :_PADS] = False
        position_ids = (mask.cumsum(dim=1) - 1).clamp(min=0)
        expected = skeleton(
            params, tokens, position_ids=position_ids, attention_mask=mask.to(torch.int64)
        ).logits

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
    error = float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
    tolerance = _TOLERANCE.get(actual.dtype, _TOLERANCE_OTHERS)
    if not error <= tolerance:  # NaN disagrees too
        raise Unsupported(
            f"model type {skeleton.config.model_type!r}: prefill and apply give other logits than "
            f"the module's own forward (relative error {error:.1e}, allowed {tolerance:.0e})"
        )
    return actual.shape[-1]


def _width(functions: Functions) -> int:
    """Returns how many slots the check goes over: past the smallest window, if that is small."""
    windows = [
        spec.attention.window
        for spec in functions.layout.specs
        if spec.attention is not None and spec.attention.window is not None
    ]
    passed = min(windows, default=_LONGEST) + 4
    return max(_WIDTH, passed) if passed <= _LONGEST else _WIDTH
