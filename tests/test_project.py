"""The project's own files: what is depended on, what is imported, what run.py does."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def run():
    """run.py as a module."""
    spec = importlib.util.spec_from_file_location("purgen_run", ROOT / "run.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def requirements(project):
    """Every requirement, those of the extras too, but for an extra that names another extra."""
    texts = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        texts += extra
    found = [Requirement(text) for text in texts]
    return [requirement for requirement in found if requirement.name != "purgen"]


def pins():
    """Name -> version of every line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in found:
        assert [one.operator for one in requirement.specifier] == ["=="], str(requirement)
    return {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
        for requirement in found
    }


class TestDependencies:
    @pytest.mark.parametrize(
        ("name", "oldest"), [("torch", "2.11"), ("transformers", "5.17"), ("optree", "0.13")]
    )
    def test_range_is_a_lower_bound_and_open_above(self, project, name, oldest):
        found = [one for one in map(Requirement, project["dependencies"]) if one.name == name]
        assert len(found) == 1
        assert str(found[0].specifier) == f">={oldest}"

    def test_every_requirement_has_a_lower_bound(self, project):
        for requirement in requirements(project):
            assert [one.operator for one in requirement.specifier] == [">="], str(requirement)

    def test_optree_bound_is_that_of_torch(self, project):
        pytree = pytest.importorskip("torch.utils._pytree")
        bound = next(
            one for one in map(Requirement, project["dependencies"]) if one.name == "optree"
        )
        assert Version(str(pytree._optree_minimum_version)) in bound.specifier

    def test_functorch_is_no_dependency(self, project):
        assert "functorch" not in {one.name for one in requirements(project)}
        assert "functorch" not in pins()

    def test_every_requirement_has_a_pin_in_its_range(self, project):
        pinned = pins()
        for requirement in requirements(project):
            version = pinned[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement} and {version}"

    def test_pins_are_what_is_installed(self, run):
        # Only where run.py installed: who brings an environment may bring other versions.
        if not run.installed_extras(Path(sys.prefix) / run.STAMP, run.fingerprint(ROOT)):
            pytest.skip("this environment was not set up by run.py")
        wrong = {}
        for name, version in pins().items():
            try:
                installed = Version(importlib.metadata.version(name)).public
            except importlib.metadata.PackageNotFoundError:
                continue  # of an extra that is not installed
            if installed != version:
                wrong[name] = (installed, version)
        assert not wrong

    def test_python_bound_is_the_same_everywhere(self, project):
        assert project["requires-python"] == ">=3.11"
        assert "sys.version_info < (3, 11)" in (ROOT / "run.py").read_text(encoding="utf-8")

    def test_metadata_of_the_distribution(self, project):
        if project["name"] not in {one.name for one in importlib.metadata.distributions()}:
            pytest.skip("purgen is not installed, only on the path")
        assert importlib.metadata.version("purgen") == project["version"]


