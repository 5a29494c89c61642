"""The staleness conservation law: exact integers, on small logs by hand. Every check of a log holds it, too."""

import io

from pslab.check.conservation import conservation
from pslab.runs.log import read_log
from tests.lab.logs import async_log, bounded_log, sync_log, text


def test_async_grows_by_everybody_else_at_every_update() -> None:
    law = conservation(read_log(io.StringIO(text(async_log(steps=40)))))
    assert law.holds
    assert law.aged == (3 - 1) * 40
    # All three hold tickets at every update: sum of tau + ages in flight = (n - 1) T, whatever the speeds.
    assert law.applied + law.given_up + law.in_flight == (3 - 1) * 40


def test_sync_has_no_staleness() -> None:
    law = conservation(read_log(io.StringIO(text(sync_log(rounds=5)))))
    assert law.holds
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
