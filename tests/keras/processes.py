"""A server for scripts of `fit` that run as processes of their own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Three interpreters load TensorFlow at once, on whatever machine this is.
PATIENCE = 240.0


@contextmanager
def server(*options: str) -> Iterator[str]:
    """The address of a ps-server whose optimizer is the job's. It ends by itself, with success."""
    command = [
        sys.executable,
        "-m",
        "psserver",
        "--ps-hosts",
        "127.0.0.1:0",
        "--json",
        "--optimizer",
        "from-job",
    ]
    with subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
