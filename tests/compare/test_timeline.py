"""Who did what when: stretches of a hand-made log, of simulated runs, and as a picture."""

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pandas", reason="no pandas here (scripts/install examples)")

from pslab.compare.charts import plotter as charts
from pslab.compare.charts.timeline import ROWS, Timeline, timeline, timeline_chart
from pslab.compare.groups import RunGroup, grouped
from pslab.runs.folder import Run
from pslab.runs.work import COMPUTING, KINDS, RECEIVING, SENDING, UNREPORTED, WAITING, WASTED
from tests.lab.logs import Record, write_run
from tests.lab.waits import spent
from tests.replay.simulated import simulate

# Worker w0 holds tickets 2, 3 and 4, the last of them ahead; w1's are cancelled, given up and committed untold.
ENTRIES = [
    (0.0, "job", {"job": "j", "policy": {"name": "async"}}),
    (0.5, "join", {"worker": "w0", "incarnation": 0, "rank": 0}),
    (0.5, "join", {"worker": "w1", "incarnation": 0, "rank": 1}),
    (1.0, "grant", {"worker": "w0", "ticket": 2, "version": 0}),
    (2.0, "grant", {"worker": "w1", "ticket": 5, "version": 0}),
    # 6 s: pulled for 1, computed for 3, and 2 on the way.
    (7.0, "commit", {"worker": "w0", "ticket": 2, "pull": 1.0, "compute": 3.0}),
    (7.0, "apply", {"version": 1, "parts": [(2, "w0", 0)]}),
    (8.0, "cancel", {"worker": "w1", "ticket": 5, "reason": "overtaken"}),
    # After 2 s of steps without a ticket it waited for 1.
    (10.0, "grant", {"worker": "w0", "ticket": 3, "version": 1}),
    (10.0, "grant", {"worker": "w1", "ticket": 6, "version": 1}),
    (11.0, "grant", {"worker": "w0", "ticket": 4, "version": 1, "ahead": True}),
    (12.0, "commit", {"worker": "w0", "ticket": 3, "pull": 0.0, "compute": 1.5, "before": 2.0}),
    (12.0, "drop", {"worker": "w0", "ticket": 3, "staleness": 0, "reason": "stale"}),
    (12.5, "abandon", {"worker": "w1", "ticket": 6, "reason": "nonfinite"}),
    # Ahead: from the commit before, not from its own grant.
    (15.0, "commit", {"worker": "w0", "ticket": 4, "pull": 0.5, "compute": 2.0}),
    (15.0, "apply", {"version": 2, "parts": [(4, "w0", 1)]}),
    (14.0 + 2, "grant", {"worker": "w1", "ticket": 7, "version": 2}),
    (20.0, "commit", {"worker": "w1", "ticket": 7}),
    (20.0, "apply", {"version": 3, "parts": [(7, "w1", 2)]}),
    (21.0, "done", {"worker": "w0"}),
    (21.0, "done", {"worker": "w1"}),
    (21.0, "stop", {"reason": "all workers are done", "version": 3, "success": True}),
]  # fmt: skip
FACTS: dict[str, Record] = {
    "job": {"servers": 1, "workers": 2, "seed": 0, "format": 2},
    "commit": {"batch": 0, "samples": 8, "loss": 0.5, "norm": 1.0},
    "apply": {"scale": 1.0, "lr_scale": 1.0},
}


def three_commits(folder: Path, change: Callable[[Record], None] = lambda commit: None) -> Run:
    """`change` is called with every commit."""
    records: list[Record] = []
    for index, (t, kind, fields) in enumerate(ENTRIES):
        record: dict[str, Any] = {"i": index, "t": t, "kind": kind, **FACTS.get(kind, {}), **fields}
        for number, (ticket, worker, base) in enumerate(record.get("parts", ())):
            staleness = record["version"] - 1 - base
            record["parts"] = list(record["parts"])
            record["parts"][number] = {
                "ticket": ticket,
                "worker": worker,
                "base": base,
                "staleness": staleness,
            }
            record["parts"][number] |= {"weight": 1.0, "factor": 1.0}
        if kind == "commit":
            change(record)
        records.append(record)
    run = Run(write_run(folder, records))
    lines = [json.dumps(record, separators=(",", ":")) for record in records]
    run.log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return run


