"""The command `scripts/bench strategies`: time per epoch and held-out accuracy of the digits CNN, side by side.

Plain `fit`, TensorFlow's mirrored strategies, and servers. Two replicas each, batches of N per replica, in turns.
MirroredStrategy: two logical CPUs of one process. MultiWorkerMirroredStrategy and servers: two processes. Times are of
the slower worker, without the first epoch, which traces. A way that fails is told with the last line of what it said.

MultiWorkerMirroredStrategy trains in a loop of its own: `fit` of Keras 3 (3.15 with TensorFlow 2.21) adds up the first
batch of all workers to build the model, and the strategy's sum over workers refuses it: "Attempt to convert a value
(PerReplica) with an unsupported type to a Tensor". With one worker alone `fit` goes.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

WAYS = ("plain", "mirrored", "multi-worker", "servers-sync", "servers-async")
PATIENCE = 300.0


@dataclass
class Measured:
    """Seconds per epoch and accuracy of each round; why a round failed."""

    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    failure: str = ""

    def line(self, way: str) -> str:
        if self.failure or not self.seconds:
            return f"{way:>14}: failed: {self.failure}"
        low, high = min(self.seconds), max(self.seconds)
        return (
            f"{way:>14}: {statistics.median(self.seconds):6.2f} s an epoch ({low:.2f} to {high:.2f}), accuracy "
            f"{statistics.mean(self.accuracy):.3f}"
        )


def run(way: str, epochs: int, batch: int) -> list[dict[str, object]]:
    """What each process of one round printed. Raises RuntimeError with the last line of one that failed."""
    kind, _, policy = way.partition("-") if way.startswith("servers") else (way, "", "")
    command = [sys.executable, "-m", "benchmarks.programs.strategy_worker", kind, str(epochs), str(batch)]
    if kind == "multi-worker":
        return together(command, [{"TF_CONFIG": each} for each in clusters()])
    if kind == "servers":
        return _on_servers(command, policy)
    return together(command, [{}])


def _on_servers(command: Sequence[str], policy: str) -> list[dict[str, object]]:
    options = ["--workers", "2", "--policy", policy, "--optimizer", "from-job", "--json"]
    server = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", *options]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = json.loads(process.stdout.readline())["address"]
            return together(command, [{"PS_HOSTS": address, "PS_TASK_INDEX": str(n)} for n in range(2)])
        finally:
            process.terminate()


def clusters() -> list[str]:
    """TF_CONFIG of two workers; the ports are free at this moment, and TensorFlow binds them itself."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    workers = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return [
        json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        for index in range(2)
    ]


def together(command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> list[dict[str, object]]:
    """The last line of each process, as JSON. Raises RuntimeError with the last line of what a failed one said."""
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for more in environments
    ]

    def said(process: subprocess.Popen[str]) -> str:
        out, error = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise RuntimeError((error.strip().splitlines() or ["nothing"])[-1])
        return out

    with ThreadPoolExecutor(len(started)) as pool:
        running = [pool.submit(said, each) for each in started]
        try:
            # The others may wait for one that has failed.
            wait(running, return_when=FIRST_EXCEPTION)
            failures = [each.exception() for each in running if each.done()]
        finally:
            for each in started:
                each.kill()
                each.wait()
    for failure in failures:
        if isinstance(failure, subprocess.TimeoutExpired):
            raise RuntimeError(f"no end within {PATIENCE:.0f} s")
        if failure is not None:
            raise failure
    return [json.loads(each.result().strip().splitlines()[-1]) for each in running]


def main(given: Sequence[str] | None = None) -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench strategies", description=__doc__, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=32, help="of one replica; default: %(default)s")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    arguments = parser.parse_args(given)
    found = {way: Measured() for way in arguments.ways}
    for _ in range(arguments.rounds):
        for way, measured in found.items():
            if measured.failure:
                continue
            try:
                told = run(way, arguments.epochs, arguments.batch)
            except RuntimeError as error:
                measured.failure = str(error)
                continue
            measured.seconds.append(max(statistics.median(each["seconds"][1:]) for each in told))  # type: ignore[index]
            measured.accuracy.append(float(told[0]["accuracy"]))  # type: ignore[arg-type]
    for way, measured in found.items():
        print(measured.line(way), flush=True)


if __name__ == "__main__":
    main()
