"""How much memory a server takes while others try to make it take more: a real ps-server under --memory-limit 1GiB.

    python -m tests.attack.memory                every attack, as a table
    python -m tests.attack.memory half_frames    those whose names hold one of these words

Peak: the most that was resident at once (VmHWM), the attack's own process not counted. Ends with 1 where one is over
the limit, or where the honest worker could not go on.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.attack.memory import by_members, by_rows, by_strangers
from tests.attack.memory.target import LIMIT, MIB, Target, target

MOST = 2**30


@dataclass(frozen=True)
class Attack:
    """`mebibytes`: of the model; `options`: of the server; `trained`: there is a model before the attack."""

    name: str
    attack: Callable[[Target], str]
    mebibytes: float = 1.0
    options: tuple[str, ...] = ()
    trained: bool = True
    # Somebody else takes part in the job, whose model is another one.
    joined: bool = False


DANA = ("--optimizer", "dana-zero")
ATTACKS = (
    Attack("attachments of one member", by_members.attachments, 16),
    Attack("joins with large claims", by_strangers.large_claims, trained=False),
    Attack("endless pushes of one ticket", by_members.endless_pushes, 32),
    Attack("messages that announce 64 MiB", by_strangers.too_large_messages),
    Attack("half messages of strangers", by_strangers.half_messages),
    Attack("half messages of a member", by_members.half_messages),
    Attack("half frames of strangers", by_strangers.half_frames),
    Attack("half frames of a member", by_members.half_frames),
    Attack("names in turn, dana-zero", by_members.names_in_turn, 16, DANA),
    Attack("names at once, dana-zero", by_members.names_at_once, 16, DANA),
    Attack("versions that nobody reads", by_members.unread_versions, 16),
    Attack("notices that nobody reads", by_members.unread_notices),
    Attack("statuses that nobody reads", by_strangers.unread_status),
    Attack("large joins at once", by_strangers.large_joins, trained=False),
    Attack("joins of empty fields", by_rows.joins_of_empty_fields, trained=False, joined=True),
    Attack("reads of unknown rows", by_rows.reads_of_unknown_rows, trained=False, joined=True),
    Attack("updates of unknown rows", by_rows.updates_of_unknown_rows, trained=False, joined=True),
    Attack("ids that were chosen", by_rows.chosen_ids, trained=False, joined=True),
)


@dataclass(frozen=True)
class Measured:
    """Bytes. `ledger`: what the server itself says that it held at the end of the attack."""

    before: int
    peak: int
    ledger: int
    told: str


def measure(attack: Attack) -> Measured:
    """Raises whatever the honest worker meets when it cannot go on."""
    with target(attack.mebibytes, *attack.options, trained=attack.trained) as found:
        before = found.resident
        told = attack.attack(found)
        if not attack.joined:
            found.step()
        memory = found.cluster.status().servers[0].memory
        return Measured(before, found.peak, memory.total, told)


def main(words: list[str]) -> int:
    chosen = [a for a in ATTACKS if not words or any(w.replace("_", " ") in a.name for w in words)]
    over = 0
    print(f"{'attack':<32}{'before':>8}{'peak':>8}{'ledger':>8}  MiB, --memory-limit {LIMIT}", flush=True)
    for attack in chosen:
        try:
            measured = measure(attack)
        except Exception as error:
            print(f"{attack.name:<32} the honest worker could not go on: {error!r:.200}", flush=True)
            over += 1
            continue
        over += measured.peak > MOST
        figures = (measured.before, measured.peak, measured.ledger)
        row = "".join(f"{value / MIB:8.0f}" for value in figures)
        print(
            f"{attack.name:<32}{row}  {'OVER: ' if measured.peak > MOST else ''}{measured.told}", flush=True
        )
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
