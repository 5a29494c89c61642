"""What pyproject.toml, constraints.txt and the scripts promise, as far as it shows without a network."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from venv import EnvBuilder

import pytest

from tests.promises import promise

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = ("scripts/install", "scripts/quickstart", "scripts/check", "scripts/test", ".ci/run")


def canonical(requirement: str) -> str:
    """'ml_dtypes>=0.5; extra == "x"' -> 'ml-dtypes'"""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parts = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in parts}


def closure(requirements: list[str]) -> set[str]:
    """All distributions that `requirements` bring in, by the metadata of what is installed here."""
    seen: set[str] = set()
    todo = [canonical(requirement) for requirement in requirements]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python than this one
        seen.add(name)
        todo += [canonical(need) for need in needs if "extra ==" not in need]
    return seen


@promise("ps-server installs and runs without TensorFlow.")
def test_server_alone_needs_no_tensorflow() -> None:
    needed = closure(PROJECT["dependencies"])
    assert "grpcio" in needed
    assert not needed & {"tensorflow", "keras", "scikit-learn", "scipy", "matplotlib"}


def test_everything_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"].values()
    needed = closure([*PROJECT["dependencies"], *(need for extra in extras for need in extra)])
    missing = needed - pins().keys()
    assert not missing, f"add to constraints.txt: {sorted(missing)}"


def test_constraints_are_plain_pins() -> None:
    """No host names, no paths, no options: only name==version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    odd = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.!+_-]*", line)]
    assert not odd, odd
    assert len(pins()) == sum(not line.startswith("#") for line in lines), "a name is pinned twice"


def test_installed_is_what_is_pinned() -> None:
    installed = {name: metadata.version(name) for name in pins().keys() & closure(PROJECT["dependencies"])}
    assert installed == {name: pins()[name] for name in installed}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_executable_bash(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK), f"chmod +x {script}"
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    done = run("bash", "-n", path)
    assert done.returncode == 0, done.stderr


def test_a_soak_names_tests_that_exist() -> None:
    script = ROOT / "scripts" / "soak"
    assert os.access(script, os.X_OK), "chmod +x scripts/soak"
    named = set(re.findall(r'"(tests/[a-z_/]+(?:\.py)?)"', script.read_text(encoding="utf-8")))
    assert named and all((ROOT / name).exists() for name in named), named


def test_install_refuses_unknown_extra() -> None:
    """It knows all of pyproject.toml, and no others."""
    for unknown in ("wroker", ".*", ""):
        done = run(ROOT / "scripts/install", "tls", unknown)
        assert done.returncode == 1
        assert (
            f"no extra named '{unknown}'; known: {' '.join(PROJECT['optional-dependencies'])}" in done.stderr
        )


def test_every_extra_is_explained() -> None:
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").partition("## Extras")[2]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(PROJECT["optional-dependencies"])


def test_install_spares_a_folder_that_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("three years of work")
    done = run(ROOT / "scripts/install", PARAMSERVER_VENV=str(tmp_path))
    assert done.returncode == 1
    assert "move it away first" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an environment in which somebody has installed a tool. Its pip notes what it is told."""
    root = tmp_path / "checkout"
    for name in ("scripts/install", "pyproject.toml", "constraints.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    venv = root / ".venv"
    EnvBuilder(symlinks=True).create(venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "pip").mkdir()
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").write_text(
        "import pathlib, sys\n"
        "told = pathlib.Path(sys.prefix, 'told')\n"
        "told.write_text((told.read_text() if told.exists() else '') + ' '.join(sys.argv[1:]) + '\\n')\n"
    )
    (packages / "thesis.py").write_text("print('three years of work')\n")
    for name in ("pip", "thesis"):
        (venv / "bin" / name).write_text(f"#!{venv}/bin/python\nimport {name}\n")
        (venv / "bin" / name).chmod(0o755)
    assert installed(root) == ["install ... setuptools", "install ... -e ."]
    return root


def installed(root: Path) -> list[str]:
    """Install, and return what pip was told."""
    done = run(root / "scripts/install", PARAMSERVER_VENV=".venv")
    assert done.returncode == 0, done.stderr
    told = root / ".venv" / "told"
    lines = told.read_text().splitlines() if told.exists() else []
    told.unlink(missing_ok=True)
    return [
        re.sub(r" --progress-bar off -c constraints.txt( --no-build-isolation)?", " ...", line)
        for line in lines
    ]


def test_install_does_nothing_for_a_checkout_by_another_name(checkout: Path) -> None:
    link = checkout.parent / "link"
    link.symlink_to(checkout)
    assert installed(link) == []
    assert installed(checkout) == []
    # A stamp of before may have the link's name.
    stamp = checkout / ".venv" / "install.stamp"
    stamp.write_text(stamp.read_text().replace(str(checkout), str(link)))
    assert installed(checkout) == []
    assert run(checkout / ".venv/bin/thesis").stdout == "three years of work\n"


def test_install_mends_an_environment_that_was_moved(checkout: Path) -> None:
    moved = checkout.rename(checkout.parent / "elsewhere")
    assert installed(moved) == ["install ... setuptools", "install ... -e ."]
    assert run(moved / ".venv/bin/thesis").stdout == "three years of work\n"
    assert installed(moved) == []


def test_install_mends_an_environment_whose_python_is_gone(checkout: Path) -> None:
    for name in (checkout / ".venv/bin").glob("python*"):
        name.unlink()
        name.symlink_to("/nowhere/python")
    installed(checkout)
    assert run(checkout / ".venv/bin/thesis").stdout == "three years of work\n"


def test_install_spares_an_environment_of_another_python(checkout: Path) -> None:
    settings, python = checkout / ".venv/pyvenv.cfg", checkout / ".venv/bin/python"
    settings.write_text(re.sub(r"(?m)^version = .*", "version = 3.9.2", settings.read_text()))
    python.unlink()
    python.write_text("#!/bin/sh\nexit 1\n")
    done = run(checkout / "scripts/install", PARAMSERVER_VENV=".venv")
    assert done.returncode == 1
    assert ".venv is of Python 3.9, expected 3.11, 3.12 or 3.13" in done.stderr
    assert list(checkout.glob(".venv/lib/python*/site-packages/thesis.py"))
