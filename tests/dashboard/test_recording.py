"""What the page draws is what the log says."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from pslab.dashboard import history
from pslab.dashboard.history import History
from pslab.dashboard.recording import JOIN, KINDS, LISTS, STOP, Batch, Recorder
from pslab.dashboard.runs import RunPage
from pslab.runs.folder import Run, RunError
from pslab.runs.summary import Metric
from psserver.decisions.entries import KINDS as ENTRIES
from psserver.decisions.entries import Join, Leave
from tests.comparing import same
from tests.lab.waits import spent
from tests.replay.simulated import simulate

FAULTS = {"crashes": [{"worker": 1, "at": 2.0, "restart": 3.0}], "leaves": [{"worker": 2, "at": 6.0}]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return simulate(
        tmp_path_factory.mktemp("runs") / "run",
        "bounded",
        {"aggregate": 2, "max_staleness": 2, "on_stale": "drop"},
        run={"versions": 60},
        cluster={"workers": 4, "worker_timeout": 2.0},
        links={"latency": 0.05},
        simulation={"problem": "quadratic", "compute": "exponential(0.5)", "evaluate": 10},
        faults=FAULTS,
    )


def recorded(run: Run, metrics: Iterable[Metric] = ()) -> Batch:
    """The whole log as one batch."""
    recorder = Recorder()
    for entry in run.decisions():
        recorder.see(entry)
    for metric in metrics:
        recorder.measured(metric)
    return recorder.take()


def test_stretches_are_those_of_the_timeline(run: Run) -> None:
    batch, begun = recorded(run), run.first_grant()
    found: dict[tuple[str, int], float] = defaultdict(float)
    for worker, kind, begin, end, _ in batch["stretches"]:
        found[batch["workers"][worker], kind] += end - max(begin, begun) if end > begun else 0.0
    expected: dict[tuple[str, int], float] = defaultdict(float)
    for (worker, kind), seconds in spent(run).items():
        if seconds:
            expected[worker, KINDS[kind]] += seconds
    assert {key: seconds for key, seconds in found.items() if seconds} == pytest.approx(expected, abs=1e-3)


def test_fates_are_those_of_the_summary(run: Run) -> None:
    batch = recorded(run)
    owner = {row[0]: batch["workers"][row[1]] for row in batch["tickets"]}
    applied = Counter(owner[row[0]] for row in batch["fates"] if row[1])
    dropped = Counter(owner[row[0]] for row in batch["fates"] if not row[1])
    for worker, counts in run.summary.contributions.items():
        assert (applied[worker], dropped[worker]) == (counts.applied, counts.dropped)
    ages = Counter(row[4] for row in batch["fates"] if row[1])
    assert ages == run.summary.histogram and sum(dropped.values()) > 0
    assert batch["updates"][-1][0] == run.summary.versions
    samples = {row[0]: row[3] for row in batch["tickets"]}
    assert batch["updates"][-1][7] == sum(samples[row[0]] for row in batch["fates"] if row[1])


def test_batches_put_together_are_the_whole(run: Run) -> None:
    recorder, joined = Recorder(), defaultdict(list)
    for count, entry in enumerate(run.decisions()):
        recorder.see(entry)
        if count % 7 == 0:
            for name, values in recorder.take().items():
                joined[name] += values if isinstance(values, list) else []
    for name, values in recorder.take().items():
        joined[name] += values if isinstance(values, list) else []
    whole = recorded(run)
    for name in LISTS:
        assert same(joined[name], whole.get(name, [])), name


def test_the_end_is_the_stop(run: Run) -> None:
    """Workers leave after it, and those that crashed much later."""
    batch = recorded(run)
    [stop] = [row for row in batch["marks"] if row[1] == STOP]
    assert batch["seconds"] == stop[2] == max(row[2] for row in batch["marks"])


def test_every_kind_of_entry_has_words(run: Run) -> None:
    seen = set()
    for entry in run.decisions():
        assert entry.fact.sentence(), entry.kind
        seen.add(entry.kind)
    assert seen >= {"job", "join", "grant", "commit", "apply", "drop", "lost", "leave", "stop"}
    assert all("sentence" in vars(kind) for kind in ENTRIES.values())
    assert Join("w1", 2, 1).sentence() == "joins as incarnation 2"
    assert Leave("w1", "tired").sentence() == "leaves: tired"


def test_what_is_in_detail_and_the_past_before_it_are_the_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts, presence and shares where the details begin are those of all that was before."""
    monkeypatch.setattr(history, "ROWS", 300)
    found, whole = History(), recorded(run)
    for entry in run.decisions():
        found.recorder.see(entry)
        found.keep()
    page = found.to_json()
    past, recent = page["past"], page["recent"]
    rows = {name: sum((batch.get(name, []) for batch in recent), []) for name in LISTS}
    assert 200 < sum(map(len, rows.values())) <= 300
    owner = {row[0]: row[1] for row in whole["tickets"]}
    settled = whole["fates"][: len(whole["fates"]) - len(rows["fates"])]
    assert same(rows["fates"], whole["fates"][len(settled) :])
    applied = Counter((owner[row[0]], row[4]) for row in settled if row[1])
    assert {(w, age): n for w, age, n in past["applied"]} == applied
    assert sum(n for _, n in past["dropped"]) == sum(1 for row in settled if not row[1])
    known = {row[0] for row in past["tickets"]} | {row[0] for row in rows["tickets"]}
    assert {row[0] for row in rows["fates"]} <= known, "the owner of each contribution is known"
    assert same(past["updates"] + rows["updates"], whole["updates"])
    assert {row[0] for row in past["marks"] if row[1] == JOIN} == set(range(4))
    spent = sum(row[3] - row[2] for row in whole["stretches"])
    assert sum(n for _, n in past["kinds"]) + sum(
        row[3] - row[2] for row in rows["stretches"]
    ) == pytest.approx(spent)


