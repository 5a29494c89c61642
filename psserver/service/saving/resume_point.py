"""A job that resumes: from which checkpoint, and behind which place in the log."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from psserver.checkpoint import (
    Checkpoint,
    CheckpointError,
    Store,
    check_same_job,
    choose,
    generations,
    name_of,
)
from psserver.checkpoint.resumption import LATEST
from psserver.checkpoint.rewind import BEGINNING, DECISIONS, LogIndex, Mark, RewindError
from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.service.serving.settings import ServerSettings
from pswire.generations import Generation
from pswire.logs.events import event

log = logging.getLogger("ps-server")

FOLDER = "checkpoints"


# Go on from the newest checkpoint, and begin where there is none.
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """`checkpoint`: None where the job begins anew. `rolled_back`: entries that were put aside."""

    checkpoint: Checkpoint | None
    mark: Mark
    rolled_back: int


def complete(folder: Path, version: int) -> bool:
    """There is a checkpoint of the end of that folder's log, at `version`."""
    try:
        index = LogIndex(folder)
        found, _ = choose(Store(folder / FOLDER), "latest", lambda m: index.lacks(m.entry, m.job, m.version))
    except (CheckpointError, RewindError):
        return False
    return found.manifest.version == version


def name_job(settings: ServerSettings) -> JobTerms:
    """The job's terms under the name of its next generation, if the folder has had one. Raises CheckpointError,
    RewindError."""
    terms, out = settings.terms, settings.out
    if out is None or not (settings.keep or settings.resume):
        return terms
    store = Store(out / FOLDER)
    if settings.resume is None:
        name = generations.begin(store, terms.job)
    else:
        if generations.damaged(store):
            path, told = store.root / generations.FILE, event("generation_damaged")
            log.warning(
                "%s is damaged: the job's name goes on %d further", path, generations.LEAP, extra=told
            )
        logged = LogIndex(out).job if (out / DECISIONS).is_file() else ""
        name = generations.begin_next(store, logged, terms.job)
    return replace(terms, job=name, generation=Generation.named(name).number, regather=settings.recover)


def find(
    folder: Path, which: str, terms: JobTerms, policy: Policy, optimizer: Optimizer | None
) -> ResumePoint | None:
    """Choose the checkpoint, and cut the log behind it. None: there is nothing to go on from, nor to put aside. Raises
    CheckpointError and RewindError; nothing has changed then."""
    if which == AUTO and not (folder / DECISIONS).is_file():
        return None
    index = LogIndex(folder)
    if which == AUTO and not Store(folder / FOLDER).written():
        return _anew(index)
    which = LATEST if which == AUTO else which
    store = Store(folder / FOLDER)
    found, passed = choose(store, which, lambda m: index.lacks(m.entry, m.job, m.version))
    for sentence in passed:
        log.warning("passed over checkpoint %s", sentence, extra=event("checkpoint_passed_over"))
    about = found.manifest
    wanted = about.optimizer if optimizer is None else optimizer.config
    check_same_job(about, policy, wanted, terms.workers, terms.seed)
    store.settle(name_of(about.entry, about.job))
    mark = index.marks[about.entry]
    void = index.rewind(mark)
    told = event("resumed", version=about.version, rolled_back=void)
    log.info("goes on from version %d; %d entries behind it are void", about.version, void, extra=told)
    return ResumePoint(found, mark, void)


def _anew(index: LogIndex) -> ResumePoint | None:
    """It was cut off before its first checkpoint. All that was decided is void."""
    if not index.entries:
        return None
    void = index.rewind(BEGINNING)
    told = event("begins_anew", rolled_back=void)
    log.warning("there is no checkpoint yet: the job begins anew; %d entries are void", void, extra=told)
    return ResumePoint(None, BEGINNING, void)