class TestImports:
    def test_purgen_imports_without_what_only_bridge_and_extras_need(self):
        # Every module of purgen, in a fresh interpreter where importing these raises ImportError.
        script = """
import importlib, pkgutil, sys
for name in ("bridge", "transformers", "tokenizers", "safetensors", "gguf", "accelerate", "pandas",
             "scipy", "matplotlib", "pytest", "hypothesis", "ctranslate2", "jax"):
    sys.modules[name] = None
import purgen
for module in pkgutil.walk_packages(purgen.__path__, "purgen."):
    importlib.import_module(module.name)
"""
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def test_purgen_names_transformers_in_no_import(self):
        for path in sorted((ROOT / "purgen").rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                roots = {name.partition(".")[0] for name in names}
                assert not roots & {"transformers", "bridge", "functorch"}, f"{path}:{node.lineno}"

    @pytest.mark.parametrize("package", ["purgen", "bridge"])
    def test_packages_are_typed(self, package):
        assert (ROOT / package / "py.typed").is_file()


def own_files():
    """The files of the project: what git tracks or would track, else what lies in the folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [ROOT / line for line in done.stdout.splitlines()]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive, or no git here
        folders = [ROOT / name for name in ("purgen", "bridge", "tests", "examples", "benchmarks")]
        paths = [path for folder in folders for path in folder.rglob("*")]
        paths += [path for path in ROOT.iterdir() if path.suffix in (".py", ".md", ".toml", ".txt")]
    files = (path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    return sorted(files)


# Each pattern is written so that it does not match itself.
FOREIGN = {
    "a folder of one machine": r"(?<![\w.~$}*-])/(?:root|work|opt|home/\w+|Users/\w+)/\w",
    "a folder of one Windows machine": r"[A-Z]:\\\\?Users\\",
    "a package index": r"(?:pypi\.(?:org|python)|pythonhosted|download\.pytorch)[.]",
    "an option that names a package index": r"--(?:extra-)?index[-]url|--find[-]links",
}


class TestFiles:
    @pytest.mark.parametrize("kind", FOREIGN)
    def test_no_file_holds(self, kind):
        found = []
        for path in own_files():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            found += [
                f"{path.relative_to(ROOT)}: {match.group()}"
                for match in re.finditer(FOREIGN[kind], text)
            ]
        assert not found

    def test_patterns_find_what_they_are_for(self):
        samples = {
            "a folder of one machine": '"/' + "home/ada/checkout",
            "a folder of one Windows machine": "C:\\" + "Users\\ada",
            "a package index": "https://pypi." + "org./simple",
            "an option that names a package index": "--index" + "-url x",
        }
        for kind, pattern in FOREIGN.items():
            assert re.search(pattern, samples[kind]), kind

    def test_licence_is_apache_2(self, project):
        assert project["license"] == "Apache-2.0"
        text = (ROOT / "LICENSE").read_text(encoding="utf-8")
        assert "Apache License" in text
        assert "END OF TERMS AND CONDITIONS" in text

    @pytest.mark.skipif(sys.platform == "win32", reason="no executable bit")
    def test_gate_is_executable(self):
        assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def run_py(*arguments):
    command = [sys.executable, str(ROOT / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TestRunPyCommandLine:
    def test_unknown_command(self):
        done = run_py("quikstart")
        assert done.returncode == 2
        assert "unknown command 'quikstart'" in done.stderr
        assert "quickstart, test, lint, examples, setup" in done.stderr
        assert done.stdout == ""

    def test_no_command(self):
        done = run_py()
        assert done.returncode == 2
        assert "which command?" in done.stderr

    def test_help(self):
        done = run_py("--help")
        assert done.returncode == 0
        assert "run.py quickstart" in done.stdout

    def test_unknown_extra_and_example_install_nothing(self):
        done = run_py("setup", "everything")
        assert done.returncode == 2
        assert "no such extra: everything" in done.stderr
        done = run_py("examples", "no_such_example")
        assert done.returncode == 2
        assert "no such example: no_such_example" in done.stderr

    def test_help_names_every_command_and_extra(self, run, project):
        for name in [*run.COMMANDS, *project["optional-dependencies"]]:
            assert name in run.__doc__

    def test_extras_and_checkpoint_exist(self, run, project):
        extras = set(project["optional-dependencies"])
        assert {extra for needed in run.EXTRAS.values() for extra in needed} <= extras
        assert extras >= run.WITH_CHECKPOINT
        assert run.CHECKPOINT in pins()


class TestRunPyStamp:
    @pytest.fixture
    def checkout(self, tmp_path):
        folder = tmp_path / "checkout"
        folder.mkdir()
        (folder / "pyproject.toml").write_text("[project]\n")
        (folder / "constraints.txt").write_text("torch==1\n")
        return folder

    def test_fingerprint_is_stable(self, run, checkout):
        assert run.fingerprint(checkout) == run.fingerprint(checkout)

    @pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
    def test_fingerprint_follows_requirements_and_versions(self, run, checkout, name):
        before = run.fingerprint(checkout)
        (checkout / name).write_text("changed\n")
        assert run.fingerprint(checkout) != before

    def test_fingerprint_follows_the_place(self, run, checkout):
        before = run.fingerprint(checkout)
        assert run.fingerprint(checkout.rename(checkout.with_name("moved"))) != before

    def test_what_is_written_is_read(self, run, tmp_path):
        stamp = tmp_path / run.STAMP
        run.write_stamp(stamp, "abc", ["test", "demo"])
        assert run.installed_extras(stamp, "abc") == {"demo", "test"}
        assert run.installed_extras(stamp, "abd") == frozenset()
        assert [path.name for path in tmp_path.iterdir()] == [run.STAMP]

    @pytest.mark.parametrize(
        "text",
        [None, "", "{", "[]", "null", "{}", '{"fingerprint": "abc"}', '{"extras": ["demo"]}'],
    )
    def test_a_broken_stamp_vouches_for_nothing(self, run, tmp_path, text):
        stamp = tmp_path / run.STAMP
        if text is not None:
            stamp.write_text(text)
        assert run.installed_extras(stamp, "abc") == frozenset()


class TestRunPySetUp:
    """`set_up` with a pip that only writes down what it is asked for."""

    @pytest.fixture
    def env(self, run, tmp_path, monkeypatch):
        made = run.Environment(tmp_path, Path(sys.executable), ours=False)
        monkeypatch.setattr(run, "environment", lambda: made)
        monkeypatch.setattr(run, "_prepare", lambda env: None)
        return made

    @pytest.fixture
    def calls(self, run, env, monkeypatch):
        asked = []
        monkeypatch.setattr(run, "_pip", lambda env, *arguments: asked.append(arguments))
        return asked

    def test_installs_once(self, run, env, calls):
        run.set_up(["demo"])
        assert calls == [("--editable", ".[demo]"), ("--no-deps", run.CHECKPOINT)]
        assert json.loads(env.stamp.read_text())["extras"] == ["demo"]
        run.set_up(["demo"])
        assert len(calls) == 2

    def test_another_extra_is_added_and_the_first_kept(self, run, calls):
        run.set_up(["demo"])
        calls.clear()
        run.set_up(["notebooks"])
        assert calls == [("--editable", ".[demo,notebooks]")]
        run.set_up(["demo"])
        assert len(calls) == 1

    def test_an_extra_without_the_checkpoint_first(self, run, calls):
        run.set_up(["notebooks"])
        assert calls == [("--editable", ".[notebooks]")]
        run.set_up(["test"])
        assert calls[1:] == [("--editable", ".[notebooks,test]"), ("--no-deps", run.CHECKPOINT)]

    def test_an_interrupted_set_up_is_redone(self, run, env, calls, monkeypatch):
        run.set_up(["demo"])

        def interrupted(env, *arguments):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(run, "_pip", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.set_up(["test"])
        assert not env.stamp.exists()
        calls.clear()
        run.set_up(["demo"])
        assert calls == [("--editable", ".[demo]"), ("--no-deps", run.CHECKPOINT)]

    def test_a_failing_pip_is_shown_with_advice(self, run, env, monkeypatch):
        def failing(command, *, cwd, stdout, stderr):
            assert command[:4] == [str(env.python), "-m", "pip", "install"]
            assert "constraints.txt" in command
            stdout.write("Collecting torch\nERROR: No matching distribution found for torch==9\n")
            return 1

        monkeypatch.setattr(run.subprocess, "call", failing)
        with pytest.raises(run.SetupError) as caught:
            run.set_up(["demo"])
        message = str(caught.value)
        assert "pip failed (exit code 1)" in message
        assert "    ERROR: No matching distribution found for torch==9" in message
        assert "package index" in message
        assert str(env.log) in message
        assert not env.stamp.exists()

    def test_main_turns_a_failed_set_up_into_an_exit_code(self, run, monkeypatch, capsys):
        def failing(extras):
            raise run.SetupError("pip is unwell")

        monkeypatch.setattr(run, "set_up", failing)
        assert run.main(["quickstart"]) == 3
        assert "run.py: pip is unwell" in capsys.readouterr().err


class TestRunPyPrepare:
    @pytest.fixture
    def probe(self, run, monkeypatch):
        """Sets what the Python of the environment is like."""

        def pretend(**found):
            monkeypatch.setattr(run, "_probe", lambda python: found)

        return pretend

    def test_no_pip(self, run, tmp_path, probe):
        probe(version=[3, 12], pip=False)
        with pytest.raises(run.SetupError, match="has no pip"):
            run._prepare(run.Environment(tmp_path, Path("python"), ours=False))

    def test_an_old_python(self, run, tmp_path, probe):
        probe(version=[3, 10], pip=True)
        with pytest.raises(run.SetupError, match=r"holds Python 3\.10; purgen needs 3\.11"):
            run._prepare(run.Environment(tmp_path, Path("python"), ours=False))

    def test_a_python_that_does_not_run(self, run, tmp_path):
        assert run._probe(tmp_path / "no-such-python") == {}
        with pytest.raises(run.SetupError, match="does not run"):
            run._prepare(run.Environment(tmp_path, tmp_path / "no-such-python", ours=False))

    def test_a_python_that_cannot_make_environments(self, run, tmp_path, probe, monkeypatch):
        def refuse(command, **options):
            assert command[1:3] == ["-m", "venv"]
            return subprocess.CompletedProcess(command, 1, "ensurepip is not available", "")

        probe()
        monkeypatch.setattr(run.subprocess, "run", refuse)
        with pytest.raises(run.SetupError, match=r"ensurepip is not available\n.*python3\.11-venv"):
            run._prepare(run.Environment(tmp_path, tmp_path / "python", ours=True))

    def test_probe_of_this_python(self, run):
        assert run._probe(Path(sys.executable))["version"] == list(sys.version_info[:2])

    def test_a_virtual_environment_is_used_else_the_one_of_the_checkout(self, run, monkeypatch):
        monkeypatch.setattr(sys, "prefix", "here")
        monkeypatch.setattr(sys, "base_prefix", "elsewhere")
        assert run.environment().folder == Path("here")
        assert not run.environment().ours
        monkeypatch.setattr(sys, "base_prefix", "here")
        assert run.environment().folder == ROOT / ".venv"
        assert run.environment().ours


class TestRunPyDistribution:
    def test_one_worker_a_processor_and_one_thread_a_worker(self, run):
        options, variables = run.distribution(["-k", "beam"], 2)
        assert options == ["-n", "2", "--dist", "worksteal"]
        assert variables["OMP_NUM_THREADS"] == "1"
        assert run.distribution([], 64)[0][:2] == ["-n", "4"]

    @pytest.mark.parametrize("argument", ["-n0", "-n", "--numprocesses=3", "--pdb", "--co"])
    def test_the_user_wins(self, run, argument):
        assert run.distribution([argument], 8) == ([], {})

    def test_one_processor(self, run):
        assert run.distribution([], 1) == ([], {})

    def test_other_arguments_are_not_mistaken(self, run):
        assert run.distribution(["--color=no", "--no-header"], 2)[0]

    def test_exit_code_of_a_signal(self, run):
        if sys.platform == "win32":
            pytest.skip("no signals")
        assert run.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137

    def test_variables_of_the_user_win(self, run, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        script = "import os, sys; sys.exit(int(os.environ['OMP_NUM_THREADS']))"
        assert run.run([sys.executable, "-c", script], {"OMP_NUM_THREADS": "1"}) == 7
