"""The example scripts run, and differ from plain Keras in two lines each (the GAN, with two optimizers, in three)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = {
    "fit_cnn.py": (["--epochs", "1"], "held-out accuracy"),
    "fit_text.py": (["--epochs", "1"], "val_accuracy"),
    "fit_tabular.py": (["--epochs", "2"], "mae"),
    "fit_tuning.py": (["--epochs", "1"], "accuracy"),
    "fit_gan.py": (["--steps", "3"], "distance from the centre"),
}


# A convolutional network stands for the others, which are for the nightly ring.
RUNS = [pytest.param(name, marks=[] if name == "fit_cnn.py" else pytest.mark.nightly) for name in SCRIPTS]


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs_alone(name: str, tmp_path: Path) -> None:
    arguments, said = SCRIPTS[name]
    environment = {k: v for k, v in os.environ.items() if k not in ("PS_HOSTS", "TF_CONFIG")}
    environment["PYTHONPATH"] = str(EXAMPLES.parent)
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_how_many_lines_differ(name: str) -> None:
    """Every line that names this project is marked, and numbered; what it makes is used as Keras' own."""
    lines = (EXAMPLES / name).read_text().split('"""', 2)[2].splitlines()
    ours = [line for line in lines if re.search(r"psworker|\.pull\(\)|samples=", line)]
    assert [f"({n})" in line for n, line in enumerate(ours, 1)] == [True] * len(ours)
    # As docs/comparison.md says.
    assert len(ours) == (3 if name == "fit_gan.py" else 2)
