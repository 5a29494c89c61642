"""What pyproject.toml, constraints.txt and the scripts promise, as far as it shows without a network."""

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

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
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False)


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
