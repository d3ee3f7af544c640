"""`bridge.load`: whatever Hugging Face calls a model, as pure functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transformers

from bridge.cache_kinds import CacheKind
from bridge.families import adapter_of
from bridge.gguf import converted
from bridge.model import HFModel, from_module

__all__ = ["load"]


def load(
    source: Any,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    tokenizer: Any = None,
    cache: CacheKind | None = None,
) -> HFModel:
    """Makes a `purgen.Model` of a Hugging Face model.

    Before it returns, it runs a few tokens through the pure functions and through the module's own
    forward, and refuses a model for which they disagree.

    Args:
        source: a model id on the hub, a local folder, the path of a `.gguf` file (unpacked to
            float32 once, into a cache folder), or a `PreTrainedModel`, which is only read: its
            parameters are shared, its mode and hooks stay as they are, dropout is off here whatever
            its mode.
        dtype: torch.dtype or its name; None: as the checkpoint says (float32 for GGUF).
        device: where to put the parameters; None: the CPU, or where the module is.
        max_length: the longest sequence in tokens; None: what the configuration says.
        trust_remote_code: whether code that comes with the checkpoint may run.
        tokenizer: a transformers tokenizer in place of the checkpoint's; a `PreTrainedModel` has
            none.
        cache: what the layers keep: `bridge.ring_cache()`, `bridge.quantized_cache()`; None:
            everything.

    Returns:
        The model.

    Raises:
        Unsupported: the model type, or a setting of it, is not supported; or the pure functions do
            not compute what the module does.
        ValueError: `dtype` or `device` differ from those of a given module, or the checkpoint lacks
            weights.
        FileNotFoundError: a path that does not exist.
        OSError: the hub cannot be reached, or has no such model.

    Example:
        >>> model = bridge.load("HuggingFaceTB/SmolLM2-135M-Instruct")  # doctest: +SKIP
        >>> model = bridge.load(bridge.embedded_checkpoint())  # doctest: +SKIP
        >>> model.decode(model.encode(["Hello"]).tokens)  # doctest: +SKIP
        ['Hello']
    """
    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not isinstance(wanted, torch.dtype):
        raise ValueError(f"load: dtype must be a torch.dtype or its name, not {dtype!r}")
    place = None if device is None else torch.device(device)
    if isinstance(source, transformers.PreTrainedModel):
        _check_module(source, wanted, place)
        return from_module(source, tokenizer=tokenizer, max_length=max_length, cache=cache)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "load: source must be a hub id, a path or a PreTrainedModel, "
            f"not {type(source).__name__}"
        )
    name = _resolve(os.fspath(source))
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options)
        adapter_of(config)  # refuses before anything large is read
        module, report = _class_for(config).from_pretrained(
            name, dtype=wanted or "auto", output_loading_info=True, **options
        )
        if tokenizer is None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
    except OSError as error:
        raise OSError(_why(name, error)) from error
    for problem in ("missing_keys", "mismatched_keys"):
        if report.get(problem):
            raise ValueError(
                f"load: the checkpoint {name!r} is not whole, {problem.replace('_', ' ')}: "
                f"{sorted(map(str, report[problem]))[:5]}"
            )
    if place is not None:
        module = module.to(place)
    return from_module(module, tokenizer=tokenizer, max_length=max_length, cache=cache)


def _class_for(config: Any) -> Any:
    """Returns the auto class that knows a configuration, with a language modelling head."""
    classes: tuple[Any, ...] = (
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForImageTextToText,
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForSpeechSeq2Seq,
    )
    if getattr(config, "is_encoder_decoder", False):
        classes = classes[2:]
    return next((each for each in classes if type(config) in each._model_mapping), classes[0])


def _check_module(module: Any, dtype: torch.dtype | None, device: torch.device | None) -> None:
    """Refuses to convert a module that the caller holds."""
    advice = "convert it before (module.to(…)), or leave the argument out"
    if dtype is not None and dtype != module.dtype:
        raise ValueError(f"load: dtype is {dtype}, the module is {module.dtype}; {advice}")
    if device is not None:
        same_index = device.index is None or device.index == module.device.index
        if device.type != module.device.type or not same_index:
            raise ValueError(
                f"load: device is {device}, the module is on {module.device}; {advice}"
            )


def _resolve(source: str) -> str:
    """Returns a hub id or a folder."""
    path = Path(source).expanduser()
    if path.suffix.lower() == ".gguf":
        return str(converted(path))
    if path.exists():
        return str(path)
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise FileNotFoundError(f"load: there is no folder {source!r}")
    return source


def _why(name: str, error: OSError) -> str:
    """Returns the message for a checkpoint that cannot be read."""
    if Path(name).is_dir():
        return f"load: the folder {name!r} cannot be read: {error}"
    return (
        f"load: {name!r} is no local folder, and the hub did not give a model of that id: {error}\n"
        "Offline, use a folder or a .gguf file; bridge.embedded_checkpoint() is the path of a "
        "small one (another model: quantised)."
    )