def stretches(found: Timeline, worker: str) -> list[tuple[str, float, float]]:
    mine = found.waits[found.waits.worker == worker]
    return list(mine[["kind", "begin", "end"]].itertuples(index=False, name=None))


def by_kind(run: Run) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, kind), seconds in spent(run).items():
        found[kind] += seconds
    return found


def group(run: Run) -> list[RunGroup]:
    return grouped([run])


def test_the_stretches_of_a_hand_made_log(tmp_path: Path) -> None:
    found = timeline(three_commits(tmp_path / "run"))
    assert (found.workers, found.seconds) == (["w0", "w1"], 19.0)
    assert stretches(found, "w0") == [
        (RECEIVING, 0.0, 1.0),
        (COMPUTING, 1.0, 4.0),
        (SENDING, 4.0, 6.0),
        (COMPUTING, 6.0, 8.0),
        (WAITING, 8.0, 9.0),
        (COMPUTING, 9.0, 10.5),
        (SENDING, 10.5, 11.0),
        (RECEIVING, 11.0, 11.5),
        (COMPUTING, 11.5, 13.5),
        (SENDING, 13.5, 14.0),
    ]
    assert stretches(found, "w1") == [
        (WAITING, 0.0, 1.0),
        (WASTED, 1.0, 7.0),
        # Nobody knows whether it stopped at once.
        (WASTED, 7.0, 9.0),
        (WASTED, 9.0, 11.5),
        # It gave up by itself.
        (WAITING, 11.5, 15.0),
        (UNREPORTED, 15.0, 19.0),
    ]
    committed = found.contributions.dropna(subset="committed")
    assert list(committed[["worker", "committed", "fate"]].itertuples(index=False, name=None)) == [
        ("w0", 6.0, "applied"), ("w0", 11.0, "dropped"), ("w0", 14.0, "applied"), ("w1", 19.0, "applied")
    ]  # fmt: skip


def test_clocks_that_differ_do_not_reach_beyond_the_commit(tmp_path: Path) -> None:
    """What does not fit is cut off, so that nothing overlaps; `ps-lab check` says whether it is too much."""

    def exaggerate(commit: Record) -> None:
        if "pull" in commit:
            commit |= {"compute": 50.0, "before": 60.0}

    found = timeline(three_commits(tmp_path / "run", exaggerate))
    for worker, end in (("w0", 14.0), ("w1", 19.0)):
        mine = stretches(found, worker)
        assert all(one[2] <= other[1] for one, other in pairwise(mine)) and mine[-1][2] == end


LINKS = {"latency": 0.125, "bandwidth": 4e6}
TIMED = {"problem": "none", "payload_bytes": 1_000_000, "batches": 20}


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [("sync", {"backup": 1}), ("async", {}), ("bounded", {"aggregate": 2}), ("ssp", {}), ("easgd", {})],
)
def test_a_simulated_worker_is_busy_with_one_thing_at_a_time(
    tmp_path: Path, policy: str, knobs: dict[str, Any]
) -> None:
    """And with something at every moment, up to its last ticket."""
    run = simulate(tmp_path / "run", policy, knobs, simulation=TIMED, links=LINKS)
    found, seconds = timeline(run), spent(run)
    assert len(found.workers) == 4
    for worker in found.workers:
        mine = stretches(found, worker)
        assert mine[0][1] == 0
        # Times are written in whole microseconds.
        assert all(abs(a[2] - b[1]) < 5e-6 for a, b in pairwise(mine))
        assert sum(seconds[worker, kind] for kind in KINDS) == pytest.approx(mine[-1][2], abs=1e-3)
        assert {COMPUTING, RECEIVING, SENDING} <= {kind for kind, _, _ in mine}


def drawn(figure: Any) -> Iterator[str]:
    """The words of a figure."""
    for text in ET.fromstring(charts.svg(figure)).iter("{http://www.w3.org/2000/svg}text"):
        yield "".join(text.itertext())


