"""Plant a fault in a copy of the package, and let the searches look for it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.planted.faults import Fault

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "psserver" / "replication"


def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("*.py"))}


def catch(fault: Fault | None) -> str:
    """Return what finds the fault; empty if nothing does. None: no fault is planted."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "psserver"
        shutil.copytree(PACKAGE, copy / "replication")
        (copy / "__init__.py").touch()
        shutil.copytree(ROOT / "tests" / "replication", Path(folder) / "tests" / "replication")
        shutil.copytree(ROOT / "tests" / "planted", Path(folder) / "tests" / "planted")
        if fault is not None:
            path, wrong = fault.plant(sources())
            (copy / "replication" / path.name).write_text(wrong, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "tests.replication", "search"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1) or done.stderr:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.strip()
