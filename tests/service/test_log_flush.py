"""--log-flush: what is in the file when a worker is told, with how many writes, and what a full disk tells it."""

import asyncio
import json
import os
import selectors
from pathlib import Path
from typing import Any

import pytest

from psserver.service.job import log_file
from psserver.service.job.log_file import LogError
from psserver.service.job.run_log import Flushing
from psserver.service.runtime import RunningLoop, Runtime
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.serving import serving
from tests.service.test_bad_exchanges import ask, step


class Disk:
    """What would be a run's files."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.error: LogError | None = None

    def flush(self) -> None:
        if self.error is not None:
            raise self.error
        self.did.append("flush")

    def sync(self) -> None:
        self.did.append("sync")


@pytest.mark.parametrize(("synced", "did"), [(False, ["flush"]), (True, ["sync", "flush"])])
def test_one_flush_for_all_that_one_turn_has_decided(
    synced: bool, did: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And answers leave in the next turn, for which the loop does not wait."""
    disk, told, waits, loop = Disk(), [], [], RunningLoop()
    files: Any = disk
    select = selectors.DefaultSelector.select
    monkeypatch.setattr(
        selectors.DefaultSelector,
        "select",
        lambda self, timeout: waits.append(timeout) or select(self, timeout),
    )

    async def main() -> None:
        runtime = Runtime()
        runtime.begin()
        log = Flushing(files, synced, runtime, told.append)

        async def commit(number: int) -> None:
            before = len(waits)
            log.taken()
            assert await log.written()
            assert disk.did == did, "told before it was written"
            assert waits[before:] == [0.0]
            told.append(number)

        await asyncio.gather(*map(commit, range(20)))

    loop.run_until_complete(main())
    loop.close()
    assert told == list(range(20)) and disk.did == did


@promise("What a worker is told stands in the log.")
@pytest.mark.parametrize("way", ["session", "exchange"])
def test_what_a_worker_is_told_is_in_the_file(tmp_path: Path, way: str) -> None:
    """Read by another process, the moment the answer comes."""
    out = tmp_path / "run"
    with serving(out=out) as cluster:
        peer = Peer(cluster, "a")
        for _ in range(5):
            ticket = peer.ready().ticket
            if way == "session":
                version = peer.step().version
            else:
                [reply] = ask(peer, step(peer))
                version = reply.events[0].disposition.version
                peer.grant = None
            lines = [json.loads(line) for line in (out / "decisions.jsonl").read_text().splitlines()]
            assert [line["kind"] for line in lines if line.get("ticket") == ticket][-1] == "commit"
            applied = [line for line in lines if line["kind"] == "apply"]
            assert applied[-1]["version"] >= version and lines[-1]["i"] == len(lines) - 1


def test_disk_means_fsync_before_a_worker_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(log_file.os, "fsync", lambda file: (synced.append(file), fsync(file)))
    with serving(out=tmp_path / "run", log_flush="disk") as cluster:
        peer = Peer(cluster, "a")
        peer.step()
        before = len(synced)
        peer.step()
        assert len(synced) > before
