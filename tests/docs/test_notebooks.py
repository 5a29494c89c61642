"""The example notebooks: their cells run in order, in one interpreter, as a kernel would run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run_cells(name: str, folder: Path) -> str:
    """Run the code of a notebook in `folder`; return what it prints."""
    cells = json.loads((ROOT / "examples" / name).read_text())["cells"]
    code = [("".join(cell["source"]), cell["id"]) for cell in cells if cell["cell_type"] == "code"]
    program = folder / "kernel.py"
    program.write_text(
        "import sys, json\nfor source, name in json.loads(sys.stdin.read()):\n"
        "    exec(compile(source, name, 'exec'))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PS_HOSTS", "TF_CONFIG")}
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps(code),
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.tensorflow
def test_fit_trains_from_a_notebook(tmp_path: Path) -> None:
    said = run_cells("fit_notebook.ipynb", tmp_path)
    assert "version 141 {'applied': 141}" in said
    assert "'rate': 1" in said
    assert "the server ended with 0" in said


@pytest.mark.nightly
def test_runs_are_read_as_frames_in_a_notebook(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="no pandas here (scripts/install frames)")
    said = run_cells("frames_notebook.ipynb", tmp_path)
    staleness, shares = said[said.index("\nrun ") :].split("\nkind", 1)
    rows = {
        row.split()[0]: row.split()[1:]
        for row in staleness.splitlines()
        if row[:1] == "w" and row[1:2].isdigit()
    }
    assert sorted(rows) == ["w0", "w1", "w2", "w3"], said
    # In the order of the columns: under async gradients are old, under a barrier none is.
    assert all(float(old) > float(none) == 0 for old, _, none in rows.values()), said
    assert "waiting for a grant" in shares
    assert (tmp_path / "accuracy.png").stat().st_size > 1000


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_output(notebook: Path) -> None:
    """What a reader runs is what was tested, and nothing of the machine that wrote it."""
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
