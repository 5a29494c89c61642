"""The real worker's loop over several batches per ticket: numbers, samples, and everything that interrupts."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from pswire.config.units import Interval
from pswire.model.plan import VariableSpec, make_plan
from psworker.engine import Stop
from psworker.errors import Diverged, PayloadRefused, Refused, Voided
from psworker.evaluating import Evaluations, Plateau, Watched
from psworker.link import Link
from psworker.local import LocalWork, build
from psworker.local.rule import RuleResult
from psworker.loop import Outcome, no_pause, train
from tests.local.fake_session import FakeSession
from tests.patience import PATIENCE

LOCAL = {"steps": 3.0, "learning_rate": 0.5}
ELASTIC = LOCAL | {"alpha": 0.5}
STOPPED = Stop("enough", 0, True, 0)


@dataclass
class Trainer:
    """The gradient is the weights; `hooks[batch]` is called before it, once; `poisoned` ones are NaN."""

    count: int
    poisoned: set[int] = field(default_factory=set)
    hooks: dict[int, Callable[[], None]] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    narrow: bool = False

    def batches(self, *_: Any) -> Iterator[tuple[int, int]]:
        return ((number, number) for number in range(_[-1], self.count))

    def step(self, flats: list[Any], batch: int) -> RuleResult:
        self.seen.append(batch)
        self.hooks.pop(batch, lambda: None)()
        bad = math.nan if batch in self.poisoned else 1.0
        g = flats[0] * np.float32(bad)
        return RuleResult([g], 1.0, float(np.linalg.norm(g)), samples=10)

    def evaluate(self, flats: list[Any]) -> dict[str, float]:
        return {}


def run(session: FakeSession, trainer: Trainer, pauses: list[int] | None = None) -> Outcome:
    pause = (lambda: None) if pauses is None else (lambda: pauses.append(len(trainer.seen)))
    return train(cast(Link, session), trainer, 1, lambda *_: None, pause)


def batches(session: FakeSession) -> list[int]:
    return [said.batch for said in session.said]


def test_tickets_of_three_batches_and_a_short_last_one() -> None:
    session, trainer, pauses = FakeSession("local-sgd", LOCAL), Trainer(8), list[int]()
    outcome = run(session, trainer, pauses)
    assert [(s.batch, s.samples, s.ready) for s in session.said] == [
        (2, 30, True),
        (5, 30, True),
        (7, 20, False),
    ]
    # x - x/2 - x/4 - x/8 of x = (1, 2); two steps the last time.
    assert session.said[0].payload == [0.875, 1.75] and session.said[-1].payload == [0.75, 1.5]
    assert trainer.seen == list(range(8)) and pauses == list(range(1, 9))
    assert outcome.steps == 3 and session.asks == 1  # the other requests came with commits


def test_a_restarted_worker_goes_on_behind_its_last_ticket() -> None:
    session = FakeSession("local-sgd", LOCAL, next_batch=3)
    run(session, Trainer(8))
    assert batches(session) == [5, 7]


@pytest.mark.parametrize("rule", ["gradient", "dana-slim"])
def test_a_cancelled_ticket_of_one_batch_is_done_again(rule: str) -> None:
    knobs = {"momentum": 0.5} if rule == "dana-slim" else {}
    session, trainer = FakeSession(rule, knobs, mishaps={1: Voided("overtaken")}), Trainer(3)
    run(session, trainer)
    assert batches(session) == [0, 1, 2] and trainer.seen == [0, 1, 1, 2]
    assert session.abandoned == [(1, "cancelled")]
    if rule == "dana-slim":
        # v = 1, 1.5, 1.75: the cancelled one left no trace.
        assert [said.payload[0] for said in session.said] == [1.5, 1.75, 1.875]


def test_a_cancelled_ticket_of_three_goes_on_with_the_next_three() -> None:
    session, trainer = FakeSession("local-sgd", LOCAL), Trainer(9)
    # In the middle of the second ticket.
    trainer.hooks[4] = lambda: session.voided.add(1)
    run(session, trainer)
    assert batches(session) == [2, 8] and session.abandoned == [(1, "cancelled")]
    assert trainer.seen == [0, 1, 2, 3, 4, 6, 7, 8]  # 5 was passed over


def test_a_ticket_that_was_cancelled_before_anything_was_read_is_done_again() -> None:
    class Early(FakeSession):
        def pull_flat(self, grant: Any) -> list[Any]:
            if grant.ticket == 1:
                raise Voided("the version is gone")
            return super().pull_flat(grant)

    session = Early("local-sgd", LOCAL)
    run(session, Trainer(9))
    assert batches(session) == [2, 5, 8] and session.abandoned == [(1, "cancelled")]


def test_a_gradient_that_is_not_finite_costs_its_ticket() -> None:
    session, trainer = FakeSession("local-sgd", LOCAL), Trainer(9, poisoned={3})
    run(session, trainer)
    assert batches(session) == [2, 8] and session.abandoned == [(1, "nonfinite")]
    assert trainer.seen == [0, 1, 2, 3, 6, 7, 8]


@pytest.mark.parametrize(("rule", "knobs"), [("local-sgd", LOCAL), ("elastic", ELASTIC)])
def test_ten_tickets_that_come_to_nothing_are_no_accident(rule: str, knobs: dict[str, float]) -> None:
    session = FakeSession(rule, knobs)
    with pytest.raises(Diverged, match="10 tickets in a row"):
        run(session, Trainer(300, poisoned=set(range(3, 300))))
    assert batches(session) == [2]


def test_a_payload_that_the_servers_refuse_leaves_no_trace() -> None:
    session = FakeSession("dana-slim", {"momentum": 0.5}, mishaps={1: PayloadRefused("NaN in the state")})
    run(session, Trainer(3))
    assert batches(session) == [0, 2]
    assert [said.payload[0] for said in session.said] == [1.5, 1.75]


def test_an_elastic_worker_takes_its_steps_before_it_asks() -> None:
    """All but the first, which needs a centre to begin at."""
    session, trainer, pauses = FakeSession("elastic", ELASTIC), Trainer(8), list[int]()
    asked_after = []
    session.before_grant = {n: lambda _: asked_after.append(len(trainer.seen)) for n in range(3)}
    run(session, trainer, pauses)
    assert asked_after == [0, 6, 8]
    assert [(s.batch, s.samples, s.ready) for s in session.said] == [
        (2, 30, False),
        (5, 30, False),
        (7, 20, False),
    ]
    assert session.asks == 3 and pauses == list(range(1, 9))


def test_a_cancelled_exchange_is_made_again_without_taking_the_steps_again() -> None:
    session, trainer = FakeSession("elastic", ELASTIC, mishaps={1: Voided("overtaken")}), Trainer(6)
    run(session, trainer)
    smooth = FakeSession("elastic", ELASTIC)
    run(smooth, Trainer(6))
    assert trainer.seen == list(range(6)) and session.said == smooth.said


def test_another_incarnation_begins_at_the_centre() -> None:
    """The servers gave it up while it took its steps: they are lost, and what it remembered with them."""

    def given_up(session: FakeSession) -> None:
        session.membership += 1

    session = FakeSession("elastic", ELASTIC, before_grant={1: given_up})
    run(session, Trainer(9))
    assert batches(session) == [2, 8] and session.abandoned == [(1, "cancelled")]
    assert session.said[1].payload == session.said[0].payload  # again from the centre


STREAMING = {
    "steps": 4.0,
    "learning_rate": 0.5,
    "weight_decay": 0.0,
    "beta_1": 0.9,
    "beta_2": 0.99,
    "epsilon": 1e-8,
}
STREAMING |= {"fragments": 1.0, "overlap": 2.0, "mixing": 0.5}


class Slow(FakeSession):
    """Each contribution but the last travels until the worker has taken the steps that need no version."""

    def contribute(self, grant: Any, flats: list[Any], **said: Any) -> None:
        if said["ready"]:
            assert self.arrives.wait(PATIENCE), "the worker waits for its contribution"
            self.arrives.clear()
        super().contribute(grant, flats, **said)

    def local_work(self) -> Any:
        self.arrives = threading.Event()
        plan = make_plan([VariableSpec("x", (2,))], 1)
        return LocalWork(build(self.rule, self.knobs, [2], plan), self.membership)


def test_a_worker_goes_on_while_its_contribution_travels_and_then_waits() -> None:
    """For exactly two steps: batch 6 needs the version, which is pulled in the same thread that contributes."""
    session, trainer, pauses = Slow("streaming-adamw", STREAMING), Trainer(11), list[int]()
    for batch in (5, 9):
        trainer.hooks[batch] = lambda: session.arrives.set()
    pulled = []
    session.before_grant = {n: lambda _: pulled.append(len(trainer.seen)) for n in (1, 2)}
    outcome = run(session, trainer, pauses)
    assert [(s.batch, s.samples, s.ready) for s in session.said] == [
        (3, 40, True),
        (7, 40, True),
        (10, 30, False),
    ]
    assert trainer.seen == list(range(11)) and pauses == list(range(1, 12))
    assert outcome.steps == 3 and session.asks == 1 and all(count <= 10 for count in pulled)


@pytest.mark.parametrize(
    ("mishap", "reason"), [(Voided("overtaken"), "cancelled"), (PayloadRefused("NaN"), "nonfinite")]
)
def test_a_contribution_that_comes_to_nothing_costs_the_ticket_that_was_begun(
    mishap: Exception, reason: str
) -> None:
    session, trainer = Slow("streaming-adamw", STREAMING, mishaps={1: mishap}), Trainer(16)
    for batch in (5, 9):
        trainer.hooks[batch] = lambda: session.arrives.set()
    run(session, trainer)
    assert batches(session) == [3, 15] and session.abandoned == [(1, reason)]
    assert trainer.seen == [*range(10), *range(12, 16)]


def test_steps_that_are_not_finite_cost_the_ticket_whose_version_they_did_not_need() -> None:
    session, trainer = Slow("streaming-adamw", STREAMING), Trainer(12, poisoned={4})
    trainer.hooks[4] = lambda: session.arrives.set()
    run(session, trainer)
    assert batches(session) == [3, 11] and session.abandoned == [(1, "nonfinite")]
    assert trainer.seen == [*range(5), *range(8, 12)]


def test_the_end_of_the_job_ends_the_steps_that_go_on() -> None:
    session, trainer = Slow("streaming-adamw", STREAMING), Trainer(300)

    def stop() -> None:
        session.stop = STOPPED
        session.arrives.set()

    trainer.hooks[4] = stop
    assert run(session, trainer).stop is STOPPED
    assert trainer.seen == [0, 1, 2, 3, 4] and batches(session) == [3]


def test_what_the_next_ticket_meets_is_raised_after_the_contribution_counts() -> None:
    class Behind(Slow):
        def pull_flat(self, grant: Any) -> list[Any]:
            if grant.ticket == 1:
                raise Refused("not for you")
            return super().pull_flat(grant)

    session, trainer, steps = Behind("streaming-adamw", STREAMING), Trainer(12), list[int]()
    trainer.hooks[5] = lambda: session.arrives.set()
    with pytest.raises(Refused, match="not for you"):
        train(cast(Link, session), trainer, 1, lambda count, *_: steps.append(count))
    assert steps == [1] and batches(session) == [3]


def test_momentum_is_forgotten_by_another_incarnation() -> None:
    def given_up(session: FakeSession) -> None:
        session.membership += 1

    session = FakeSession("dana-slim", {"momentum": 0.5}, before_grant={1: given_up})
    run(session, Trainer(3))
    assert [said.payload[0] for said in session.said] == [1.5, 1.5, 1.75]


@pytest.mark.parametrize(("rule", "knobs"), [("local-sgd", LOCAL), ("elastic", ELASTIC)])
def test_the_end_of_the_job_ends_the_steps(rule: str, knobs: dict[str, float]) -> None:
    session, trainer = FakeSession(rule, knobs), Trainer(300)

    def stop() -> None:
        session.stop = STOPPED

    trainer.hooks[4] = stop
    assert run(session, trainer).stop is STOPPED
    assert trainer.seen == [0, 1, 2, 3, 4] and batches(session) == [2]


def test_no_data_at_all() -> None:
    session = FakeSession("local-sgd", LOCAL)
    assert run(session, Trainer(0)).steps == 0 and session.tickets == 0


def test_data_without_a_batch_is_said(caplog: pytest.LogCaptureFixture) -> None:
    outcome = run(FakeSession("gradient", {}), Trainer(0))
    assert outcome.empty and "the data of worker 0 of 1 has no batch" in caplog.text
    assert not run(FakeSession("gradient", {}), Trainer(1)).empty
    # A restarted worker that had committed all of it.
    assert not run(FakeSession("gradient", {}, next_batch=3), Trainer(3)).empty


def test_an_evaluation_comes_between_two_tickets() -> None:
    """The next one is not asked for before it is over; patience ends this worker's work."""
    session, trainer, seen = FakeSession("gradient", {}), Trainer(9), list[tuple[int, int]]()

    def report(version: int, metrics: Mapping[str, float]) -> None:
        assert session.held is None and not session.asked
        seen.append((version, len(session.said)))

    watched = Watched(patience=2)
    evaluations = Evaluations(Interval(1, "epochs"), watched, Epochs(trainer, [0, 1, 1, 2, 3, 4]), report)
    train(cast(Link, session), trainer, 1, lambda *_: None, no_pause, evaluations)
    assert [said.ready for said in session.said] == [True, False, True, False, False]
    assert seen == [(0, 2), (0, 4), (0, 5)] and watched.ends
    assert session.ended_for == watched.ends


def test_a_lower_rate_goes_along_with_the_next_contribution_that_counts() -> None:
    """The second evaluation, behind batch 2, finds none better; the ticket of batch 3 is cancelled once."""
    session, trainer = FakeSession("gradient", {}, mishaps={3: Voided("overtaken")}), Trainer(5)
    evaluations = Evaluations(
        Interval(1, "epochs"),
        Watched(),
        Epochs(trainer, [0, 1, 2, 2, 2, 2]),
        lambda *_: None,
        plateau=Plateau(patience=1, factor=0.5),
        rate=lambda: 0.4,
    )
    train(cast(Link, session), trainer, 1, lambda *_: None, no_pause, evaluations)
    assert batches(session) == [0, 1, 2, 3, 4] and session.abandoned == [(3, "cancelled")]
    assert [said.learning_rate for said in session.said] == [None, None, None, 0.2, None]


@dataclass
class Epochs:
    """The epoch of each batch that has been computed; every evaluation finds a loss of 1."""

    trainer: Trainer
    of: list[int]

    @property
    def epoch(self) -> int:
        return self.of[len(self.trainer.seen)]

    def evaluate(self, flats: list[Any]) -> dict[str, float]:
        return {"loss": 1.0}
