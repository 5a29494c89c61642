"""The same figures through the simulated cluster: the real coordinator, its log, and `ps-lab check` on it.

What a race of bare policies gives (`test_builtin_table`) must not change when tickets, notices and members come in
between. Of a twentieth of the updates, and within eight percent; of as many, and within two, in scripts/soak schedules.
"""

import pytest

from tests.papers.test_builtin_table import ROWS, P, Row
from tests.repetitions import SOAK, repetitions, usually
from tests.simulator.lab import timed

pytestmark = pytest.mark.nightly

SHARE = repetitions(20, soak=1, fast=40)
TOLERANCE = 0.02 if SOAK else 0.08


# One of each kind of waiting; a soak has all rows.
FEW = [row for row in ROWS if row.name in ("k-sync", "rennala", "k-async", "ringmaster")]


@pytest.mark.parametrize("row", usually(FEW, ROWS), ids=str)
def test_the_figure_is_met_in_the_simulated_cluster(row: Row) -> None:
    run = timed(row.name, workers=P, versions=row.updates // SHARE, policy_knobs=row.knobs)
    assert run.seconds_per_version == pytest.approx(row.time, rel=TOLERANCE)
    assert run.mean_staleness == pytest.approx(row.tau, rel=TOLERANCE)
    if row.largest is not None:
        assert run.max_staleness == row.largest
    assert run.dropped / run.versions == pytest.approx(row.drops, rel=TOLERANCE)
    assert run.cancelled / run.versions == pytest.approx(row.cancels, rel=TOLERANCE)
    if row.cancels == int(row.cancels):
        # The last update stops the job in the middle of its cancels.
        assert row.cancels * run.versions - P <= run.cancelled <= row.cancels * run.versions
    verdict = run.verdict()
    assert verdict.violations == (), [str(violation) for violation in verdict.violations]
    assert verdict.conservation.holds
