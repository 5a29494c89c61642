"""How long an engine takes from the command to the first version: ``python -m tests.engines.startup [RUNS]``

One table: seconds, median and spread of so many runs (3); two servers, two workers without TensorFlow, each engine on
this machine, Slurm, sshd and Ray's cluster of three nodes being there already. What is missing is left out.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from pslab.launch.engines.ray.cluster import ThrowAwayCluster
from tests.engines.sites import ROOT, missing, site
from tests.engines.test_real import endless


def first_version(command: Sequence[str], environment: Mapping[str, str] | None, folder: Path) -> float:
    """Seconds. `command` runs into folder / "run" until there is a file folder / "end"."""
    began = time.monotonic()
    log = folder / "run" / "decisions.jsonl"
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        while not log.is_file() or '"kind":"apply"' not in log.read_text():
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            threading.Event().wait(0.01)
        took = time.monotonic() - began
        (folder / "end").touch()
    assert process.returncode == 0, command
    return took


def times(
    around: Sequence[str], options: Sequence[str], environment: Mapping[str, str] | None, runs: int
) -> list[float]:
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lab = [
                sys.executable,
                "-m",
                "pslab",
                "run",
                endless(folder),
                "--out",
                str(folder / "run"),
                "--quiet",
            ]
            found.append(first_version([*around, *lab, *options], environment, folder))
    return found


def of_ray(runs: int) -> list[float]:
    """Three nodes of two CPUs."""
    cluster = ThrowAwayCluster([2, 2, 2])
    try:
        options = ("--engine", "ray", "--address", cluster.address)
        return times((), options, {**os.environ, **cluster.environment}, runs)
    finally:
        cluster.close()


def main() -> None:
    runs = int(sys.argv[1]) if sys.argv[1:] else 3
    rows = {"local": times((), (), None, runs)}
    for engine in ("slurm", "ssh"):
        absent = missing(engine)
        if absent is not None:
            print(f"{engine}: {absent}")
            continue
        with tempfile.TemporaryDirectory() as name, site(engine, Path(name) / engine) as place:
            options = ("--engine", engine, *place.options)
            rows[engine] = times(place.around, options, place.environment, runs)
    if find_spec("ray"):
        rows["ray"] = of_ray(runs)
    else:
        print("ray: needs the extra ray")
    for engine, found in rows.items():
        print(
            f"{engine:8} {statistics.median(found):6.2f} s  ({min(found):.2f} to {max(found):.2f}, {runs} runs)"
        )


if __name__ == "__main__":
    main()
