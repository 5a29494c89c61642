"""What each entry point into a job makes of each setting, and of each way to give it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("programs") / "entry_points.py"


def entry_points() -> dict[str, Any]:
    """Return {"entry, setting": {way: what the session got}}. Raises CalledProcessError."""
    run = subprocess.run(
        [sys.executable, str(PROGRAM)],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
    )
    found = json.loads(run.stdout.splitlines()[-1])
    return {f"{entry}, {setting}": row for entry, rows in found.items() for setting, row in rows.items()}
