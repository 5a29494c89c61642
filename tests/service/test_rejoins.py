"""Servers of a job with replicas are lost and come back while each version is saved: what the log calls saved is whole.

A few times here; `scripts/soak rejoins` 200 times.
"""

import json
import re
from pathlib import Path

import pytest

from psserver.checkpoint import Store
from psserver.service.replicas.saving import GONE
from psworker.link import Link
from tests.links import connect_link
from tests.repetitions import repetitions
from tests.service.replicated import REPLICATED, begun_again, state_of, train
from tests.service.serving import ONES, PATIENCE, Cluster, serving, wait_until

REJOINS = repetitions(3, soak=200, fast=2)
EVERY_VERSION = ("run.checkpoint_every=1 version", "run.keep=100000")


def rejoin(cluster: Cluster, run: Path, session: Link, number: int) -> None:
    """Lose a server, and train until its next process is in sync."""
    lost = cluster.servers[number]
    lost.probe.leave_out()
    train(session, 1)
    lost.ended()
    begun_again(cluster, run, number, *EVERY_VERSION, resume="auto")
    while state_of(cluster, number) != "in sync":
        train(session, 1)
        if cluster.servers[number].code is not None:
            # It was silent for a second on a busy machine.
            begun_again(cluster, run, number, *EVERY_VERSION, resume="auto")


@pytest.mark.timeout(3600)
def test_what_is_called_saved_beside_rejoins_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    caplog.set_level("INFO", "ps-server")
    run = tmp_path / "run"
    with serving(3, out=run, shared=True, overrides=(*REPLICATED, *EVERY_VERSION)) as cluster:
        with connect_link(cluster.hosts, ONES, name="w") as session:
            train(session, 4)
            for _ in range(REJOINS):
                rejoin(cluster, run, session, 1)
            train(session, 4)

            def newest_saved() -> int | None:
                # The last commit may still be on its way, and a version before its own is passed over.
                newest = cluster.status().version
                return newest if f"version {newest} is saved" in caplog.text else None

            last = wait_until(newest_saved, "the newest version to be saved", PATIENCE)
        for served in cluster.servers:
            served.interrupt()
        for served in cluster.servers:
            served.ended()
    saved = set(map(int, re.findall(r"version (\d+) is saved:", caplog.text)))
    failed = re.findall(r"version \d+ is NOT saved: (.*)", caplog.text)
    assert last in saved and set(failed) <= {GONE}, failed
    entries = [json.loads(line) for line in (run / "decisions.jsonl").read_text().splitlines()]
    assert [entry["reason"] for entry in entries if entry["kind"] == "unsaved"] == failed
    store = Store(run / "checkpoints")
    whole = {store.verify(name).version for name in store.names() if complete(store, name)}
    print(f"{REJOINS} rejoins: {len(saved)} versions saved, {len(failed)} not, of {last}")
    assert saved <= whole


def complete(store: Store, name: str) -> bool:
    return (store.root / name / "manifest.json").is_file()
