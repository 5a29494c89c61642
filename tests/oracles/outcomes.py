"""What the ways into a job come to: `fit`, a `Job`, `RemoteOptimizer` and a numpy loop, each on one and two servers.

Real processes, two workers under `sync`, so that the bits do not depend on who is faster. Of each run the digest of its
final weights, and of its log the contributions of each version with their fates and the entries by kind. This file uses
public names only, so that an earlier commit can run it, too.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

WORKERS = 2
PROGRAMS = Path(__file__).with_name("programs")
# Entries whose number does not depend on who was faster.
STEADY = ("job", "commit", "apply", "drop", "unit", "stop")
WAYS: Mapping[str, tuple[str, ...]] = {
    "fit": (str(PROGRAMS / "fit.py"),),
    "job": ("-m", "psworker", "--job", f"{PROGRAMS / 'line.py'}:Line", "--epochs", "3"),
    "remote": (str(PROGRAMS / "remote.py"),),
    "numpy loop": (str(PROGRAMS / "loop.py"),),
}
# What the worker brings, where it brings one.
OPTIMIZERS = {"job": "adam", "numpy loop": "adam"}


def outcomes() -> dict[str, Any]:
    """Way / servers -> what came of it."""
    return {f"{way}, servers {count}": outcome(way, count) for way in WAYS for count in (1, 2)}


def outcome(way: str, servers: int) -> dict[str, Any]:
    """Run one job. Raises RuntimeError with the output of a process that fails."""
    with tempfile.TemporaryDirectory(prefix="outcome-") as folder:
        out = Path(folder) / "run"
        hosts = ",".join(f"127.0.0.1:{port}" for port in _free_ports(servers))
        own = {
            "PS_JOB_SECRET": "of the oracle",
            "PS_HOSTS": hosts,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        options = (
            "--ps-hosts",
            hosts,
            "--workers",
            str(WORKERS),
            "--policy",
            "sync",
            "--optimizer",
            OPTIMIZERS.get(way, "from-job"),
        )
        running = []
        for index in range(servers):
            told = ("-m", "psserver", *options, "--task-index", str(index))
            running.append(
                _start(
                    Path(folder) / f"server{index}", own, *told, *(("--out", str(out)) if not index else ())
                )
            )
        for rank in range(WORKERS):
            placed = own | {"PS_TASK_INDEX": str(rank)}
            asked = ("--ps-hosts", hosts, "--task-index", str(rank)) if way == "job" else ()
            running.append(_start(Path(folder) / f"worker{rank}", placed, *WAYS[way], *asked))
        codes = _ended(running)
        if any(codes):
            texts = [path.read_text(errors="replace")[-2000:] for path in sorted(Path(folder).glob("*.log"))]
            raise RuntimeError(f"{way}, {servers} servers: exit codes {codes}\n" + "\n".join(texts))
        return {"weights": _weights(out), **_log(out)}


def _ended(running: list[subprocess.Popen[bytes]]) -> list[int | None]:
    """Exit codes when all have ended, or one has failed; None of a process that was ended for it."""
    left = list(running)
    while left and not any(each.poll() for each in running):
        with suppress(subprocess.TimeoutExpired):
            left[0].wait(timeout=0.2)
            left.pop(0)
    codes = [each.poll() for each in running]
    for each in running:
        each.kill()
        each.wait()
    return codes


def _start(name: Path, own: Mapping[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    with name.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *arguments], env=os.environ | own, stdout=log, stderr=subprocess.STDOUT
        )


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


def _weights(out: Path) -> dict[str, str]:
    found = load_file(out / "weights.safetensors")
    return {name: hashlib.sha256(array.tobytes()).hexdigest()[:16] for name, array in sorted(found.items())}


def _log(out: Path) -> dict[str, Any]:
    entries = [
        json.loads(line) for line in (out / "decisions.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    kinds = Counter(entry["kind"] for entry in entries)
    commits = sorted((e["worker"], e["batch"], e["samples"]) for e in entries if e["kind"] == "commit")
    return {
        "entries": {kind: kinds[kind] for kind in STEADY if kind in kinds},
        "commits": hashlib.sha256(json.dumps(commits).encode()).hexdigest()[:16],
        "versions": max(entry.get("version", 0) for entry in entries if entry["kind"] == "apply"),
    }


if __name__ == "__main__":
    print(json.dumps(outcomes(), indent=1))
