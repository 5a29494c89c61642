"""A signal ends a simulation between two actions: what it leaves behind is whole."""

import signal
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from pslab.simulator.worker import Step, Worker
from psserver.coordinator.ledger import Ledger
from psserver.decisions.entries import Entry
from pswire.exits import ExitCode
from tests.replay.simulated import document


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED, "interrupted"),
        (signal.SIGTERM, ExitCode.TERMINATED, "terminated"),
    ],
)
@pytest.mark.parametrize("place", ["commit", "computed"])
def test_the_log_stands_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, said: str, place: str
) -> None:
    calls = 0

    def sometimes() -> None:
        nonlocal calls
        calls += 1
        if calls == 40:
            signal.raise_signal(number)

    if place == "commit":
        record = Ledger.record

        def within_a_decision(self: Ledger, entry: Entry, now: float) -> int:
            sometimes()
            return record(self, entry, now)

        monkeypatch.setattr(Ledger, "record", within_a_decision)
    else:
        computed = Worker.computed

        def within_a_step(self: Worker, step: Step) -> None:
            sometimes()
            computed(self, step)

        monkeypatch.setattr(Worker, "computed", within_a_step)
    before = signal.getsignal(number)
    finished = run_simulated(Experiment.parse(document("async"), "test"), out=tmp_path / "run", quiet=True)
    assert signal.getsignal(number) is before
    verdict = finished.result.verdict
    assert (verdict.code, verdict.reason) == (code, said)
    run = Run(finished.folder)
    assert not run.summary.success and run.summary.reason == said
    assert check_run(run).ok, check_run(run)