def test_the_chart_has_a_row_for_each_worker_and_a_mark_for_each_fate(tmp_path: Path) -> None:
    figure = timeline_chart(group(three_commits(tmp_path / "run")))
    words = list(drawn(figure))
    kinds = {COMPUTING, RECEIVING, SENDING, WAITING, WASTED, UNREPORTED, "applied", "dropped"}
    assert kinds | {"w0", "w1"} <= set(words)
    (axes,) = figure.axes
    bars = {bar.get_label(): bar for bar in axes.collections if bar.get_label() in kinds}
    # The first row's bars, left to right: computing for 3, 2, 1.5 and 2 s.
    edges = [path.get_extents() for path in bars[COMPUTING].get_paths()]
    assert [(box.x0, box.x1) for box in edges] == [(1, 4), (6, 8), (9, 10.5), (11.5, 13.5)]
    assert bars["dropped"].get_offsets().tolist() == [[11, 0]]
    assert charts.png(figure).startswith(b"\x89PNG")


def test_a_long_run_shows_its_beginning_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log of any length only the beginning is kept in memory."""
    run = simulate(tmp_path / "run", "async", simulation=TIMED | {"batches": 250})
    whole = timeline(run)
    (title,) = [word for word in drawn(timeline_chart(group(run))) if word.startswith("first ")]
    assert title.endswith(f" of {whole.seconds:.0f} s")
    assert float(title.split()[1]) == pytest.approx(whole.until(15), rel=0.01)
    monkeypatch.setattr("pslab.compare.charts.timeline.ENTRIES", 400)
    part = timeline(run)
    assert len(part.waits) < len(whole.waits) / 3 and part.kept < whole.kept
    assert part.seconds == pytest.approx(whole.seconds, rel=0.01) and part.until(15) == whole.until(15)


def test_a_short_run_is_shown_whole(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMED | {"batches": 3, "compute": "constant(1)"})
    assert not [word for word in drawn(timeline_chart(group(run))) if word.startswith("first ")]


def test_of_many_workers_some_are_shown(tmp_path: Path) -> None:
    workers = 3 * ROWS
    run = simulate(tmp_path / "run", "async", cluster={"workers": workers}, simulation=TIMED | {"batches": 2})
    words = list(drawn(timeline_chart(group(run))))
    assert sum(word.startswith("w") and word[1:].isdigit() for word in words) == ROWS
    assert any(word.startswith(f"{ROWS} of {workers} workers") for word in words)


def test_the_slowest_of_many_workers_are_always_shown(tmp_path: Path) -> None:
    workers, slow = 2 * ROWS, [5, 40, 41, 42, 61]
    factors = {str(worker): 4.0 for worker in slow}
    timed = TIMED | {"batches": 3, "compute": "constant(1)", "factors": factors}
    run = simulate(tmp_path / "run", "sync", cluster={"workers": workers}, simulation=timed)
    words = drawn(timeline_chart(group(run)))
    assert {f"w{worker}" for worker in slow} <= set(words)


def without_times(commit: Record) -> None:
    """As of a worker that does not say what it did."""
    for key in ("pull", "compute", "before"):
        commit.pop(key, None)


def test_a_run_without_times_has_a_bar_for_each_ticket(tmp_path: Path) -> None:
    run = three_commits(tmp_path / "run", without_times)
    words = set(drawn(timeline_chart(group(run))))
    assert {"applied", "dropped", UNREPORTED, "w0", "w1"} <= words and COMPUTING not in words


def test_a_run_without_commits_has_an_empty_timeline(tmp_path: Path) -> None:
    run = three_commits(tmp_path / "run")
    lines = run.log.read_text(encoding="utf-8").splitlines(keepends=True)
    (run.path / "summary.json").unlink()
    run.log.write_text("".join(lines[:4]), encoding="utf-8")
    assert timeline(Run(run.path)).until(15) == 0
    assert not list(timeline_chart(group(Run(run.path))).axes[0].collections)
