"""The Dockerfile, as far as it can be looked at without a container engine: it parses, and names what there is."""

import fnmatch
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# As the templates of `ps-lab manifest` have them: tests/manifests/test_manifests.py.
USER, GRPC_PORT, DATA_PORT = 10001, 7070, 7071
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = CONFIG["project"]
KNOWN = ("ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "CMD")


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each, in order; comments and line ends within are gone."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, rest in found]


def of(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def test_every_instruction_is_one() -> None:
    assert {name for name, _ in instructions()} <= set(KNOWN)
    names = [name for name, _ in instructions()]
    assert names[names.index("FROM") - 1] == "ARG" and len(of("FROM")) == 2


def test_it_does_not_run_as_root() -> None:
    """The last USER counts; a number, which Kubernetes can compare."""
    assert of("USER") == [f"{USER}:{USER}"]
    assert any(f"--uid {USER}" in rest for rest in of("RUN"))
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(index for index, name in enumerate(names) if name == "RUN")


def test_the_command_is_in_exec_form_and_installed_by_the_project() -> None:
    """No shell stands between the process and the signal that ends it."""
    [text] = of("CMD")
    command = json.loads(text)
    assert command[0] in PROJECT["scripts"] and all(isinstance(word, str) for word in command)
    assert not of("ENTRYPOINT")
    assert any("/opt/paramserver/bin" in rest.split("PATH=")[1] for rest in of("ENV"))
    assert of("EXPOSE") == [f"{GRPC_PORT} {DATA_PORT}"]


def test_its_shell_lines_are_shell() -> None:
    for line in of("RUN"):
        done = subprocess.run(["sh", "-n", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("extras", "expected"), [("worker,examples", ".[worker,examples]"), ("", ".")])
def test_the_extras_are_behind_the_folder(extras: str, expected: str) -> None:
    """As pip gets it."""
    [install] = [line for line in of("RUN") if "pip install" in line]
    what = shlex.split(install, posix=False)[-1]
    environment = {"PATH": "/usr/bin:/bin", "EXTRAS": extras}
    done = subprocess.run(
        ["sh", "-c", f"printf %s {what}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == expected


def test_extra_and_python_are_ones_that_the_project_has() -> None:
    said = dict(rest.split("=", 1) for rest in of("ARG"))
    assert said["EXTRAS"] in PROJECT["optional-dependencies"]
    classifiers = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert said["PYTHON"] in classifiers


def test_what_is_copied_is_sent_and_nothing_else_is() -> None:
    """By the rules of .dockerignore: the last that matches counts."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]

    def sent(path: str) -> bool:
        ignored = False
        parents = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
        for rule in rules:
            if any(fnmatch.fnmatchcase(each, rule.lstrip("!")) for each in parents):
                ignored = not rule.startswith("!")
        return not ignored

    packages = [
        pattern.rstrip("*") for pattern in CONFIG["tool"]["setuptools"]["packages"]["find"]["include"]
    ]
    files = ("pyproject.toml", "constraints.txt", "MANIFEST.in", PROJECT["readme"], *PROJECT["license-files"])
    for path in (*files, *(f"{package}/__init__.py" for package in packages)):
        assert sent(path) and (ROOT / path).is_file(), path
    for path in (
        "runs/digits/weights.safetensors",
        ".venv/bin/python",
        ".git/config",
        "certs/ca.key",
        "dist/x.tar.gz",
        "psserver/__pycache__/cli.cpython-312.pyc",
    ):
        assert not sent(path), path
    assert [rest for rest in of("COPY") if not rest.startswith("--from")] == [". /src"]


def test_what_it_copies_from_the_first_stage_is_made_there() -> None:
    [line] = [rest for rest in of("COPY") if rest.startswith("--from")]
    assert re.fullmatch(r"--from=build (\S+) \1", line)
    assert any(f"venv {line.split()[1]}" in rest for rest in of("RUN"))
