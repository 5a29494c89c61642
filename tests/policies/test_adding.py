"""A built-in policy is added with three files: its code, the checker's knowledge of it, its test.

It is done here in a copy of the tree, and what the copy then says and tests of the new policy is looked at.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = ("psserver", "psworker", "pslab", "pswire", "docs", "tests", "examples", "pyproject.toml")

CODE = '''"""Policies that are an example."""

from dataclasses import dataclass
from typing import ClassVar

from psserver.policies.builtin.spec import WORKERS, Cost, Facts, PolicySpec
from psserver.policies.composed import Composition
from psserver.policies.parts.gates import Immediate
from psserver.policies.parts.staleness_rules import KeepAll
from psserver.policies.parts.triggers import Count
from pswire.knobs import integer


@dataclass(frozen=True, slots=True)
class Example(PolicySpec):
    """Every update is the mean of the next `many` gradients."""

    name: ClassVar[str] = "example"
    use_when: ClassVar[str] = "it is an example"
    guarantee: ClassVar[str] = "no waiting; mean staleness (n - 1) / K"
    source: ClassVar[str] = "nobody et al. 2030"
    cost: ClassVar[Cost] = Cost("one sum", "one addition", "nothing at all")

    many: int = integer(2, "contributions per update", at_least=1, at_most=WORKERS)

    def compose(self, workers: int) -> Composition:
        return Composition(Immediate(), Count(self.many), KeepAll())

    def facts(self, workers: int) -> Facts:
        return Facts(size=self.many, free=1)
'''
KNOWLEDGE = '\nKNOWN["example"] = lambda knobs, workers: Terms(int(knobs.get("many", 2)))\n'
TEST = """from tests.policies.harness import start_policy


def test_an_update_has_so_many() -> None:
    harness = start_policy("example", workers=3, many=3)
    for worker in ("w0", "w0", "w1"):
        harness.commit(worker)
    assert harness.version == 1
"""
EXPERIMENT = """[run]
versions = 20
[cluster]
workers = 3
[policy]
name = "example"
many = 3
[simulation]
problem = "quadratic"
compute = "exponential(1)"
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with the three files."""
    copy = tmp_path_factory.mktemp("tree")
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    (copy / "psserver/policies/builtin/example.py").write_text(CODE)
    with (copy / "pslab/check/known.py").open("a") as known:
        known.write(KNOWLEDGE)
    (copy / "tests/policies/test_example.py").write_text(TEST)
    (copy / "example.toml").write_text(EXPERIMENT)
    return copy


@pytest.fixture
def run(tree: Path) -> Run:
    def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
        """A module of the copy, run there."""
        # Unlike the one that runs here, it must import the copy.
        environment = {**os.environ, "PYTHONPATH": str(tree), "PARAMSERVER_EFFORT": "fast", "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

    return command


def test_the_commands_know_it(run: Run) -> None:
    assert "\n│ example " in run("pslab", "list", "policies").stdout
    explained = run("pslab", "list", "policies", "example").stdout
    assert "nothing at all" in explained and "a whole number >= 1 and <= workers" in explained


@pytest.mark.timeout(600)
def test_it_is_run_checked_and_forecast(run: Run, tree: Path) -> None:
    done = run("pslab", "run", "example.toml", "--engine", "simulated", "--out", "run", "--quiet", "--force")
    assert done.returncode == 0, done.stderr
    checked = run("pslab", "check", "run")
    assert checked.returncode == 0 and "no guarantee is known" not in checked.stdout, checked.stdout
    compared = run("pslab", "predict", "run")
    assert "(n - 1) / K" in compared.stdout, compared.stdout + compared.stderr


@pytest.mark.timeout(600)
def test_the_tests_of_all_policies_are_its_tests(run: Run) -> None:
    files = (
        *("policies/test_loading.py", "policies/test_builtin_knobs.py", "policies/test_builtin_command.py"),
        *("policies/test_builtin_schedules.py", "policies/test_builtin_check.py", "policies/test_example.py"),
        *("verify/test_search.py", "local/test_registry.py", "coordinator/test_ahead.py"),
    )
    assert passed(run, files, "-k", "example or checker_knows or without_a_gu") >= 10


@pytest.mark.timeout(600)
def test_no_test_of_the_whole_shelf_wants_to_be_told(run: Run) -> None:
    """Save and restore, the pages and the names are tests of all policies at once: no list there has to grow."""
    files = (
        *("state/test_schedules.py", "docs/test_generated.py", "policies/test_builtin_advice.py"),
        "theory/test_formulas.py",
    )
    assert passed(run, files, "-m", "not cluster and not tensorflow") >= 20


def passed(run: Run, files: Sequence[str], *options: str) -> int:
    """How many tests of the copy passed; none fails."""
    done = run("pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{file}" for file in files), *options)
    assert done.returncode == 0, done.stdout
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


@pytest.mark.timeout(600)
def test_what_it_promises_is_held_against_it(run: Run, tree: Path) -> None:
    """Facts are not taken from the code that they are about."""
    code = tree / "psserver/policies/builtin/example.py"
    code.write_text(CODE.replace("Facts(size=self.many", "Facts(size=self.many - 1"))
    try:
        done = run("pslab", "verify-policy", "example", "--schedules", "20", "--quiet")
    finally:
        code.write_text(CODE)
    assert done.returncode == 9 and "example applies at most 1 gradients at a time, here 2" in done.stdout


@pytest.mark.timeout(600)
def test_without_the_checkers_knowledge_it_is_no_breach(run: Run, tree: Path) -> None:
    known = tree / "pslab/check/known.py"
    text = known.read_text()
    known.write_text(text.replace(KNOWLEDGE, ""))
    try:
        run("pslab", "run", "example.toml", "--engine", "simulated", "--out", "run", "--quiet", "--force")
        done = run("pslab", "check", "run")
    finally:
        known.write_text(text)
    assert done.returncode == 0
    assert "no guarantee is known for policy example;" in " ".join(done.stdout.split())
