"""Every reader of decision logs takes every kind of entry: it uses it, passes over it or refuses it in a sentence."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import pslab.runs
from pslab.check.checker import check_log
from pslab.observe.trace import Tracer
from pslab.replay.records import read_records
from pslab.runs.folder import Run, RunError
from pslab.runs.work import WorkFold
from psserver.decisions.entries import KINDS
from psserver.decisions.records import MISSING, declared
from pswire.exits import ExitCode
from tests.dashboard.test_recording import recorded
from tests.replay.command import ps_lab
from tests.replay.simulated import Record, edit_log, simulate

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "check": ("check", "RUN"),
    "check in JSON": ("check", "RUN", "--json"),
    "checkpoints": ("checkpoints", "RUN"),
    "compare": ("compare", "RUN", "--training-loss", "0.5"),
    "export": ("export", "RUN", "--to", "OUT.npz"),
    "export of a version": ("export", "RUN", "--to", "OUT.npz", "--version", "2"),
    "export of tables": ("export", "RUN", "--tables", "OUT"),
    "predict": ("predict", "RUN", "--pace", "RUN", "--repeat", "2"),
    "replay": ("replay", "RUN"),
    "charts of compare": (
        "compare",
        "RUN",
        "--chart",
        "training_loss=OUT.png",
        "--chart",
        "timeline=OUT.svg",
    ),
    "tensorboard": ("export", "RUN", "--tensorboard", "OUT"),
    "trace": ("export", "RUN", "--trace", "OUT.json"),
}

READERS: Mapping[str, Callable[[Run], object]] = {
    "check": lambda run: check_log(run.decisions()),
    "dashboard": lambda run: recorded(run, run.metrics()),
    "frames": lambda run: pslab.runs.load(run.path),
    "replay": read_records,
    "settings": lambda run: (run.summary, run.settings()),
    "trace": lambda run: list(Tracer().events(run.decisions())),
    "work": lambda run: [work for line in run.decisions() for work in WorkFold().work(line.fact, line.t)],
}


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose policy changed twice, and whose worker crashed and came back."""
    return simulate(
        tmp_path_factory.mktemp("changed") / "run",
        "bounded",
        {
            "max_staleness": 4,
            "then": [{"after": "5 versions", "name": "async"}, {"after": "10 versions", "name": "sync"}],
        },
        run={"versions": 20, "checkpoint_every": "4 versions"},
        faults={"crashes": [{"worker": 1, "at": 2.0, "restart": 1.0}]},
    )


@pytest.fixture
def copy(changed: Run, tmp_path: Path) -> Run:
    return Run(shutil.copytree(changed.path, tmp_path / "run"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reads_a_run_whose_policy_changed(copy: Run, tmp_path: Path, name: str) -> None:
    assert call(name, copy, tmp_path).code == ExitCode.OK


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reads_or_refuses_a_log_with_every_kind(copy: Run, tmp_path: Path, name: str) -> None:
    edit_log(copy, lambda records: insert(records, *KINDS))
    assert call(name, copy, tmp_path).code in {ExitCode.OK, ExitCode.USAGE, ExitCode.VIOLATIONS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_takes_each_kind(copy: Run, kind: str) -> None:
    edit_log(copy, lambda records: insert(records, kind))
    for read in READERS.values():
        try:
            read(copy)
        except RunError as refusal:
            assert str(copy.log) in str(refusal)


def test_the_trace_shows_a_change_of_policy(changed: Run) -> None:
    marks = [event["name"] for event in Tracer().events(changed.decisions()) if event["ph"] == "i"]
    changes = [mark.split()[1] for mark in marks if mark.startswith("policy")]
    assert changes == ["async", "sync"]


def call(name: str, run: Run, folder: Path) -> Any:
    """Call ps-lab; nothing that it says is a fault of the program."""
    words = [
        word.replace("RUN", str(run.path)).replace("OUT", str(folder / "out")) for word in COMMANDS[name]
    ]
    said = ps_lab(*words)
    assert "Traceback" not in said.err and said.code != ExitCode.INTERNAL, said.err
    return said


def insert(records: list[Record], *kinds: str) -> None:
    """Put an entry of each kind in the middle, and another one behind the end; all fields present, then the least."""
    middle = len(records) // 2
    records[middle:middle] = [entry(kind, least=False) for kind in kinds]
    records += [entry(kind, least=True) for kind in kinds]
    t = 0.0
    for index, record in enumerate(records):
        t = record.get("t", t)
        record["i"], record["t"] = index, t


def entry(kind: str, *, least: bool) -> Record:
    return {"kind": kind} | dict(values(KINDS[kind], least=least))


def values(kind: Any, *, least: bool) -> Iterator[tuple[str, Any]]:
    """Plausible values for the fields of a record by their types; `least`: for required ones only."""
    given = {"worker": "w0", "policy": {"name": "async"}, "former": {"name": "sync"}, "format": 2}
    plain = {"whole number": 1, "number": 0.5, "text": "text", "true or false": True, "list of texts": []}
    for each in declared(kind):
        if least and each.default is not MISSING and not each.always:
            continue
        if each.inner is not None:
            yield each.name, [dict(values(each.inner, least=least))]
        else:
            yield each.name, given.get(each.name, plain.get(each.noun, {"name": "sgd"}))
