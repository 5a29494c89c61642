"""A search for a schedule under which a policy breaks the contract, and for the shortest that shows the fault."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pslab.verify.guarded import Case, decisions, play
from pslab.verify.invariants import InvariantViolation, patient
from pslab.verify.schedule import Named, Schedule
from pslab.verify.trace_format import write_trace
from psserver.policies import PolicyError, build
from psserver.policies.succession import successors

# From a case and acts to the acts played up to the fault, or None if they do not show it.
Shows = Callable[[Case, Sequence[str]], list[str] | None]


def shrink(case: Case, acts: Sequence[str], shows: Shows) -> tuple[Case, list[str]]:
    """Try fewer workers, then fewer acts, until none of it works any more.

    Delta debugging (Zeller and Hildebrandt 2002, Simplifying and Isolating Failure-Inducing Input), greedy and
    deterministic. No single act of the result can be left out.
    """
    best = list(acts)
    while True:
        before = (case, list(best))
        case, best = _fewer_workers(case, best, shows)
        best = _fewer_acts(case, best, shows)
        if (case, best) == before:
            return case, best


def signature(fault: str) -> str:
    """Return a fault's sentence without numbers, names and lists: equal for two schedules that show the same fault."""
    text = re.sub(r"failed on (\w+)\(.*?\): ", r"failed on \1: ", fault)
    text = re.sub(r"\[.*\]|\(.*\)|'.*?'", "..", text)
    text = re.sub(r"\b\w*\d[\w.]*", "#", text)
    return re.sub(r"#(,? #)+", "#", text)


def _fewer_workers(case: Case, acts: list[str], shows: Shows) -> tuple[Case, list[str]]:
    """Leave one worker out, or give its acts to another."""
    rank = case.workers - 1
    while rank >= 0 and case.workers > 1:
        smaller = replace(case, workers=case.workers - 1)
        up = {other: other - (other > rank) for other in range(case.workers) if other != rank}
        for given in (up, {**up, rank: max(rank - 1, 0)}):
            try:
                played = shows(smaller, _renamed(acts, given))
            except PolicyError:
                return case, acts  # the knobs need this many workers
            if played is not None:
                case, acts = smaller, played
                break
        rank = min(rank, case.workers) - 1
    return case, acts


def _renamed(acts: Sequence[str], ranks: Mapping[int, int]) -> list[str]:
    """Return the acts with other ranks, without those of workers that `ranks` does not name."""
    found = []
    for line in acts:
        who, _, rest = line.partition(" ")
        if not who.startswith("w"):
            found.append(line)
        elif int(who[1:]) in ranks:
            found.append(f"w{ranks[int(who[1:])]} {rest}")
    return found


def _fewer_acts(case: Case, acts: list[str], shows: Shows) -> list[str]:
    size = max(1, len(acts) // 2)
    while True:
        start, before = 0, len(acts)
        while start < len(acts):
            played = shows(case, acts[:start] + acts[start + size :])
            if played is None:
                start += size
            else:
                acts = played
        if size > 1:
            size //= 2
        elif len(acts) == before:
            return acts


# Every fifth schedule is played twice: the same events must lead to the same decisions.
TWICE = 5
# In every fourth schedule an operator changes the policy, where it permits that.
CHANGED = 4
# CPU seconds that a step may take; the first one of a policy may import a library.
PATIENCE = 1.0
# The same while a schedule is shrunk.
IMPATIENCE = 0.05
OTHERWISE = "the same events led to other decisions the second time"


@dataclass(frozen=True)
class Finding:
    """A fault. `acts`: the shortest schedule that shows it, in the job `case`; `found`: the length of the first one.

    `schedule`: the number of the schedule that found it, from 1, and `seed` its seed. `trace`: a golden trace; empty
    if the fault cannot be reproduced.
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
    """The result: how many schedules were played, with how many acts, and the fault if there was one."""

    case: Case
    schedules: int
    acts: int
    finding: Finding | None


def verify(
    case: Case, *, schedules: int, seed: int = 0, watch: Callable[[str, int], None] | None = None
) -> Report:
    """Play `schedules` random schedules, each with a seed of its own, up to the first that shows a fault.

    `watch` is called with the stage ("schedules" or "shrinking") and its progress. Raises PolicyError if the policy
    cannot be built.
    """
    with patient(PATIENCE):
        _self_description(case)
        others, acts = _others(case), 0
        for number in range(schedules):
            if watch is not None:
                watch("schedules", number)
            changes = others if number % CHANGED == CHANGED - 1 else ()
            schedule = Schedule(case, seed + number, others=changes)
            fault = _fault_of(schedule, 40 + number % 80)
            acts += len(schedule.acts)
            if not fault and number % TWICE == 0:
                fault = _otherwise(case, schedule)
            if fault:
                finding = _finding(case, schedule, fault, number, seed, watch)
                return Report(case, number + 1, acts, finding)
    return Report(case, schedules, acts, None)


def _others(case: Case) -> list[Named]:
    """Return the policies that the policy may be changed to and, if it is built in, itself."""
    found = successors(build(case.policy, case.knobs, case.workers), case.workers, 1)
    again: list[Named] = [] if ":" in case.policy or not found else [(case.policy, case.knobs)]
    return [*again, *((name, {}) for name in found if name != case.policy)]


def _self_description(case: Case) -> None:
    """Raise PolicyError unless the knobs that the log gets build the policy again."""
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
        return schedule.job.fault or str(breach)
    return ""


def _otherwise(case: Case, schedule: Schedule) -> str:
    played = play(case, schedule.acts)
    if played.fault:
        return OTHERWISE
    return "" if played.decisions == decisions(schedule.job.log) else OTHERWISE


def _finding(
    case: Case,
    schedule: Schedule,
    fault: str,
    number: int,
    seed: int,
    watch: Callable[[str, int], None] | None,
) -> Finding:
    acts = schedule.acts
    if fault != OTHERWISE and signature(play(case, acts).fault) != signature(fault):
        # It cannot be reproduced: the policy is random, or the schedule saw something that acts do not show.
        if play(case, acts).decisions != decisions(schedule.job.log):
            fault = f"{OTHERWISE}; the first time: {fault}"
        return Finding(fault, number + 1, seed + number, len(acts), case, tuple(acts), "")

    def shows(smaller: Case, fewer: Sequence[str]) -> list[str] | None:
        if watch is not None:
            watch("shrinking", len(fewer))
        first = play(smaller, fewer)
        if fault == OTHERWISE:
            same = all(play(smaller, fewer).decisions == first.decisions for _ in range(3))
            return None if same else first.acts
        return first.acts if first.fault and signature(first.fault) == signature(fault) else None

    with patient(IMPATIENCE if "does not end" in fault else PATIENCE):
        smallest, shortest = shrink(case, acts, shows)
        if fault != OTHERWISE:
            fault = play(smallest, shortest).fault
        trace = _trace_of(smallest, shortest, fault)
    return Finding(
        fault,
        number + 1,
        seed + number,
        len(acts),
        smallest,
        tuple(shortest),
        trace,
    )


def _trace_of(case: Case, acts: Sequence[str], fault: str) -> str:
    # Without checks, so that the trace shows the fault.
    return write_trace([f"# {' '.join(fault.split())}", *case.head], acts, case.harness())
