"""What if: a simulation whose settings change at a moment. Its history before is that of the unchanged one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pslab.dashboard.playground.settings import SettingsError
from pslab.simulator import Cluster
from pslab.simulator.build import step_times
from pslab.simulator.faults import schedule_faults
from psserver.optimizers import build as build_optimizer
from psserver.policies import PolicyError
from psserver.policies import build as build_policy
from pswire.config.experiment import Experiment
from pswire.config.sections import FaultsSection

# What can change while a job runs: keys of [section], or all of it.
CHANGEABLE = (
    "policy.",
    "optimizer.learning_rate",
    "simulation.compute",
    "simulation.factors.",
    "simulation.factors",
    "links.latency",
    "links.bandwidth",
    "faults.crashes",
)


def check_changes(keys: list[str]) -> None:
    """Raises SettingsError for a key that cannot change while a job runs."""
    for key in keys:
        if not any(key == known or (known.endswith(".") and key.startswith(known)) for known in CHANGEABLE):
            known = ", ".join(name.rstrip(".") for name in CHANGEABLE if name != "simulation.factors.")
            raise SettingsError(f"{key} cannot change while a job runs; these can: {known}")


class Schedule:
    """A learning rate that another takes over from: at the update after the change."""

    def __init__(self, now: Any) -> None:
        self.now = now

    def rate(self, version: int) -> np.float32:
        rate: np.float32 = self.now.rate(version)
        return rate


def prepare(cluster: Cluster, before: Experiment, after: Experiment, at: float, rates: Schedule) -> None:
    """Put the change down on the queue. `rates`: the schedule that the shards' optimizers ask.

    Raises SettingsError for what cannot change.
    """
    changes: list[Callable[[], None]] = []
    if (before.policy.name, before.policy.knobs) != (after.policy.name, after.policy.knobs):
        size = after.cluster
        try:
            policy = build_policy(after.policy.name, after.policy.knobs, size.workers, size.servers)
            cluster.coordinator.check_succession(policy)
        except PolicyError as error:
            raise SettingsError(str(error)) from error
        changes.append(partial(cluster.change_policy, policy))
    if before.optimizer.learning_rate != after.optimizer.learning_rate:
        later = build_optimizer(after.optimizer.config).schedule
        changes.append(partial(setattr, rates, "now", later))
    if before.simulation.compute != after.simulation.compute:
        changes.append(lambda: _times(cluster, after))
    elif before.simulation.factors != after.simulation.factors:
        changes.append(lambda: _factors(cluster, before, after))
    if before.links != after.links:
        links = after.links
        changes.append(lambda: cluster.network.change(links.latency, links.bandwidth))
    known = before.faults.crashes
    crashes = [crash for crash in after.faults.crashes if crash not in known]
    if any(crash.at < at for crash in crashes):
        raise SettingsError(
            f"a new crash comes before the moment of the change, {at:g} s: history stays as it was"
        )
    changes.append(lambda: schedule_faults(cluster, FaultsSection(crashes=crashes), start=False))

    def change() -> None:
        for each in changes:
            each()

    cluster.queue.at(at, change)


def _factors(cluster: Cluster, before: Experiment, after: Experiment) -> None:
    for worker in cluster.workers.values():
        old = before.simulation.factors.get(worker.index, 1.0)
        new = after.simulation.factors.get(worker.index, 1.0)
        if old != new:
            if old == 0:
                worker.compute = step_times(after, worker.index)
            else:
                worker.compute = _scaled(worker.compute, new / old)


def _scaled(draw: Callable[[], float], factor: float) -> Callable[[], float]:
    return lambda: factor * draw()


def _times(cluster: Cluster, after: Experiment) -> None:
    for worker in cluster.workers.values():
        worker.compute = step_times(after, worker.index)
