"""Many schedules: each from a seed of its own, and the shortest one found for the first that fails."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pslab.verify.invariants import InvariantViolation
from pslab.verify.schedule import ListedChoices, Seeded
from pslab.verify.search import signature
from tests.recovery.promises import check
from tests.recovery.schedule import Schedule
from tests.recovery.settings import Job, job_of

# One log in so many is read by `ps-lab check`, too.
SECOND_OPINION = 10


def steps_of(seed: int) -> int:
    """Before the faults end."""
    return 100 + 7 * seed % 400


class Recorded(Seeded):
    """Choices of a seed, which are kept."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.taken: list[int] = []

    def pick(self, n: int) -> int:
        found = super().pick(n)
        self.taken.append(found)
        return found


@dataclass
class Tally:
    """What came of schedules. `failed`: (seed, why)."""

    schedules: int = 0
    policies: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    rolled_back: int = 0
    on_disk: int = 0
    read: int = 0
    failed: tuple[int, str] | None = None

    def add(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.policies.update(other.policies)
        self.happened.update(other.happened)
        self.rolled_back += other.rolled_back
        self.on_disk += other.on_disk
        self.read += other.read
        self.failed = self.failed or other.failed

    def lines(self) -> list[str]:
        """For people."""
        policies = ", ".join(f"{name} {count}" for name, count in self.policies.items())
        faults = ", ".join(f"{name} {count}" for name, count in self.happened.most_common())
        return [
            f"{self.schedules} schedules, {self.on_disk} of them on a disk that fails; "
            f"`ps-lab check` read {self.read} logs",
            f"policies: {policies}",
            f"faults: {faults}; versions rolled back {self.rolled_back}",
        ]


def play(seed: int) -> Schedule:
    """The schedule of that seed, to its end. Raises InvariantViolation."""
    schedule = Schedule(job_of(seed), Seeded(seed), seed)
    schedule.run(steps_of(seed))
    if not schedule.refused:
        check(schedule.cluster, second_opinion=seed % SECOND_OPINION == 0)
    return schedule


def play_all(seeds: Iterable[int]) -> Tally:
    """Up to the first that fails, in whatever way."""
    tally = Tally()
    for seed in seeds:
        try:
            schedule = play(seed)
        except Exception as error:
            tally.failed = (seed, f"{type(error).__name__}: {error}")
            return tally
        tally.schedules += 1
        tally.policies[schedule.job.setting.policy] += 1
        tally.happened.update(schedule.happened)
        tally.rolled_back += schedule.cluster.rolled_back
        tally.on_disk += schedule.job.disk
        tally.read += seed % SECOND_OPINION == 0 and not schedule.refused
    return tally


# A failure


def fault_of(job: Job, choices: list[int], seed: int) -> tuple[str, list[str]]:
    """What is broken when the job goes as these choices say, and the story; no text where nothing is."""
    schedule = Schedule(job, ListedChoices(choices), seed, told=True)
    try:
        schedule.run(len(choices) // 3)
        if not schedule.refused:
            check(schedule.cluster, second_opinion=True)
    except InvariantViolation as broken:
        return str(broken), schedule.story or []
    except Exception as error:
        return f"{type(error).__name__}: {error}", schedule.story or []
    return "", schedule.story or []


def shortest(seed: int) -> tuple[str, list[str]]:
    """The shortest story found that ends as the schedule of that seed: delta debugging over its choices."""
    job, recorded = job_of(seed), Recorded(seed)
    schedule = Schedule(job, recorded, seed)
    try:
        schedule.run(steps_of(seed))
        if not schedule.refused:
            check(schedule.cluster, second_opinion=True)
    except Exception as error:
        first = error if isinstance(error, InvariantViolation) else f"{type(error).__name__}: {error}"
        wanted = signature(str(first))
    else:
        return "", []
    best = recorded.taken
    if signature(fault_of(job, best, seed)[0]) != wanted:
        return str(first), []
    size = max(1, len(best) // 2)
    while size:
        start = 0
        while start < len(best):
            fewer = best[:start] + best[start + size :]
            if signature(fault_of(job, fewer, seed)[0]) == wanted:
                best = fewer
            else:
                start += size
        size //= 2
    return fault_of(job, best, seed)
