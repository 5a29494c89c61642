"""Times that a worker reports are kept only where the coordinator's own clock allows them."""

import math
from dataclasses import dataclass

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import JobState, inputs
from psserver.coordinator.contributions import plausible
from psserver.decisions.entries import Commit
from pswire import protocol
from pswire.protocol import UNTOLD, Times

# Granted at 10, committed at 14; the ticket before was granted at 4.
FIT = [
    Times(1.0, 3.0),
    Times(0.0, 0.0),
    Times(1.0, 3.0, 6.0),
    Times(1.0, 3.003),
]
DO_NOT = [
    Times(1.0, 1e308),
    Times(1e308, 1e308),
    Times(1.0, 3.1),
    Times(1.0, 3.0, 6.1),
    Times(math.nan, 1.0),
    Times(1.0, 1.0, math.nan),
    Times(math.inf, 0.0),
    Times(None, 1.0),
    Times(1.0, None),
    Times(None, None, 1.0),
]


@pytest.mark.parametrize("times", FIT)
def test_what_fits(times: Times) -> None:
    assert plausible(times, 10.0, 4.0, 14.0) == times


@pytest.mark.parametrize("times", DO_NOT)
def test_what_does_not_is_left_out(times: Times) -> None:
    assert plausible(times, 10.0, 4.0, 14.0) == UNTOLD


@dataclass
class Training:
    """w0 under async, up to its first ticket."""

    def __post_init__(self) -> None:
        self.harness = CoordinatorHarness("async", workers=1)
        self.harness.gathers()
        self.harness.ready("w0")
        self.harness.commits("w0")
        self.harness.ready("w0")

    def commit(self, *times: float) -> Commit:
        """The entry of a commit after a second; the next ticket is asked for."""
        harness = self.harness
        harness.passes(1)
        (ticket,) = harness.coordinator.state.tickets.open_of("w0")
        commit = protocol.Commit(ticket.number, ready=True, times=Times(*times))
        harness.take(harness.coordinator.take(inputs.Requested("w0", 0, commit), harness.now))
        entry = [record.entry for record in harness.log if isinstance(record.entry, Commit)][-1]
        assert isinstance(entry, Commit)
        return entry


def test_a_commit_with_impossible_times_counts_and_the_log_still_passes_every_check() -> None:
    training = Training()
    assert training.commit(0.25, 0.5).compute == 0.5
    # Two seconds since the grant before this one.
    assert training.commit(0.25, 0.5, 1.25).before == 1.25
    for times in ((0.25, 1e308), (0.25, 0.5, 1.5), (1e9, 0.0)):
        entry = training.commit(*times)
        assert (entry.pull, entry.compute, entry.before) == (None, None, None)
    assert training.harness.verdict().ok


def test_a_saved_coordinator_knows_when_it_granted_last() -> None:
    training = Training()
    training.commit(0.25, 0.5)
    state = JobState.read(training.harness.coordinator.saved())
    assert [tally.granted_at for tally in state.roster.tallies.values()] == [training.harness.now]
    assert [ticket.former for ticket in state.tickets.live.values()] == [training.harness.now - 1]
