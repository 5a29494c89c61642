"""What takes long is named by what it is: reading a checkpoint, a transfer, a job in which no version comes."""

import logging
import threading
from unittest import mock

import pytest

from psserver.service.life import job_loop
from psserver.service.life.job_loop import STANDSTILL, Standstill
from psserver.service.store import slow
from psserver.service.store.slow import mib_of, said


def test_what_takes_long_is_said_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    said_once = threading.Event()

    def what() -> str:
        said_once.set()
        return f"reads its part, {mib_of(2**20, 3 * 2**20)}"

    with caplog.at_level(logging.WARNING, logger=slow.log.name), said(what, first=0.01):
        assert said_once.wait(60)
    assert "reads its part, 1.0 of 3.0 MiB (since " in caplog.text


def test_a_job_in_which_no_version_comes_says_what_its_members_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_loop, "standstill", lambda coordinator, now: "w1 has been computing ticket 7")
    still = Standstill()
    coordinator = mock.Mock(version=3, started=True, stopped=None, resting=False)
    with caplog.at_level(logging.WARNING, logger=job_loop.log.name):
        for now in range(0, int(9 * STANDSTILL), 2):
            still.look(coordinator, float(now))
        lines = [record.getMessage() for record in caplog.records]
        assert [line.split(":")[0] for line in lines] == [
            f"no version after 3 for {seconds:.0f} s" for seconds in (30, 60, 120, 240)
        ]
        assert all("w1 has been computing ticket 7" in line for line in lines)
        caplog.clear()
        coordinator.version = 4
        for now in range(300, 328):
            still.look(coordinator, float(now))
        coordinator.resting = True
        still.look(coordinator, 1e6)
        assert not caplog.records
