"""The example notebook: its cells run in order, in one interpreter, as a kernel would run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "fit_notebook.ipynb"


def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [("".join(cell["source"]), cell["id"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 6
    program = tmp_path / "kernel.py"
    program.write_text(
        "import sys, json\nfor source, name in json.loads(sys.stdin.read()):\n"
        "    exec(compile(source, name, 'exec'))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PS_HOSTS", "TF_CONFIG")}
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps(code),
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "version 141 {'applied': 141}" in done.stdout
    assert "'rate': 1" in done.stdout
    assert "the server ended with 0" in done.stdout


def test_the_notebook_holds_no_output() -> None:
    """What a reader runs is what was tested, and nothing of the machine that wrote it."""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
