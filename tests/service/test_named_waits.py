"""What takes long is named by what it is: reading a checkpoint, a transfer, a job in which no version comes."""

import logging
import threading
from typing import Any
from unittest import mock

import pytest

from psserver.checkpoint import Store
from psserver.service.guard.calls import Caller, MemberCalls, Watch
from psserver.service.job.silence import Silence
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


def test_what_is_over_soon_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    with said(lambda: "never said", first=3600.0):
        pass
    assert "never said" not in caplog.text


def test_reading_a_checkpoint_is_progress() -> None:
    silence = Silence()
    silence.began(0.0)
    silence.order(1, 0.0)
    for second in range(1, 200):
        silence.hear(0, float(second), read=second)
    assert silence.waited() == ("execute entry 0 of the log", 199.0)
    # It answers, and reads nothing more.
    silence.hear(0, 300.0, read=199)
    assert silence.waited() == ("execute entry 0 of the log", 199.0)


def test_a_store_counts_what_was_read(tmp_path: Any) -> None:
    store = Store(tmp_path)
    (tmp_path / "file").write_bytes(bytes(1000))
    with store._open(tmp_path / "file") as reader:
        reader.take(400)
        assert store.read == 400
        reader.skip()
    assert store.read == 1000


def test_a_member_of_which_a_piece_is_under_way_transfers() -> None:
    watch = Watch()
    calls = MemberCalls(watch)
    caller = Caller(lambda: None)
    with watch.watching(caller):
        calls.claim("w0", caller)
        assert calls.transferring == set()
        with caller.within(60.0):
            assert calls.transferring == {"w0"}
        assert calls.transferring == set()
    caller.deadline = 1.0
    assert calls.transferring == set(), "the call is over"


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
