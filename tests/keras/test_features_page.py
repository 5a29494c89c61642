"""Require a row of features.md for all that the installed Keras has, and tests in each row, as in trial.md."""

import inspect
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")

ROOT = Path(__file__).resolve().parents[2]
PAGE, TRIAL = (Path(__file__).with_name(f"{name}.md") for name in ("features", "trial"))


def rows(page: Path = PAGE) -> list[list[str]]:
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    kept = [row for row in cells if row[0] not in ("feature", "found") and not row[0].startswith("-")]
    # The last table of the page is that of `test_features_table.py`.
    last = [number for number, row in enumerate(kept) if row[0] == "script"]
    return kept[: last[0]] if last else kept


def public(module: object) -> list[str]:
    return [name for name in dir(module) if name[0].isupper()]


def arguments(method: object) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "names",
    [
        public(keras.optimizers),
        public(keras.optimizers.schedules),
        public(keras.callbacks),
        arguments(keras.Model.fit),
        arguments(keras.Model.compile),
        # Of every optimizer.
        [*arguments(keras.src.optimizers.base_optimizer.BaseOptimizer.__init__)][1:-2],
    ],
    ids=["optimizers", "schedules", "callbacks", "fit", "compile", "knobs"],
)
def test_all_that_keras_has_is_in_the_table(names: list[str]) -> None:
    features = " ".join(row[0] for row in rows())
    assert len(names) > 5
    assert [name for name in names if not re.search(rf"`{name}\b", features)] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:50])
def test_each_row_names_tests_that_are_there(row: list[str]) -> None:
    assert len(row) == 3 and row[1], row
    check_tests(row[2])


@pytest.mark.parametrize("row", rows(TRIAL), ids=lambda row: row[0][:50])
def test_what_the_trial_found_has_tests_in_a_job_and_in_fit(row: list[str]) -> None:
    assert len(row) == 3, row
    for cell in row[1:]:
        check_tests(cell)


def check_tests(cell: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", cell)
    assert named, f"no test: {cell}"
    for path, name in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), f"{path} has no {name}"
