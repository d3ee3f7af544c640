"""Decoders that read images between their tokens: the images are read in the prefill, once.

A prompt holds an image as tokens of one id, as many as the vision tower makes features of it (the
model's processor writes them), and the pixels as `inputs`. Steps are those of any decoder. Two things
differ: the tokens of an image may see each other in both directions (Gemma 3), and an image may take
another number of positions than of tokens (Qwen2-VL), so that a row's positions run ahead of its
tokens from then on or lag behind; by how much is part of the cache, `"rope_delta"` int64 [B].
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bridge import masks
from bridge.checks import check_image_inputs
from bridge.decoder_only import DecoderOnly, decoder_only
from bridge.layers import Layout
from bridge.skeleton import Skeleton
from purgen.cache import Cache
from purgen.model import ModelOutput
from purgen.pytree import replace

__all__ = ["ImageText", "example_images", "image_text"]

_PIXELS = ("pixel_values", "pixel_values_videos")
# What processors say of each token's kind: read off the tokens here.
_KINDS = ("token_type_ids", "mm_token_type_ids")
_BESIDES = ("image_grid_thw", "video_grid_thw", "image_sizes", "pixel_attention_mask")


def image_text(skeleton: Skeleton, params: dict[str, Tensor]) -> ImageText:
    """Adapts a decoder with a vision tower (see `bridge.families.Adapter`)."""
    functions = decoder_only(skeleton, params)
    config, inner = skeleton.module.config, skeleton.module.model
    accepted = inspect.signature(type(skeleton.module).forward).parameters
    moves = hasattr(inner, "get_rope_index")
    fields = {field.name: getattr(functions, field.name) for field in dataclasses.fields(functions)}
    if moves:
        fields["layout"] = RopeDeltaLayout(
            specs=functions.layout.specs, device=functions.layout.device
        )
    return ImageText(
        **fields,
        image_token=config.image_token_id,
        video_token=getattr(config, "video_token_id", None),
        known=tuple(name for name in (*_PIXELS, *_BESIDES, *_KINDS) if name in accepted),
        both_ways="token_type_ids" in accepted,
        moves=moves,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class RopeDeltaLayout(Layout):
    """`Layout` with how far the positions of a row run ahead of its tokens, `"rope_delta"`."""

    def empty(self, batch_size: int, max_length: int) -> Cache:
        """Returns an empty cache, before any image."""
        cache = super().empty(batch_size, max_length)
        none = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        return replace(cache, layers={**cache.layers, "rope_delta": none})


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ImageText(DecoderOnly):
    """The functions of a model, bound to its structure.

    Attributes:
        image_token: int, the id that stands for a feature of an image.
        video_token: int, that of a video, or None.
        known: names of the inputs that it takes.
        both_ways: whether the tokens of an image attend to each other in both directions.
        moves: whether images take another number of positions than of tokens.
    """

    image_token: int
    video_token: int | None
    known: tuple[str, ...]
    both_ways: bool
    moves: bool

    def prefill(
        self,
        params: Any,
        tokens: Tensor,
        cache: Cache,
        *,
        mask: Tensor,
        inputs: Any = None,
        logits: bool = True,
    ) -> ModelOutput:
        """Reads images and tokens into an empty cache, from slot 0.

        Args:
            params: dict of tensors, like `model.params`.
            tokens: int64 [B, P], with as many image tokens, in the order of the rows, as the images
                have features.
            cache: an empty cache of at least P slots.
            mask: bool (or integers 0 and 1) [B, P], True at real tokens.
            inputs: dict of what the processor makes, by the forward's own names: `pixel_values`, and
                `image_grid_thw` or `image_sizes` where the model wants them. Token types are read off
                the tokens; given ones are taken to say the same. None or empty: a text alone.
            logits: whether those of all positions are wanted; if not, [B, 1, V] or [B, P, V] come back.

        Returns:
            `purgen.ModelOutput` with logits [B, P, V] and the filled cache.

        Raises:
            ValueError: a wrong dtype, shape, device or value, or images and tokens that do not match;
                the message names the argument.
        """
        if not torch.compiler.is_compiling():
            check_image_inputs(
                inputs,
                tokens,
                mask,
                known=self.known,
                image=self.image_token,
                video=self.video_token,
            )
        if not inputs:
            return super().prefill(params, tokens, cache, mask=mask, logits=logits)
        self._check_prefill(params, tokens, cache, mask)
        if self.layout.block is not None and tokens.shape[1] > self.layout.block:
            raise ValueError(
                f"prefill: tokens have {tokens.shape[1]} slots, but this kind of cache reads "
                f"{self.layout.block} at once, and images go into one call; make it larger"
            )
        call = self._first_call(params, tokens, cache, mask)
        kinds = self._kinds(tokens, mask)
        if self.both_ways:
            blocks = _runs(kinds == 1)
            rest = self.layout.capacity(cache) - tokens.shape[1]
            call = dataclasses.replace(call, blocks=nn.functional.pad(blocks, (0, rest), value=-1))
        given = {name: value for name, value in inputs.items() if name not in _KINDS}
        position_ids = masks.rank_at(call.valid, call.slots)
        if self.moves:
            position_ids, delta = self._moved(tokens, mask != 0, kinds, given)
            cache = replace(cache, layers={**cache.layers, "rope_delta": delta})
        return self._run(params, tokens, cache, call, position_ids, logits=logits, inputs=given)

    def _positions(self, cache: Cache, counted: Tensor) -> Tensor:
        return counted + cache.layers["rope_delta"][:, None] if self.moves else counted

    def _kinds(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Returns int64 [B, P]: 1 at images, 2 at videos, 0 at text and pads."""
        kinds = (tokens == self.image_token).to(torch.int64)
        if self.video_token is not None:
            kinds = torch.where(tokens == self.video_token, 2, kinds)
        return torch.where(mask != 0, kinds, 0)

    def _moved(
        self, tokens: Tensor, mask: Tensor, kinds: Tensor, inputs: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Returns positions int64 [3, B, P], and how far those of a row's text run ahead, int64 [B]."""
        # The module wants a token in each row; where there is none yet, its place is not looked at.
        empty = ~mask.any(dim=1)
        real = mask.clone()
        real[:, 0] |= empty
        index = self.skeleton.module.model.get_rope_index
        accepted = inspect.signature(index).parameters
        try:
            position_ids, delta = index(
                tokens,
                attention_mask=real.to(torch.int64),
                **({"mm_token_type_ids": kinds} if "mm_token_type_ids" in accepted else {}),
                **{name: value for name, value in inputs.items() if name in accepted},
            )
        except (RuntimeError, StopIteration, TypeError) as error:
            grids = {name: inputs[name].tolist() for name in inputs if name.endswith("_grid_thw")}
            raise ValueError(
                f"prefill: tokens and inputs do not match: {int((kinds > 0).sum())} tokens stand for "
                f"parts of images or videos, whose shapes are {grids} in patches"
            ) from error
        return position_ids, torch.where(empty, 0, delta.reshape(-1)).to(torch.int64)


def _runs(member: Tensor) -> Tensor:
    """Returns int64 [B, P], the number of the run of True in `member` (bool [B, P]), -1 outside."""
    before = nn.functional.pad(member, (1, 0))[:, :-1]
    return torch.where(member, (member & ~before).cumsum(dim=1) - 1, -1)


class _Method(nn.Module):
    """A method of a module as a module, for `functional_call`."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module = module
        self.name = name

    def forward(self, **arguments: Any) -> Any:
        """Calls it."""
        return getattr(self.module, self.name)(**arguments)


@torch.no_grad()
def example_images(
    skeleton: Skeleton, params: dict[str, Tensor], *, count: int
) -> tuple[dict[str, Any], int]:
    """Makes some images up, for a check.

    Args:
        skeleton: the model's structure.
        params: its parameters.
        count: how many images.

    Returns:
        The inputs, and how many tokens stand for one image.
    """
    vision, weight = skeleton.module.config.vision_config, params[skeleton.embedding]
    channels = getattr(vision, "num_channels", getattr(vision, "in_channels", 3))
    if hasattr(vision, "spatial_merge_size"):  # patches in a row, whatever the image's shape
        merge = vision.spatial_merge_size
        grid = torch.tensor([[1, 2 * merge, 3 * merge]] * count, device=weight.device)
        width = channels * vision.temporal_patch_size * vision.patch_size**2
        shape: tuple[int, ...] = (int(grid.prod(dim=1).sum()), width)
        inputs: dict[str, Any] = {"image_grid_thw": grid}
    else:
        size = vision.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape, inputs = (count, channels, height, width), {}
    wave = torch.sin(torch.arange(math.prod(shape), device=weight.device) * 0.37)
    inputs["pixel_values"] = wave.reshape(shape).to(weight.dtype)
    method = _Method(skeleton.module, "get_image_features")
    named = {f"module.{name}": value for name, value in params.items()}
    features = functional_call(method, named, (), {**inputs, "return_dict": True}).pooler_output
    found = sum(math.prod(part.shape[:-1]) for part in features)
    return inputs, found // count
