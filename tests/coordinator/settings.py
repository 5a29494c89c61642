"""Policies with knobs that schedules try."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pslab.verify.guarded import Case
from pslab.verify.schedule import Schedule


@dataclass(frozen=True)
class Setting:
    policy: str
    workers: int = 3
    knobs: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.policy, *(f"{k}={v}" for k, v in self.knobs.items()), f"n={self.workers}"])

    @property
    def case(self) -> Case:
        return Case(self.policy, self.knobs, self.workers)

    def play(self, seed: int, acts: int, **more: Any) -> Schedule:
        """Play a schedule to its end; a failure names the setting and the seed."""
        schedule = Schedule(self.case, seed, **more)
        try:
            schedule.run(acts)
        except BaseException as error:
            error.add_note(f"{self}, seed {seed}")
            raise
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
