"""Seconds of a job: they go on from the last input, whichever process decides and however long nobody did."""

from unittest import mock

import pytest

from psserver.service.job.decider import Decider
from psserver.service.replicas.deciding import ReplicatedDecider
from tests.promises import promise


@pytest.fixture
def clock() -> mock.Mock:
    """This process's clock, at another number than any other's."""
    return mock.Mock(return_value=1000.0)


@promise("A pause in which nobody could decide fires no deadline of a job")
def test_a_copy_that_leads_goes_on_from_the_last_input_that_it_took(clock: mock.Mock) -> None:
    decider = object.__new__(ReplicatedDecider)
    decider.coordinator = mock.Mock(state=mock.Mock(roster=mock.Mock(present={}), over=False))
    decider.agreement, decider._heard, decider.tell = mock.Mock(), None, mock.Mock()
    decider.host = mock.Mock()
    decider.host.runtime.now = clock
    decider.hear(7.0)
    clock.return_value = 1002.0
    assert decider.now() == 9.0
    decider.hear(9.5)
    clock.return_value = 1062.0
    decider.lead()
    assert decider.now() == 9.5
    clock.return_value = 1063.0
    assert decider.now() == 10.5


def test_a_job_goes_on_from_the_time_of_its_checkpoint(clock: mock.Mock) -> None:
    decider = object.__new__(Decider)
    decider.host = mock.Mock()
    decider.host.runtime.now = clock
    decider.take_up(mock.Mock(state=mock.Mock(now=4711.0)))
    assert decider.now() == 4711.0
    clock.return_value = 1001.0
    assert decider.now() == 4712.0
