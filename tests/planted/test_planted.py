"""Each planted fault still has its place in the source. `python -m tests.planted` shows that tests catch it."""

import ast
from pathlib import Path

import pytest

from tests.planted.faults import FAULTS, Fault, FaultError, sources

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project() -> dict[Path, str]:
    return sources(ROOT)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place(fault: Fault, project: dict[Path, str]) -> None:
    path, wrong = fault.plant(project)
    assert wrong != project[path]
    ast.parse(wrong)
    assert fault.tests
    assert all((ROOT / "tests" / test).exists() for test in fault.tests)


def test_names_differ() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_text_is_found_whatever_its_lines_and_names() -> None:
    fault = Fault("", "if $age «<=» limit: return $full", "<", ("",))
    source = {Path("a.py"): "if (\n    old <=\n  limit:\n        return FULL\n"}
    with pytest.raises(FaultError, match="nowhere"):
        fault.plant(source)
    source[Path("b.py")] = "x\nif old <=\n  limit:\n        return FULL\n"
    path, wrong = fault.plant(source)
    assert (path, wrong) == (Path("b.py"), "x\nif old <\n  limit:\n        return FULL\n")
    source[Path("c.py")] = source[Path("b.py")]
    with pytest.raises(FaultError, match=r"b\.py, c\.py"):
        fault.plant(source)


def test_names_of_the_text_stand_in_what_replaces_it() -> None:
    fault = Fault("", "take(«$one, $other»)", "$other, $one", ("",))
    assert fault.plant({Path("a.py"): "take(left, right)"})[1] == "take(right, left)"
