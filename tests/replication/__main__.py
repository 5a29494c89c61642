"""The proof of the protocol of replicas: all states, random schedules, directed ones, planted faults.

python -m tests.replication explore --takeovers 2 --crashes 1     every state; --minutes bounds it
python -m tests.replication random --steps 10000000               from new seeds, or --seed
python -m tests.replication planted [WORD]                        every fault is found, or those with this word
python -m tests.replication search                                what finds them: a little of all, and its verdict
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.replication.directed import SCHEDULES
from tests.replication.explore import Bounds, Explorer
from tests.replication.faults import FAULTS
from tests.replication.job import play
from tests.replication.model import Violation
from tests.replication.planting import catch

#: Steps of one random history. Of a search for a fault: histories, states.
STEPS, HISTORIES, STATES = 1000, 24, 40_000


def explore(options: argparse.Namespace) -> int:
    """Every state within bounds."""
    bounds = Bounds(options.tickets, options.takeovers, options.crashes, options.servers, options.forgets)
    explorer, began = Explorer(bounds), time.monotonic()
    seconds = None if options.minutes is None else 60 * options.minutes
    whole = explorer.run(seconds=seconds, tell=print)
    took = time.monotonic() - began
    how = "all" if whole else "NOT all"
    print(f"explore: {bounds}: {len(explorer.seen)} states, {how}; depth {explorer.depth}; {took:.0f} s")
    return 0


def randomly(first: int, histories: int) -> Counter[str]:
    """So many random histories, of 2 to 5 servers; what happened in them. Raises Violation with the seed.

    In every fourth a copy computes a wrong number once; in every third a copy is given only when all is stable.
    """
    counts: Counter[str] = Counter()
    for seed in range(first, first + histories):
        try:
            servers = (3, 3, 4, 2, 5)[seed % 5]
            counts.update(play(seed, STEPS, servers, flip=seed % 4 == 3, waits=seed % 3 == 1).counts)
        except Exception as error:
            raise Violation(f"seed {seed}: {error}") from error
    return counts


def chance(options: argparse.Namespace) -> int:
    """Random histories."""
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(2**40)
    began = time.monotonic()
    counts = randomly(first, max(1, options.steps // STEPS))
    print(
        f"random: seeds from {first} on, {options.steps} steps, {time.monotonic() - began:.0f} s: {dict(counts)}"
    )
    return 0


def searches() -> Iterator[tuple[str, Callable[[], object]]]:
    """What looks for a fault, the quick ones first."""
    for schedule in SCHEDULES:
        for torn in (True, False):
            yield f"{schedule.__name__}, torn={torn}", lambda s=schedule, t=torn: s(t)
    yield "random", lambda: randomly(0, HISTORIES)
    for bounds in (Bounds(2, 1, 0), Bounds(1, 1, 1, servers=2), Bounds(1, 2, 0, forgets=False)):
        yield str(bounds), lambda b=bounds: Explorer(b).run(most=STATES)


def search(options: argparse.Namespace) -> int:
    """Return 1 and say what found a fault, if anything did."""
    began = time.monotonic()
    for name, look in searches():
        try:
            look()
        except Exception as error:
            print(
                f"found by {name}, {time.monotonic() - began:.1f} s: {type(error).__name__}: {str(error)[:150]}"
            )
            return 1
    return 0


def planted(options: argparse.Namespace) -> int:
    """Every fault is found."""
    chosen = [fault for fault in FAULTS if options.word in fault.name]
    missed = 0
    for fault in chosen:
        found = catch(fault)
        print(f"{fault.name}: {found or 'NOT FOUND'}", flush=True)
        missed += not found
    print(f"planted: {len(chosen) - missed} of {len(chosen)} found")
    return int(missed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak replicas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ways = parser.add_subparsers(required=True)
    way = ways.add_parser("explore", help=explore.__doc__)
    way.set_defaults(run=explore)
    for name, default in (("tickets", 2), ("takeovers", 2), ("crashes", 1), ("servers", 3)):
        way.add_argument(f"--{name}", type=int, default=default)
    way.add_argument(
        "--forgets", action="store_true", help="logs forget what all have executed; copies are sent"
    )
    way.add_argument("--minutes", type=float)
    way = ways.add_parser("random", help=chance.__doc__)
    way.set_defaults(run=chance)
    way.add_argument("--steps", type=int, default=10_000_000)
    way.add_argument("--seed", type=int)
    way = ways.add_parser("planted", help=planted.__doc__)
    way.set_defaults(run=planted)
    way.add_argument("word", nargs="?", default="")
    way = ways.add_parser("search", help=search.__doc__)
    way.set_defaults(run=search)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
