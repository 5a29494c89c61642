"""Many schedules: each from a seed of its own, and the shortest one found for the first that fails."""

from collections.abc import Iterable

from pslab.verify.invariants import InvariantViolation
from pslab.verify.schedule import ListedChoices, Seeded
from pslab.verify.search import signature
from tests.recovery.promises import check
from tests.recovery.schedule import Schedule
from tests.recovery.settings import Job, job_of
from tests.recovery.tally import SECOND_OPINION, Played, Tally, tally_of


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


def play(seed: int) -> Played:
    """The schedule of that seed, to its end. Raises InvariantViolation."""
    schedule = Schedule(job_of(seed), Seeded(seed), seed)
    schedule.run(steps_of(seed))
    read = seed % SECOND_OPINION == 0 and not schedule.refused
    if not schedule.refused:
        check(schedule.cluster, second_opinion=read)
    return {
        "policies": {schedule.job.setting.policy: 1},
        "faults": schedule.happened,
        "in all": {
            "versions rolled back": schedule.cluster.rolled_back,
            "on a disk that fails": schedule.job.disk,
            "logs read by `ps-lab check`": read,
        },
    }


def play_all(seeds: Iterable[int]) -> Tally:
    return tally_of(play, seeds)


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
