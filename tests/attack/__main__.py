"""A fuzzer of whole runs: honest workers train while strangers and lying members send what they like.

    python -m tests.attack --minutes 60
    python -m tests.attack --messages 100000 --policy sync
    python -m tests.attack --seed 123 --policy sync --company strangers    one round, again

Ends with 1 at the first round in which something does not hold, and prints the command that plays it again. Where
somebody waited in vain while the machine gave this process no time, the round is not judged, and is counted as such.
"""

import argparse
import faulthandler
import logging
import random
import shlex
import sys
import time
from collections import Counter

from tests.attack.rounds import Result, play
from tests.attack.scenarios import COMPANY, POLICIES, Scenario, scenario

# Messages of a round, and the range of seeds that are drawn.
MESSAGES, SEEDS = 5000, 2**31


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="begin no new round later; default: one round")
    parser.add_argument("--messages", type=int, help="begin no new round after so many messages")
    parser.add_argument("--seed", type=int, help="of the first round; default: one of chance")
    parser.add_argument("--policy", choices=POLICIES, help="default: another one each round")
    parser.add_argument("--company", choices=COMPANY, help="who attacks; default: drawn each round")
    parser.add_argument(
        "--tables",
        action=argparse.BooleanOptionalAction,
        help="a model with sparse tables, where the policy has them; default: drawn each round",
    )
    parser.add_argument(
        "--round", type=int, default=MESSAGES, help=f"messages of a round; default {MESSAGES}"
    )
    options = parser.parse_args()
    faulthandler.enable()
    logging.getLogger().addHandler(logging.NullHandler())
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(SEEDS)
    totals, began, number, found = Totals(), time.monotonic(), 0, False
    while not found and (number == 0 or goes_on(options, totals, began)):
        played = scenario(first + number, options.policy, options.company, options.tables)
        result = play(played, options.round)
        totals.add(played, result)
        show(played, result, totals)
        found, number = bool(result.faults or (result.waits and result.judged)), number + 1
        if found:
            again = ["scripts/soak", "attack", "--seed", str(played.seed), "--round", str(options.round)]
            again += ["--policy", played.policy, "--company", played.company]
            again += ["--tables" if played.tables else "--no-tables"]
            print(f"attack: FAILED: {shlex.join(again)}", flush=True)
    totals.show(time.monotonic() - began)
    return int(found)


def goes_on(options: argparse.Namespace, totals: "Totals", began: float) -> bool:
    if options.messages is not None:
        return totals.sent < int(options.messages)
    return options.minutes is not None and time.monotonic() - began < 60 * options.minutes


class Totals:
    """Over all rounds."""

    def __init__(self) -> None:
        self.rpcs: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.policies: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()

    @property
    def sent(self) -> int:
        return self.rpcs.total()

    def add(self, played: Scenario, result: Result) -> None:
        self.rpcs += result.tally.messages
        self.answers += result.tally.answers
        self.policies[played.policy] += result.tally.messages.total()
        self.rounds["in all"] += 1
        self.rounds["not judged, for want of a processor"] += bool(result.waits) and not result.judged
        self.rounds["spoilt by a member's finite numbers"] += result.diverged

    def show(self, seconds: float) -> None:
        print(f"attack: {self.sent:,} messages in {seconds:.0f} s")
        for what, counted in (
            ("to", self.rpcs),
            ("answers", self.answers),
            ("under", self.policies),
            ("rounds", self.rounds),
        ):
            print(f"  {what}: " + ", ".join(f"{name} {count:,}" for name, count in counted.most_common()))


def show(played: Scenario, result: Result, totals: Totals) -> None:
    sent, seconds = result.tally.messages.total(), result.seconds
    print(
        f"attack: seed {played.seed}: {played}: {sent:,} messages in {seconds:.1f} s; {totals.sent:,} in all",
        flush=True,
    )
    for problem in result.problems:
        print(f"  {problem}", flush=True)
    if result.waits and not result.judged:
        print(
            f"  not judged: the machine had no processor for this process for {result.stood_still:.1f} s",
            flush=True,
        )
    if result.diverged:
        print(
            "  honest workers gave up: another's gradient or learning rate, which the log names, spoilt the model",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
