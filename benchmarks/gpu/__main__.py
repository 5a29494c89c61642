"""`scripts/gpu`: check and measure workers on an NVIDIA GPU, with whatever of PyTorch, JAX and TensorFlow is there.

The conformance suite of frameworks and the tests marked gpu; loops of a multilayer perceptron of 109 M parameters,
alone and on a server of this machine, with one worker and with two that share the GPU, float32 and bfloat16 on the
wire; Keras' fit. Without a GPU the same on the CPU, with small models. Takes less than
8 minutes: what does not begin in time is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Seconds: of everything, and of one process.
BUDGET, PATIENCE = 440.0, 120.0
# What a framework prints of the GPUs that it sees.
SEES = {
    "torch": "import torch; print(*(torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())), sep=';')",
    "jax": "import jax; print(*(d.device_kind for d in jax.devices() if d.platform in ('gpu', 'cuda')), sep=';')",
    "tensorflow": "import tensorflow as tf; print(*(d.name for d in tf.config.list_physical_devices('GPU')), sep=';')",
}
SUITE = ("test_models.py", "test_lanes.py", "test_gpu.py")


class Left:
    """The time that is left."""

    def __init__(self) -> None:
        self._end = time.monotonic() + BUDGET

    def seconds(self) -> float:
        return min(PATIENCE, self._end - time.monotonic())


def run(
    command: Sequence[str], left: Left, check: bool = True, **more: str
) -> subprocess.CompletedProcess[str]:
    """Raises RuntimeError where it does not end in time or, with `check`, not well, with the last line that it said."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PS_HOSTS", "TF_CONFIG")}
    if left.seconds() < 5:
        raise RuntimeError("left out: no time is left")
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=left.seconds(),
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"no end within {late.timeout:.0f} s") from None
    if check and done.returncode:
        raise RuntimeError(((done.stderr or done.stdout).strip().splitlines() or ["nothing said"])[-1])
    return done


def child(left: Left, what: str, framework: str, *arguments: str, **more: str) -> dict[str, Any]:
    done = run(["-m", "benchmarks.gpu.child", what, framework, *arguments], left, True, **more)
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


@contextmanager
def server(workers: int) -> Iterator[str]:
    """The address of a server that takes the workers' optimizer."""
    options = ["--workers", str(workers), "--policy", "sync", "--optimizer", "from-job", "--json"]
    command = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.kill()


def suite(left: Left) -> None:
    tests = [f"tests/frameworks/{name}" for name in SUITE]
    # Without the project's settings, which ask for plugins.
    command = [
        "-m",
        "pytest",
        "-q",
        "-rfEs",
        "--tb=short",
        "-c",
        os.devnull,
        "--rootdir",
        str(ROOT),
        "--import-mode=importlib",
    ]
    done = run([*command, "-p", "no:cacheprovider", "-W", "ignore", *tests], left, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines() or ["nothing said"]
    for line in lines if done.returncode else [line for line in lines if line.startswith("SKIPPED")]:
        print(f"  {line}")
    print(f"conformance suite: {'FAILED: ' if done.returncode else ''}{lines[-1]}", flush=True)
    if done.returncode:
        raise RuntimeError("the tests above")


def measure(framework: str, device: str, left: Left) -> None:
    """Loops of one framework."""
    print(f"{framework} on {device}", flush=True)
    alone = child(left, "loop", framework, device, "", "float32")
    print(f"  step alone, on {alone['device']}: {alone['seconds'] * 1e3:.1f} ms", flush=True)
    for workers, wire in ((1, "float32"), (1, "bfloat16"), (2, "float32"), (2, "bfloat16")):
        with server(workers) as hosts, ThreadPoolExecutor(workers) as pool:
            places = [{"PS_TASK_INDEX": str(number)} if workers > 1 else {} for number in range(workers)]
            running = [
                pool.submit(child, left, "loop", framework, device, hosts, wire, **place) for place in places
            ]
            seconds = max(each.result()["seconds"] for each in running)
        print(
            f"  {workers} worker{'s' if workers > 1 else ''}, {wire} on the wire: {seconds * 1e3:.1f} ms, "
            f"{alone['seconds'] / seconds:.2f} of the rate alone",
            flush=True,
        )


def guarded(what: str, work: Any, *arguments: Any) -> bool:
    try:
        work(*arguments)
    except (RuntimeError, OSError, ValueError) as failure:
        print(f"  {what}: FAILED: {failure}", flush=True)
        return False
    return True


def fits(framework: str, left: Left) -> None:
    told = child(left, "fit", framework)
    plain, ours = told["plain"], told["distributed"]
    print(
        f"  fit, Keras on {framework}, MLP of 1 M parameters: {plain * 1e3:.1f} ms a step plain, {ours * 1e3:.1f} "
        f"distributed: {plain / ours:.2f} of its rate",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(SEES), help="one framework")
    chosen = parser.parse_args()
    left, good = Left(), True
    # Of CPUs that server and workers share: threads that wait for each other take turns of the scheduler.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
    wanted = [name for name in SEES if chosen.only in (None, name)]
    found: dict[str, list[str]] = {}
    for name in wanted:
        if find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        said = run(["-c", SEES[name]], left).stdout.strip()
        found[name] = said.split(";") if said else []
        print(f"{name}: {', '.join(found[name]) or 'sees no GPU'}", flush=True)
    if not any(found.values()):
        print(
            "no GPU was found: the same code runs on the CPU, with small models. What only a GPU shows stays "
            "unchecked: page-locked copies, and memory that two workers share",
            flush=True,
        )
    good &= guarded("conformance suite", suite, left)
    for name, gpus in found.items():
        if name != "tensorflow":
            device = ("cuda:0" if name == "torch" else "gpu:0") if gpus else "cpu"
            good &= guarded(name, measure, name, device, left)
        if find_spec("keras") is not None:
            good &= guarded(f"fit, Keras on {name}", fits, name, left)
    if not found:
        print("expected PyTorch, JAX or TensorFlow on the PYTHONPATH, found none")
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
