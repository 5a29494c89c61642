"""Looks for a schedule under which a policy breaks the contract, and for the shortest one that shows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pslab.verify.harness import CoordinatorHarness
from pslab.verify.schedules.choices import Seeded
from pslab.verify.schedules.play import Case, decisions, play
from pslab.verify.schedules.schedule import TIMEOUT, Schedule
from pslab.verify.schedules.shrink import shrink, signature
from pslab.verify.schedules.time_limit import PATIENCE, TimeLimitedPolicy, timed
from pslab.verify.trace_format import tell
from pslab.verify.violation import InvariantViolation
from psserver.policies import PolicyError, build

# Schedules after which the policy is asked a second time: the same events, the same decisions.
TWICE = 5
# A step that was found to hang is given up sooner while its schedule is cut down. CPU seconds.
IMPATIENCE = 0.05
OTHERWISE = "the same events led to other decisions the second time"


@dataclass(frozen=True)
class Finding:
    """A fault. `acts` is the shortest schedule found for it, `found` the length of the first; `case` is its job.

    `schedule` is the number of the schedule that found it, counted from 1, and `seed` its seed.
    `trace` is a golden trace; empty when the fault cannot be told as one.
    """

    fault: str
    schedule: int
    seed: int
    found: int
    case: Case
    acts: tuple[str, ...]
    trace: str


@dataclass(frozen=True)
class Report:
    """`schedules` were played, `events` heard by the policy, until a fault was found, if one was."""

    case: Case
    schedules: int
    events: int
    finding: Finding | None


def verify(
    case: Case, *, schedules: int, seed: int = 0, watch: Callable[[str, int], None] | None = None
) -> Report:
    """Play `schedules` random schedules, each with a seed of its own, up to the first that shows a fault.

    `watch` is told what is being done ("schedules" or "shrinking") and how far it is. Raises PolicyError when
    the policy cannot be built.
    """
    with timed():
        _self_description(case)
        events = 0
        for number in range(schedules):
            if watch is not None:
                watch("schedules", number)
            choices = Seeded(seed + number)
            schedule = Schedule(case.policy, case.knobs, choices, workers=case.workers, servers=True)
            fault = _fault_of(schedule, 40 + number % 80)
            events += schedule.policy.events
            if not fault and number % TWICE == 0:
                fault = _otherwise(case, schedule)
            if fault:
                finding = _finding(case, schedule, fault, number, seed, watch)
                return Report(case, number + 1, events, finding)
    return Report(case, schedules, events, None)


def _self_description(case: Case) -> None:
    """Raises PolicyError unless the policy's knobs build it again, as the log promises."""
    knobs = build(case.policy, case.knobs, case.workers).knobs
    try:
        build(case.policy, knobs, case.workers)
    except PolicyError as error:
        raise PolicyError(
            f"policy {case.policy!r}: its knobs {dict(knobs)!r} do not build it again: {error}"
        ) from error


def _fault_of(schedule: Schedule, steps: int) -> str:
    try:
        schedule.run(steps)
    except InvariantViolation as breach:
        return str(breach)
    return ""


def _otherwise(case: Case, schedule: Schedule) -> str:
    played = play(case, schedule.acts)
    if played.fault:
        return OTHERWISE
    return "" if played.decisions == decisions(schedule.log) else OTHERWISE


def _finding(
    case: Case,
    schedule: Schedule,
    fault: str,
    number: int,
    seed: int,
    watch: Callable[[str, int], None] | None,
) -> Finding:
    acts = schedule.acts
    patience = IMPATIENCE if "does not end" in fault else PATIENCE
    if fault != OTHERWISE and signature(play(case, acts, patience).fault) != signature(fault):
        # It cannot be had again: chance, or something that only the first one saw.
        if play(case, acts, patience).decisions != decisions(schedule.log):
            fault = f"{OTHERWISE}; the first time: {fault}"
        return Finding(fault, number + 1, seed + number, len(acts), case, tuple(acts), "")

    def shows(smaller: Case, fewer: Sequence[str]) -> list[str] | None:
        if watch is not None:
            watch("shrinking", len(fewer))
        first = play(smaller, fewer, patience)
        if fault == OTHERWISE:
            same = all(play(smaller, fewer, patience).decisions == first.decisions for _ in range(3))
            return None if same else first.acts
        return first.acts if first.fault and signature(first.fault) == signature(fault) else None

    smallest, shortest = shrink(case, acts, shows)
    told = fault if fault == OTHERWISE else play(smallest, shortest, patience).fault
    return Finding(
        told,
        number + 1,
        seed + number,
        len(acts),
        smallest,
        tuple(shortest),
        _story(smallest, shortest, told, patience),
    )


def _story(case: Case, acts: Sequence[str], fault: str, patience: float) -> str:
    # No guard: what breaks a promise is to be seen.
    policy = TimeLimitedPolicy(build(case.policy, case.knobs, case.workers), patience)
    harness = CoordinatorHarness(policy, workers=case.workers, terms={"worker_timeout": TIMEOUT}, now=0.0)
    return tell([f"# {' '.join(fault.split())}", *case.head], acts, harness)
