"""The command `scripts/bench ddp`: steps per second of PyTorch's DistributedDataParallel over gloo, and of servers.

Two processes of one thread each, the same model, data and optimizer (Adam), on this machine; with servers there is a
third process, and the policy is `sync`. Way after way in each round, each in new processes; a round's number is of the
slower process. Beside them the step alone: one such process without communication.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.programs.strategies import together

WAYS = ("alone", "ddp", "servers")
# Width and depth, or None for the network of the digits; samples of a batch; steps of a round.
CASES: dict[str, tuple[tuple[int, int] | None, int, int]] = {
    "MLP, 1 M parameters": ((512, 4), 128, 150),
    "MLP, 17 M parameters": ((2048, 4), 128, 25),
    "digits CNN": (None, 32, 400),
}
WARM_UP, BATCHES = 10, 60


def model_of(shape: tuple[int, int] | None) -> tuple[Any, tuple[int, ...]]:
    """A classifier, and the shape of a sample."""
    from torch import nn

    if shape is None:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 10),
        ), (1, 8, 8)
    width, depth = shape
    layers: list[Any] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), (width,)


def timed(step: Callable[[], object], steps: int) -> float:
    """Seconds for `steps` steps, behind some that warm up."""
    for _ in range(WARM_UP):
        step()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - begin


def work(way: str, case: str) -> None:
    """One process of one way: prints its seconds as JSON."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, batch, steps = CASES[case]
    model, sample = model_of(shape)
    draw = torch.Generator().manual_seed(1)
    # So many that they are not learnt by heart: denormal gradients take a CPU several times as long.
    x = torch.randn(BATCHES, batch, *sample, generator=draw)
    y = torch.randint(0, 10, (BATCHES, batch), generator=draw)
    numbers = cycle(range(BATCHES))
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer: Any = torch.optim.Adam(model.parameters())
    trained: Any = model
    if way == "ddp":
        store = torch.distributed.FileStore(os.environ["STORE"], 2)
        rank = int(os.environ["RANK"])
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
        trained = torch.nn.parallel.DistributedDataParallel(model)
    elif way == "servers":
        import psworker.torch

        optimizer = psworker.torch.distribute(optimizer, model)

    def step() -> None:
        number = next(numbers)
        optimizer.zero_grad()
        loss_of(trained(x[number]), y[number]).backward()
        optimizer.step()

    seconds = timed(step, steps)
    if way == "servers":
        optimizer.close()
    print(json.dumps({"seconds": seconds}), flush=True)
    # A process that ends takes its half of gloo's connections with it, and the other's last step may need it.
    if way == "ddp":
        torch.distributed.barrier()


def measure(way: str, case: str) -> float:
    """Steps per second of one round. Raises RuntimeError."""
    command = [sys.executable, "-m", "benchmarks.programs.ddp", "--work", way, case]
    if way == "alone":
        told = together(command, [{}])
    elif way == "ddp":
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            told = together(command, [{"STORE": store, "RANK": str(rank)} for rank in range(2)])
    else:
        told = _on_a_server(command)
    return CASES[case][2] / max(float(each["seconds"]) for each in told)  # type: ignore[arg-type]


def _on_a_server(command: Sequence[str]) -> list[dict[str, object]]:
    options = ["--workers", "2", "--policy", "sync", "--optimizer", "from-job", "--json"]
    server = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", *options]
    with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            address = json.loads(process.stdout.readline())["address"]
            return together(command, [{"PS_HOSTS": address, "PS_TASK_INDEX": str(n)} for n in range(2)])
        finally:
            process.terminate()


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    low, middle, high = (
        f"{each:.{digits}f}" for each in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low} to {high})"


def main(given: Sequence[str] | None = None) -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench ddp", description=__doc__, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--case", default="", help="only cases whose name has this in it")
    chosen = parser.parse_args(given)
    if chosen.rounds < 1:
        parser.error(f"--rounds: expected 1 or more, got {chosen.rounds}")
    cases = [name for name in CASES if chosen.case.lower() in name.lower()]
    if not cases:
        parser.error(f"--case: expected a part of one of {'; '.join(CASES)}, got {chosen.case!r}")
    for case in cases:
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(chosen.rounds):
            for way in WAYS:
                found[way].append(measure(way, case))
        print(case, flush=True)
        for way in WAYS:
            print(f"  {way:>8}: {spread(found[way], 1)} steps/s")
        ratios = [ours / theirs for ours, theirs in zip(found["servers"], found["ddp"], strict=True)]
        print(f"  servers by ddp: {spread(ratios, 2)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        os.environ.pop("TF_CONFIG", None)
        work(*sys.argv[2:])
    else:
        main()
