"""What it costs to take a payload that lies in shared memory: ways of making sure that nobody changes it any more.

    python -m benchmarks.programs.staging [--rounds 21]

CPU time of the server's side per payload, ways taking turns; the median over rounds, and GB of payload per second.
"""

import argparse
import hashlib
import mmap
import os
import resource
from collections.abc import Callable
from statistics import median

import numpy as np

from psserver.fast import FastBackend
from psserver.shard import arithmetic

LIMIT = np.float32(2.0**20)
SIZES = (262_144, 16_777_216, 67_108_864)


def seconds(work: Callable[[], object], repeat: int) -> float:
    """Of this process, user and system, for each of `repeat` times."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(repeat):
        work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / repeat


def shared(nbytes: int) -> np.ndarray:
    """A slot as a worker has filled it."""
    file = os.memfd_create("slot")
    os.ftruncate(file, nbytes)
    values = np.frombuffer(mmap.mmap(file, nbytes), np.float32)
    values[...] = 0.5
    os.close(file)
    return values


def ways(nbytes: int, backend: FastBackend) -> dict[str, Callable[[], object]]:
    slot, own = shared(nbytes), np.ones(nbytes // 4, np.float32)

    def sealed() -> None:
        """A new segment for each payload, sealed when it is full: what a server and a worker pay for making one."""
        file = os.memfd_create("slot", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, nbytes)
        with mmap.mmap(file, nbytes) as memory:
            # The first write to each page, besides the worker's own writing.
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
        os.close(file)
        arithmetic.within(slot, LIMIT, backend)

    def digests() -> None:
        """At the receipt, and again when it is folded; what changes in between the second and the sum is not seen."""
        arithmetic.within(slot, LIMIT, backend)
        for _ in range(2):
            hashlib.blake2b(slot.data).digest()

    return {
        "checked where it lies": lambda: arithmetic.within(slot, LIMIT, backend),
        "private copy": lambda: arithmetic.copy_squares(own, slot, LIMIT, backend),
        "sealed segment": sealed,
        "two digests": digests,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    with FastBackend(1) as backend:
        backend.prepare((each, each.letters) for each in arithmetic.LOOPS)
        assert backend.wait_ready(120), backend.reason
        for nbytes in SIZES:
            repeat = max(1, SIZES[-1] // nbytes // 4)
            chosen = ways(nbytes, backend)
            measured: dict[str, list[float]] = {name: [] for name in chosen}
            for _ in range(rounds):
                for name, work in chosen.items():
                    measured[name].append(seconds(work, repeat))
            for name, found in measured.items():
                middle = median(found)
                print(
                    f"{nbytes / 1e6:8.2f} MB  {name:22} {middle * 1e3:8.3f} ms  {nbytes / middle / 1e9:7.2f} GB/s"
                )


if __name__ == "__main__":
    main()
