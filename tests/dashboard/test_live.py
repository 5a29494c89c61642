"""The page over real servers and workers."""

import time
from pathlib import Path
from typing import Any

import pytest

from pslab.display.status import waiting_sentences
from tests.cluster.cluster import PATIENCE, Cluster
from tests.dashboard.page import Page, Viewer
from tests.patience import within

pytestmark = pytest.mark.cluster


def next_status(viewer: Viewer, fits: Any, patience: float = PATIENCE) -> dict[str, Any]:
    deadline = time.monotonic() + patience
    for kind, message in viewer.messages():
        assert time.monotonic() < deadline, (
            f"not within {patience} s; the last was {kind}: {str(message)[:500]}"
        )
        if kind in ("whole", "frame") and fits(message["status"]):
            status: dict[str, Any] = message["status"]
            return status
    raise AssertionError("the stream has ended")


def test_live_within_seconds_and_in_the_words_of_status(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(1, "--workers", "2")
    cluster.start_worker("--task-index", "0", "--seconds", "0.01")
    cluster.start_worker("--task-index", "1", "--seconds", "4")
    cluster.wait_for(lambda s: any(w.state == "waiting" for w in s.workers), "w0 waits for w1")
    with Page(tmp_path, cluster.addresses[0]) as page, page.viewer() as viewer:
        # After one question, and within seconds; what they are made of: tests/dashboard/test_observer.py.
        with within(6.0):
            next_status(viewer, lambda s: bool(s["workers"]))
        for _ in range(20):
            status = next_status(
                viewer, lambda s: any(w["waiting_for"] for w in s["workers"]) and s["version"] > 0
            )
            told = cluster.status()
            if told.version == status["version"] and waiting_sentences(told):
                break
        [found] = [w for w in status["workers"] if w["state"] == "waiting"]
        shown = f"{found['name']} has waited {found['seconds']:.1f} s for {found['waiting_for']}"
        assert [without_numbers(shown)] == [without_numbers(each) for each in waiting_sentences(told)]
        assert found["releasers"] == ["w1"]


def without_numbers(sentence: str) -> str:
    """Seconds pass between two looks."""
    return " ".join(word for word in sentence.split() if not word.strip("();").replace(".", "").isdigit())


def test_the_log_comes_whole_to_late_viewers(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_servers(1, "--workers", "1")
    cluster.start_worker("--seconds", "0.005")
    cluster.wait_version(100)
    with Page(tmp_path, cluster.addresses[0]) as page, page.viewer() as viewer:
        versions: list[int] = []
        for kind, message in viewer.messages():
            batches = message["recent"] if kind == "whole" else [message]
            versions += [row[0] for batch in batches for row in batch.get("updates", ())]
            if kind == "gone" or len(versions) >= 200:
                break
        assert versions[:100] == list(range(1, 101)) and versions == list(range(1, len(versions) + 1))


def test_after_the_viewers_have_closed_nothing_is_asked(cluster: Cluster, tmp_path: Path) -> None:
    """Of 20 pages nothing remains: no question, no thread, no connection of a viewer."""
    cluster.start_servers(1, "--workers", "1")
    cluster.start_worker("--seconds", "0.02")
    cluster.wait_version(3)
    with Page(tmp_path, cluster.addresses[0]) as page:
        viewers = [page.viewer() for _ in range(20)]
        for viewer in viewers:
            next_status(viewer, lambda s: s["version"] > 0)
        for viewer in viewers:
            viewer.close()
        descriptors = Path(f"/proc/{page.process.pid}/fd")
        deadline = time.monotonic() + PATIENCE
        before = len(list(descriptors.iterdir()))
        while len(list(descriptors.iterdir())) > 20 and time.monotonic() < deadline:
            page.json("/api/about")
        assert len(list(descriptors.iterdir())) < before or before <= 20
        with page.viewer() as viewer:
            next_status(viewer, lambda s: s["version"] > 0)
