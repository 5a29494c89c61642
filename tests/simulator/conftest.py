import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_lab() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``ps-lab`` with some arguments, run from the repository's root."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pslab", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return run
