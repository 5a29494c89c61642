"""What it costs to be watched: steps/s of one cluster with nobody looking, with a scrape a second, with 20 pages open.

    python -m benchmarks.programs.observing [--seconds 5] [--rounds 6] [--viewers 20]

One server and two numpy workers (async) train all the time; the three states take turns, so that a change of
the machine meets all of them. Prints steps/s of each, the loss against the turn before it with nobody looking,
and its spread.
"""

import argparse
import http.client
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.dashboard.page import Page, Viewer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--step", type=float, default=0.002, help="seconds that a worker's step takes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        cluster.start_servers(1, "--workers", "2", "--policy", "async", "--metrics-port", "0")
        for index in ("0", "1"):
            cluster.start_worker("--task-index", index, "--seconds", str(asked.step), "--elements", "20000")
        cluster.wait_version(100)
        metrics = str(cluster.servers[0].wait_event("ready")["metrics"])
        with Page(Path(folder), cluster.addresses[0]) as page:
            states = {
                "a scrape a second": lambda: scraped(metrics),
                f"{asked.viewers} pages": lambda: watched(page, asked.viewers),
            }
            _compare(cluster, states, asked.rounds, asked.seconds)


def _compare(cluster: Cluster, states: dict[str, Callable[[], object]], rounds: int, seconds: float) -> None:
    quiet: list[float] = []
    losses: dict[str, list[float]] = {name: [] for name in states}
    for _ in range(rounds):
        for name, enter in states.items():
            before = _rate(cluster, seconds)
            quiet.append(before)
            with enter():  # type: ignore[attr-defined]
                during = _rate(cluster, seconds)
            losses[name].append(100 * (1 - during / before))
    print(f"nobody looks: {statistics.median(quiet):.0f} steps/s ({min(quiet):.0f} to {max(quiet):.0f})")
    for name, found in losses.items():
        spread = f"{min(found):.1f} to {max(found):.1f}"
        print(f"{name}: {statistics.median(found):.1f} % fewer (median of {len(found)} turns; {spread})")


def _rate(cluster: Cluster, seconds: float) -> float:
    first, begun = cluster.status(), time.monotonic()
    threading.Event().wait(seconds)
    last = cluster.status()
    return (last.committed - first.committed) / (time.monotonic() - begun)


@contextmanager
def scraped(address: str) -> Iterator[None]:
    """GET /metrics once a second."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0):
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            connection.close()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def watched(page: Page, count: int) -> Iterator[None]:
    """So many event streams that are read."""
    with ExitStack() as stack:
        viewers = [page.viewer() for _ in range(count)]
        readers = [threading.Thread(target=_read, args=(viewer,), daemon=True) for viewer in viewers]
        for reader in readers:
            reader.start()
        stack.callback(lambda: [viewer.cut() for viewer in viewers])
        yield


def _read(viewer: Viewer) -> None:
    """To the end of the stream; nothing is made of what comes, as that would be the reader's cost."""
    try:
        while viewer.answer.read1(65536):
            continue
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return


if __name__ == "__main__":
    main()
