"""The same figures through the simulated cluster: the real coordinator, its log, and `ps-lab check` on it.

What a race of bare policies gives (`test_builtin_table`) must not change when tickets, notices and
members come in between. Sources as there.
"""

import io

import pytest

from pslab.check.checker import check_log
from pslab.runs.log import read_log
from tests.papers.race import harmonic
from tests.simulator import test_figures as figures
from tests.simulator.lab import timed
from tests.simulator.test_figures import Figure

P, K = 8, 4
FIRST_K = harmonic(P) - harmonic(P - K)

ROWS = (
    Figure("k-sync", {"aggregate": K}, FIRST_K, 0, 0, dropped=0, cancelled=24000, seeds=1),
    Figure("k-batch-sync", {"aggregate": K}, K / P, 0, 0, dropped=0, cancelled=42000, seeds=1),
    Figure("rennala", {"aggregate": K}, 1.0735, 0, 0, dropped=27691, cancelled=0, seeds=1),
    Figure("k-async", {"aggregate": K}, FIRST_K, (P - K) / K, dropped=0, cancelled=0, seeds=2),
    Figure("k-batch-async", {"aggregate": K}, K / P, (P - 1) / K, dropped=0, cancelled=0, seeds=1),
    Figure("fedbuff", {"aggregate": K}, K / P, (P - 1) / K, dropped=0, cancelled=0, seeds=1),
    Figure("softsync", {"n": 2}, K / P, (P - 1) / K, dropped=0, cancelled=0, seeds=1),
    Figure("ringmaster", {"threshold": 6, "stops": True}, 1 / P, 2.126, 5, dropped=0, seeds=3),
    # 9000 exponential intervals have a standard deviation of 1 %; the bare race is longer.
    Figure("delay-adaptive", {}, 1 / P, P - 1, dropped=0, cancelled=0, seeds=3, tolerance=0.03),
    Figure("dc-asgd", {}, 1 / P, P - 1, dropped=0, cancelled=0, seeds=3, tolerance=0.03),
)

DSSP = (
    Figure("dssp", {"lower": 1, "upper": 4}),
    Figure("dssp", {"lower": 1, "upper": 4, "literal": True}),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_figure_is_met_in_the_simulated_cluster(row: Figure) -> None:
    figures.test_figure(row)


@pytest.mark.parametrize("row", [*ROWS, *DSSP], ids=str)
def test_its_log_passes_all_checks(row: Figure) -> None:
    run = timed(row.policy, workers=P, versions=300, policy_knobs=row.knobs)
    verdict = check_log(read_log(io.StringIO("".join(run.lines))))
    assert verdict.violations == (), [str(violation) for violation in verdict.violations]
    assert verdict.conservation.holds
