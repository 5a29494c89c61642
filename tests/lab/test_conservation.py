"""The staleness conservation law: exact integers, on small logs by hand and on the real coordinator's."""

import io
import json
import random

import pytest

from pslab.check.checker import check_log
from pslab.check.conservation import StalenessGroup, conservation
from pslab.runs.log import read_log
from psserver.coordinator import Coordinator, JobTerms, Output, Record
from psserver.policies import build
from pswire import protocol
from tests.lab.logs import async_log, bounded_log, sync_log, text
from tests.repetitions import seeds


def test_async_grows_by_everybody_else_at_every_update() -> None:
    law = conservation(read_log(io.StringIO(text(async_log(steps=40)))))
    assert law.holds
    assert law.groups == (StalenessGroup(workers=3, waiting=1, updates=40, growth=(3 - 1) * 40),)
    # All three hold tickets at every update: sum of tau + ages in flight = (n - 1) T, whatever the speeds.
    assert law.applied + law.given_up + law.in_flight == (3 - 1) * 40


def test_sync_has_no_staleness() -> None:
    law = conservation(read_log(io.StringIO(text(sync_log(rounds=5)))))
    assert law.holds
    assert law.groups == (StalenessGroup(workers=3, waiting=3, updates=5, growth=0),)
    assert (law.aged, law.accounted) == (0, 0)


def test_a_drop_takes_its_age_along() -> None:
    law = conservation(read_log(io.StringIO(text(bounded_log()))))
    assert law.holds
    assert (law.applied, law.dropped) == (0, 2)


def test_a_wrong_staleness_breaks_the_law() -> None:
    records = async_log()
    records[next(i for i, r in enumerate(records) if r["kind"] == "apply")]["parts"][0]["staleness"] = 1
    law = conservation(read_log(io.StringIO(text(records))))
    assert not law.holds
    assert "!=" in str(law)


class Playground:
    """The real coordinator and random workers: they compute, die, come back, repeat themselves, finish."""

    def __init__(self, policy: str, knobs: dict[str, object], seed: int, workers: int = 4) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        terms = JobTerms(job="j", optimizer={"name": "sgd"}, workers=workers, worker_timeout=3.0)
        self.coordinator = Coordinator(terms, build(policy, knobs, workers), 0.0)
        self.log: list[dict[str, object]] = []
        self.take(self.coordinator.opening())
        self.left_to_do = {f"w{n}": self.dice.randint(10, 30) for n in range(workers)}
        for worker in self.left_to_do:
            self.join(worker)

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Record):
                entry = json.loads(json.dumps(output.entry.to_json(), allow_nan=False))
                self.log.append({"i": output.index, "t": output.t, **entry})

    def join(self, worker: str) -> None:
        session = str(self.dice.random())
        rank = int(worker[1:])
        member, outputs = self.coordinator.join(worker, session, rank, self.now)
        self.take(outputs)
        self.take(self.coordinator.connect(worker, member.incarnation, session, self.now))
        self.take(self.coordinator.handle(worker, member.incarnation, protocol.Ready(), self.now))

    def move(self, worker: str) -> None:
        """One thing that this worker may do now."""
        coordinator, now = self.coordinator, self.now
        member = coordinator.roster.present.get(worker)
        if member is None:
            if self.left_to_do[worker] and self.dice.random() < 0.5:
                self.join(worker)
            return
        number = member.incarnation
        opened = coordinator.tickets.open_of(worker)
        chance = self.dice.random()
        if member.state == "done" or (chance < 0.01 and len(coordinator.roster.present) > 2):
            if member.state != "done":
                self.take(coordinator.handle(worker, number, protocol.Leave("killed"), now))
        elif not opened:
            if member.requested is None:
                self.take(coordinator.handle(worker, number, protocol.Ready(), now))
        elif self.left_to_do[worker] <= 0:
            self.take(
                coordinator.handle(worker, number, protocol.Abandon(opened[0].number, "no more data"), now)
            )
            self.take(coordinator.handle(worker, number, protocol.Done(), now))
        elif chance < 0.05:
            self.take(
                coordinator.handle(worker, number, protocol.Abandon(opened[0].number, "no reason"), now)
            )
            self.take(coordinator.handle(worker, number, protocol.Ready(), now))
        else:
            if not opened[0].initialise:
                self.left_to_do[worker] -= 1
            self.commit(worker, number, opened[0].number)

    def commit(self, worker: str, incarnation: int, ticket: int) -> None:
        for _ in range(self.dice.choice((1, 1, 2))):  # resent now and then
            commit = protocol.Commit(ticket, samples=8, loss=1.0, ready=True)
            outputs = self.coordinator.handle(worker, incarnation, commit, self.now, norm=0.0)
            self.take(outputs)

    def run(self) -> list[dict[str, object]]:
        for _ in range(5000):
            if self.coordinator.stopped is not None:
                break
            self.now += 0.01
            self.move(self.dice.choice(list(self.left_to_do)))
            self.take(self.coordinator.tick(self.now))
        return self.log


POLICIES: list[tuple[str, dict[str, object]]] = [
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("async", {}),
    ("bounded", {"aggregate": 2, "max_staleness": 1}),
    ("bounded", {"aggregate": 1, "max_staleness": 2, "on_stale": "block"}),
    ("bounded", {"aggregate": 3, "max_staleness": 0, "on_stale": "block"}),
    ("bounded", {"aggregate": 2, "max_staleness": 1, "on_stale": "downweight"}),
    ("bounded", {"max_staleness": 1, "on_stale": "compensate"}),
    ("ssp", {"slack": 1}),
    ("ssp", {"slack": 0}),
]


IDS = ["-".join([name, *(str(knob) for knob in knobs.values())]) for name, knobs in POLICIES]


@pytest.mark.parametrize(("name", "knobs"), POLICIES, ids=IDS)
def test_logs_of_the_real_coordinator_pass_all_checks_under_churn(
    name: str, knobs: dict[str, object]
) -> None:
    for seed in seeds(6, soak=200):
        log = Playground(name, knobs, seed).run()
        verdict = check_log(read_log(io.StringIO(text(log))))
        assert verdict.violations == (), (seed, [str(violation) for violation in verdict.violations][:5])
        assert verdict.conservation.holds
        assert any(record["kind"] == "apply" for record in log)
