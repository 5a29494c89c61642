"""The one fold over a log: what it knows behind the last entry, and what it keeps of tickets that are over."""

import io
from collections import Counter

from pslab.runs.fold import APPLIED, DROPPED, INSTALLED, LogState
from pslab.runs.log import Line, read_log
from pslab.runs.work import WAITING, WorkFold
from psserver.decisions import entries as e
from tests.lab.logs import bounded_log, text


def lines() -> list[Line]:
    return [line for line in read_log(io.StringIO(text(bounded_log()))) if isinstance(line, Line)]


def test_it_counts_members_versions_contributions_and_times() -> None:
    log = LogState.of((line.fact, line.t) for line in lines())
    facts = [line.fact for line in lines()]
    stop = next(line for line in lines() if isinstance(line.fact, e.Stop))
    assert log.entries == len(facts) and log.stop == stop.fact
    assert log.versions == sum(isinstance(fact, e.Apply) for fact in facts) == 3
    assert log.committed == Counter(fact.worker for fact in facts if isinstance(fact, e.Commit))
    assert log.applied + log.dropped == log.committed
    assert log.histogram.total() == log.applied.total()
    assert log.samples == 8 * log.committed.total() and log.pending.samples == 8 * log.applied.total()
    assert list(log.members) == ["w0", "w1", "w2"] and all(m.done and m.gone for m in log.members.values())
    # Members leave behind the stop: that is no part of the job's time.
    assert log.seconds == stop.t < lines()[-1].t
    assert log.began == next(line.t for line in lines() if isinstance(line.fact, e.Grant))


def test_only_one_that_remembers_keeps_tickets_that_are_over() -> None:
    brief, whole = LogState(), LogState(remember=True)
    for line in lines():
        brief.see(line.fact, line.t)
        whole.see(line.fact, line.t)
    assert not brief.tickets and not whole.held
    fates = Counter(ticket.state for ticket in whole.tickets.values())
    assert fates == {INSTALLED: 1, APPLIED: whole.applied.total(), DROPPED: 1}


def test_a_worker_that_takes_part_again_waits_from_then_on() -> None:
    log = WorkFold()
    for t, fact in (
        (0.0, e.Join("w0", 0, 0)),
        (1.0, e.Grant("w0", 1, 0)),
        (2.0, e.Commit("w0", 1, 0, 8, 0.5, 1.0)),
        (2.0, e.Done("w0")),
        (5.0, e.Resume("w0")),
        (6.0, e.Grant("w0", 2, 0)),
    ):
        log.work(fact, t)
    (work,) = log.work(e.Commit("w0", 2, 1, 8, 0.5, 1.0), 8.0)
    assert [(s.kind, s.begin, s.end) for s in work.before] == [(WAITING, 5.0, 6.0)]