def test_a_log_that_still_grows(run: Run, tmp_path: Path) -> None:
    lines = run.log.read_text().splitlines(keepends=True)
    folder = tmp_path / "going"
    folder.mkdir()
    log = folder / "decisions.jsonl"
    log.write_text("".join(lines[:50]) + lines[50][:20])
    page = RunPage(folder)
    first = json.loads(page.text())
    assert first["going"] and first["entries"] == 50
    log.write_text("".join(lines[:80]))
    assert json.loads(page.text(50))["entries"] == 80 and page.text(80) == '{"same":true}'
    whole = json.loads(RunPage(folder).text())
    steps = sum((batch.get("log", []) for batch in json.loads(page.text())["recent"]), [])
    assert same(steps, whole["recent"][0]["log"]), "read in two steps as in one"
    (folder / "summary.json").write_text("{}")
    assert json.loads(page.text(80))["going"] is False
    log.write_text("".join(lines[:30]))
    assert json.loads(page.text())["entries"] == 30, "another log in its place"


def test_a_log_that_a_recovery_cut_and_that_has_grown_since(run: Run, tmp_path: Path) -> None:
    """In the same file, beyond what it was; a last line that cannot be read is left for later."""
    lines = run.log.read_text().splitlines(keepends=True)
    log = tmp_path / "decisions.jsonl"
    log.write_text("".join(lines[:80]))
    page = RunPage(tmp_path)
    begun = [
        *lines[:40],
        '{"i":40,"t":9.0,"kind":"restore","job":"a.2","version":3,"servers":2,"rolled_back":40}\n',
    ]
    going_on = [
        json.dumps(json.loads(line) | {"i": n}) + "\n" for n, line in enumerate(lines[40:120], start=41)
    ]
    log.write_text("".join([*begun, *going_on, "\0\0\0\n"]))
    assert log.stat().st_size > len("".join(lines[:80]))
    found = json.loads(page.text())
    assert found["entries"] == 121 and found == json.loads(RunPage(tmp_path).text())
    assert [row[2] for row in found["recent"][0]["log"]].count("restore") == 1


def test_a_run_without_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RunError, match="without a record"):
        RunPage(tmp_path)
