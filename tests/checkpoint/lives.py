"""A simulated job that lives several times on one disk: each life but the last ends in a crash, at some log entry.

What decides, executes, saves and goes on is the servers' own: coordinator, shards, log, checkpoint store.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pslab.check.checker import check_run
from pslab.experiment import Experiment
from pslab.runs.folder import DECISIONS, EXPERIMENT, METRICS, Run
from pslab.simulator import Folder, build
from pslab.simulator.checkpoints import FOLDER, Saver, resume
from psserver.checkpoint import CheckpointError, Store
from psserver.checkpoint.rewind import LogIndex, Mark
from psserver.coordinator.outputs import Record
from pswire.decisions import entries as e
from tests.checkpoint.fake_disk import FakeDisk, PowerLoss

# Faults after which a disk may have lost what it said that it has.
LYING = ("lost sync",)


@dataclass(frozen=True)
class Life:
    """`crash_after`: entries of this life before its servers die, None: they do not. `power`: the machine loses its
    power, too, so that of what was not synced any part may be there. `fault` happens at step `at` of writing
    checkpoints. `flip`: a bit of a file has changed before this life."""

    servers: int = 1
    crash_after: int | None = None
    power: bool = False
    fault: str = ""
    at: int = 0
    flip: bool = False


@dataclass
class Told:
    """What became of the lives. `refused`: nothing was left to go on from, so the job began anew."""

    lives: int = 0
    crashed: int = 0
    resumed: int = 0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class CrashingFolder(Folder):
    """The servers die behind entry number `crash_after` of this life. `synced`: bytes of its files on the disk."""

    def __init__(self, path: Path, mark: Mark | None, crash_after: int | None) -> None:
        super().__init__(path, going_on=mark)
        self._files, self._left = (path / DECISIONS, path / METRICS), crash_after
        self.synced = [file.stat().st_size for file in self._files]

    def sync(self) -> None:
        super().sync()
        self.synced = [file.stat().st_size for file in self._files]

    def append(self, record: Record) -> None:
        super().append(record)
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise PowerLoss

    def lose(self, dice: random.Random) -> None:
        """The log as the next process finds it: what was synced, and some of the rest, perhaps not to a line's end.
        What a killed process had not given to the system is lost as surely as what a machine had not written."""
        self._log.close()
        for file, synced in zip(self._files, self.synced, strict=True):
            os.truncate(file, dice.randint(synced, file.stat().st_size))


def live(document: dict[str, Any], lives: Sequence[Life], folder: Path, seed: int) -> tuple[Run, Told]:
    """Through all lives; the last one comes to its end. The run, and what happened on the way."""
    dice, told = random.Random(seed), Told()
    disk, trusted, complete = FakeDisk(seed), True, -1
    folder.mkdir()
    for life in lives:
        told.lives += 1
        if life.flip and any(node is not None and node.data for node in disk.live.values()):
            disk.flip()
            trusted, told.faults["flip"] = False, told.faults["flip"] + 1
        experiment = Experiment.parse(
            {**document, "cluster": {**document["cluster"], "servers": life.servers}}
        )
        (folder / EXPERIMENT).write_text(experiment.to_toml())
        cluster = build(experiment, _no_jobs)
        mark: Mark | None = None
        names: set[str] = set()
        if (folder / DECISIONS).is_file():
            try:
                resumed = resume(cluster, folder, "latest", disk)
                mark, names = resumed.mark, resumed.names
                told.resumed += 1
                # What was complete is never lost by a disk that tells the truth.
                assert not trusted or mark.entry >= complete, (mark.entry, complete)
            except CheckpointError as error:
                assert "there is no checkpoint to go on from" in str(error), error
                assert not trusted or complete < 0, error
                told.refused += 1
                complete = -1
                shutil.rmtree(folder)
                folder.mkdir()
                (folder / EXPERIMENT).write_text(experiment.to_toml())
                disk = FakeDisk(dice.randrange(1 << 30))
                trusted, cluster = True, build(experiment, _no_jobs)
        complete = -1 if mark is None else mark.entry
        cluster.folder = kept = CrashingFolder(folder, mark, life.crash_after)
        saver = Saver(cluster, folder, experiment.run.keep, disk, names)
        disk.fault, disk.at, disk.happened = life.fault, (disk.steps + life.at if life.fault else -1), False
        try:
            cluster.run(None)
            cluster.conclude()
        except PowerLoss:
            told.crashed += 1
            powerless = life.power or (disk.happened and life.fault == "crash")
            complete = max([complete, *saver.completed])
            kept.lose(dice)
            if disk.happened:
                told.faults[life.fault] += 1
                trusted = trusted and life.fault not in LYING
            disk.at = -1
            if powerless:
                disk = disk.lose_power(folder / FOLDER)
            continue
        if disk.happened:
            told.faults[life.fault] += 1
            trusted = trusted and life.fault not in LYING
        disk.at = -1
        complete = max([complete, *saver.completed])
        break
    _check_store(folder, disk)
    return Run(folder), told


def _check_store(folder: Path, disk: FakeDisk) -> None:
    """Whatever can be read as a checkpoint of this log is whole."""
    store, index = Store(folder / FOLDER, disk), LogIndex(folder)
    for name in store.names():
        try:
            about = store.verify(name)
        except CheckpointError:
            continue
        assert index.lacks(about.entry, about.job, about.version) is None or about.entry not in index.marks


def _no_jobs(experiment: Experiment) -> Any:
    raise AssertionError("expected a problem")


def check(run: Run) -> Counter[tuple[str, int]]:
    """The log that is left passes, and has every batch at most once. How often each was committed."""
    found = check_run(run).violations
    assert found == (), [str(each) for each in found[:5]]
    commits: Counter[tuple[str, int]] = Counter()
    for entry in run.decisions():
        if isinstance(entry.fact, e.Commit):
            commits[entry.fact.worker, entry.fact.batch] += 1
    assert set(commits.values()) <= {1}, commits
    return commits
