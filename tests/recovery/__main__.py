"""Random schedules of crashes, in several processes, from seeds that no two of them share.

    python -m tests.recovery --schedules 1000000 --processes 2
    python -m tests.recovery --minutes 60
    python -m tests.recovery --seed 123 --schedules 1       one schedule, again
    python -m tests.recovery --replicas                     of jobs with replicas, on 3 to 5 servers in one part or two

Servers and workers die at any step and come back, connections are cut, the network is divided, messages are late, come
twice and in another order, machines lose their power, disks fail; every built-in policy in turn. Ends with 1 at the
first schedule that breaks a promise, and prints its seed and the shortest story found for it.
"""

import argparse
import logging
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

from tests.recovery import losses
from tests.recovery.campaign import play_all, shortest
from tests.recovery.settings import job_of
from tests.recovery.tally import Tally

# Schedules that a process is given at once; seconds between two lines about how far it is; the range of seeds drawn.
PIECE, EVERY, SEEDS = 500, 30.0, 2**40


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak crashes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, help="how many; default: 100000, or as --minutes says")
    parser.add_argument("--minutes", type=float, help="begin no new ones later")
    parser.add_argument("--processes", type=int, default=2, help="at once; default 2")
    parser.add_argument(
        "--seed", type=int, help="of the first schedule; the others follow. Default: one of chance"
    )
    parser.add_argument("--replicas", action="store_true", help="jobs with replicas: nothing is rolled back")
    options = parser.parse_args()
    logging.getLogger("ps-server").addHandler(logging.NullHandler())
    logging.getLogger("ps-server").propagate = False
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(SEEDS)
    schedules = options.schedules
    if schedules is None and options.minutes is None:
        schedules = 100_000
    began = time.monotonic()
    end = None if options.minutes is None else began + 60 * options.minutes
    play = losses.play_all if options.replicas else play_all
    tally = Tally()
    run(pieces(first, schedules), options.processes, end, play, tally)
    seconds = time.monotonic() - began
    for line in tally.lines():
        print(f"crashes: {line}")
    last = f"{first} to {first + tally.schedules - 1}" if tally.schedules else "none"
    print(f"crashes: seeds {last}, in {seconds:.0f} s, {options.processes} processes", flush=True)
    if tally.failed is not None:
        report(*tally.failed, replicas=options.replicas)
        return 1
    return 0


def pieces(first: int, schedules: int | None) -> Iterator[range]:
    """Seeds for one process at a time."""
    for number in count():
        start = number * PIECE
        if schedules is not None and start >= schedules:
            return
        stop = start + PIECE if schedules is None else min(start + PIECE, schedules)
        yield range(first + start, first + stop)


def run(
    work: Iterator[range],
    processes: int,
    end: float | None,
    play: Callable[[range], Tally],
    tally: Tally,
) -> None:
    """All of `work`, or what is begun before the monotonic time `end`, or up to the first failure."""
    began = told = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        running: set[Future[Tally]] = set()
        more = True
        while more or running:
            while more and len(running) < processes + 1:
                piece = next(work, None) if end is None or time.monotonic() < end else None
                more = piece is not None and tally.failed is None
                if piece is not None and more:
                    running.add(pool.submit(play, piece))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                tally.add(future.result())
            now = time.monotonic()
            if now - told >= EVERY:
                told = now
                print(f"crashes: {tally.schedules} schedules in {now - began:.0f} s", flush=True)


def report(seed: int, why: str, *, replicas: bool = False) -> None:
    more = ["--replicas"] if replicas else []
    again = shlex.join(["scripts/soak", "crashes", "--seed", str(seed), "--schedules", "1", *more])
    print(
        f"crashes: FAILED: {again}\n  {losses.job_of(seed) if replicas else job_of(seed)}\n  {why}",
        flush=True,
    )
    if replicas:
        return
    fault, story = shortest(seed)
    if story:
        print(f"the shortest story found, which ends with: {fault}")
        for line in story:
            print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
