"""Policies with knobs that schedules try, and the second opinion of `ps-lab check` on their logs."""

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pslab.check.checker import CheckResult, check_log
from pslab.runs.log import read_log
from pslab.verify.schedule import ChoiceSource, Schedule
from psserver.coordinator import Record


@dataclass(frozen=True)
class Setting:
    policy: str
    workers: int = 3
    knobs: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.policy, *(f"{k}={v}" for k, v in self.knobs.items()), f"n={self.workers}"])

    def play(self, dice: ChoiceSource, steps: int, *, eager: bool = False, phases: int = 1) -> Schedule:
        schedule = Schedule(self.policy, self.knobs, dice, workers=self.workers, eager=eager, phases=phases)
        schedule.run(steps)
        return schedule


def bounded(on_stale: str, aggregate: int, max_staleness: int, workers: int) -> Setting:
    knobs = {"on_stale": on_stale, "aggregate": aggregate, "max_staleness": max_staleness}
    return Setting("bounded", workers, dict(knobs))


SETTINGS = {
    "sync": (
        Setting("sync", 2),
        Setting("sync", 4),
        Setting("sync", 3, {"backup": 1}),
        Setting("sync", 3, {"weight": "samples", "most_samples": 7}),
        Setting("sync", 4, {"backup": 3}),
    ),
    "async": (Setting("async", 1), Setting("async", 2), Setting("async", 4)),
    "bounded": (
        bounded("drop", 1, 1, 3),
        bounded("drop", 3, 0, 4),
        bounded("downweight", 2, 1, 3),
        bounded("compensate", 1, 0, 3),
        bounded("block", 1, 1, 4),
        bounded("block", 3, 0, 3),
    ),
    "ssp": (
        Setting("ssp", 3, {"slack": 0}),
        Setting("ssp", 4, {"slack": 1}),
        Setting("ssp", 3, {"slack": 3}),
    ),
}
ALL = [setting for group in SETTINGS.values() for setting in group]


def checked(log: Iterable[Record]) -> CheckResult:
    lines = (json.dumps({"i": r.index, "t": round(r.t, 6), **r.entry.to_json()}) + "\n" for r in log)
    return check_log(read_log(io.StringIO("".join(lines))))


def second_opinion(schedule: Schedule) -> list[str]:
    return [str(violation) for violation in checked(schedule.log).violations]
