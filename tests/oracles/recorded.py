"""What commands say of one recorded run, whose folder lies beside this file: the numbers, not the prose.

The run is small, and made so that it can be computed again to the bit on any processor: losses are sums of fewer than
32 products. It has a crash, a restart, and contributions that were too stale. `record` makes it anew.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from tests.oracles.frozen import Value, digest
from tests.replay.command import ps_lab

RUN = Path(__file__).with_name("run")
# Floats are compared to so many digits: metrics are sums whose order numpy may choose.
DIGITS = 9
EXPERIMENT = {
    "run": {"name": "oracle", "seed": 3},
    "cluster": {"servers": 2, "workers": 3, "worker_timeout": 2.0},
    "policy": {"name": "bounded", "aggregate": 2, "max_staleness": 1},
    "optimizer": {"name": "adam", "learning_rate": 0.05},
    "faults": {"crashes": [{"worker": 1, "at": 6.0, "restart": 3.0}]},
    "simulation": {
        "problem": "quadratic",
        "compute": "exponential(1)",
        "options": {
            **{"dimensions": 24, "condition": 1.0, "noise": 0.5, "batches_per_epoch": 20},
            "centres": [0.0, 1.0],
        },
    },
}

Record = dict[str, Any]


def record() -> None:
    """Make the run anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        run_simulated(Experiment.parse(EXPERIMENT, "oracle"), out=folder, quiet=True)
        shutil.rmtree(RUN, ignore_errors=True)
        RUN.mkdir()
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy(path, RUN)


def made_again() -> dict[str, Value]:
    """The files of the same run, made now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        run_simulated(Experiment.parse(EXPERIMENT, "oracle"), out=folder, quiet=True)
        return {path.name: digest(path.read_bytes()) for path in sorted(folder.iterdir()) if path.is_file()}


def replays() -> dict[str, Value]:
    """The whole run, and the weights at some versions."""
    found = {"whole": _json("replay", RUN, "--json")}
    with tempfile.TemporaryDirectory() as name:
        for version in (1, 9, 20):
            path = Path(name) / f"{version}.safetensors"
            assert ps_lab("export", RUN, "--to", path, "--version", version).code == 0
            found[f"version {version}"] = digest(path.read_bytes())
    return found


def checks() -> dict[str, Value]:
    """The verdict on the run, and on copies of it in which something is wrong."""
    found = {"as it is": _json("check", RUN, "--json")}
    for name, edit in PLANTED.items():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(RUN, folder, dirs_exist_ok=True)
            path = Path(folder) / "decisions.jsonl"
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            edit(records)
            path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
            said = _json("check", folder, "--json")
            found[name] = [f"{each['check']}, line {each['line']}" for each in said["violations"]]
    return found


def reports() -> dict[str, Value]:
    """The numbers of `ps-lab compare`, `predict` and `export --trace`."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.json"
        assert ps_lab("export", RUN, "--trace", path).code == 0
        events = json.loads(path.read_text(encoding="utf-8"))
    return {
        "compare": _json("compare", RUN, "--json"),
        "predict": _json("predict", RUN, "--json"),
        "trace": digest(json.dumps(_numbers_of(events)).encode()),
    }


def _nth(records: list[Record], kind: str, number: int) -> Record:
    return [each for each in records if each["kind"] == kind][number]


def _changed(kind: str, number: int, /, **fields: object) -> Callable[[list[Record]], None]:
    return lambda records: _nth(records, kind, number).update(fields)


def _without(kind: str, number: int) -> Callable[[list[Record]], None]:
    return lambda records: records.remove(_nth(records, kind, number))


def _twice(kind: str, number: int) -> Callable[[list[Record]], None]:
    def edit(records: list[Record]) -> None:
        one = _nth(records, kind, number)
        records.insert(records.index(one), dict(one))

    return edit


def _part(number: int, **fields: object) -> Callable[[list[Record]], None]:
    return lambda records: _nth(records, "apply", number)["parts"][0].update(fields)


PLANTED: Mapping[str, Callable[[list[Record]], None]] = {
    "a commit is missing": _without("commit", 4),
    "a commit twice": _twice("commit", 4),
    "a grant of another version": _changed("grant", 6, version=9),
    "a grant twice": _twice("grant", 6),
    "an update is missing": _without("apply", 5),
    "another version": _changed("apply", 5, version=77),
    "another staleness": _part(5, staleness=1, base=0),
    "another weight": _part(5, weight=0.75),
    "a drop that is none": _changed("drop", 0, staleness=0),
    "a member twice": _twice("join", 1),
    "a member that is not lost": _without("lost", 0),
    "an earlier time": _changed("commit", 8, t=0.0),
    "no stop": _without("stop", 0),
    "a stop of another version": _changed("stop", 0, version=3),
    "an unknown kind": _changed("apply", 7, kind="teleport"),
    "a text for a number": _changed("commit", 2, samples="1"),
}


def _json(*arguments: object) -> Value:
    """A command's JSON objects, without sentences and without where the folder lies; or the only one."""
    said = ps_lab(*arguments)
    assert not said.err, said.err
    found = [_plain(json.loads(line)) for line in said.out.splitlines()]
    return found[0] if len(found) == 1 else found


def _plain(value: Value) -> Value:
    if isinstance(value, dict):
        prose = ("message", "notes", "run", "runs", "folder", "written")
        return {key: _plain(each) for key, each in value.items() if key not in prose}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _numbers_of(value: Value) -> list[float]:
    """All numbers of a JSON value, in their order."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in _numbers_of(part)]
    return [value] if isinstance(value, int | float) else []
