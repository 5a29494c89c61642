"""Every job that the documents and examples show is trained, for a few batches, and measured."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from pslab.experiment import Experiment
from psworker.trainers import load_trainer, requested_optimizer
from tests.docs.markdown import PAGES, ROOT, Block, blocks
from tests.replay.simulated import simulate

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

WRITTEN = (*PAGES[:2], *sorted((ROOT / "docs").rglob("*.md")))


def jobs_in(text: str) -> list[str]:
    """The names of the classes that derive from Job."""
    classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    return [
        each.name for each in classes if any(re.search(r"\bJob\b", ast.unparse(base)) for base in each.bases)
    ]


BLOCKS = [
    block for page in WRITTEN for block in blocks(page) if block.language == "python" and "Job" in block.text
]
SHOWN = [block for block in BLOCKS if jobs_in(block.text)]
FILES = [
    path
    for folder in ("examples", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "generate" not in path.parts and jobs_in(path.read_text(encoding="utf-8"))
]


def trained(folder: Path, file: Path, name: str, versions: int = 3, **sections: Any) -> Any:
    """A run of one worker in this process: its model is made, trained, and measured at the end."""
    return simulate(
        folder,
        "sync",
        cluster={"servers": 1, "workers": 1},
        simulation={"problem": "job", "compute": "constant(1)"},
        **{
            "run": {"name": "test", "versions": versions},
            "optimizer": {"name": "adam", "learning_rate": 0.01},
        }
        | {"job": {"module": f"{file}:{name}"}}
        | sections,
    )


def optimizer_of(file: Path, name: str) -> dict[str, Any]:
    """The [optimizer] of a run: the job's, where it has one."""
    trainer = load_trainer(Experiment.parse({"job": {"module": f"{file}:{name}"}}), "cpu")
    return requested_optimizer(trainer) or {"name": "adam"}


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_a_job_of_a_page(block: Block, tmp_path: Path) -> None:
    assert block.kind in ("test", "run"), "a job that is shown is trained"
    file = tmp_path / "shown.py"
    file.write_text(block.text, encoding="utf-8")
    for name in jobs_in(block.text):
        assert trained(tmp_path / name, file, name, optimizer=optimizer_of(file, name)).summary.versions >= 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_job_of_a_file(file: Path, tmp_path: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for name in jobs_in(text):
        assert trained(tmp_path / name, file, name, optimizer=optimizer_of(file, name)).summary.versions >= 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("file", "name", "metric", "reached"),
    [
        ("regression.py", "Progression", "mae", lambda error: error < 0.6),
        ("table.py", "Wine", "accuracy", lambda share: share > 0.9),
    ],
)
def test_a_job_of_a_file_learns(file: str, name: str, metric: str, reached: Any, tmp_path: Path) -> None:
    path = ROOT / "examples" / file
    run = trained(tmp_path / "run", path, name, versions=150, job={"module": f"{path}:{name}", "epochs": 20})
    assert reached(run.summary.metrics[metric]), run.summary.metrics
