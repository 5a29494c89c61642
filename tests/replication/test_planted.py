"""Every planted fault of the protocol is found; without one, nothing is."""

import pytest

from tests.planted.faults import Fault
from tests.repetitions import SOAK
from tests.replication.faults import FAULTS
from tests.replication.planting import catch


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found(fault: Fault) -> None:
    assert catch(fault), f"{fault.name}: not found"


def test_there_are_enough() -> None:
    assert len({fault.name for fault in FAULTS}) >= 20


@pytest.mark.skipif(not SOAK, reason="test_proof has the same searches")
def test_nothing_is_found_without_a_fault() -> None:
    assert catch(None) == ""
