"""A job that goes on: which checkpoint, and the place in the log behind which it does."""

import logging
from dataclasses import dataclass
from pathlib import Path

from psserver.checkpoint import Checkpoint, CheckpointError, Store, check_same_job, choose
from psserver.checkpoint.rewind import LogIndex, Mark, RewindError
from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from pswire.logs.events import event

log = logging.getLogger("ps-server")

FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True)
class GoingOn:
    """`rolled_back`: entries that were put aside."""

    checkpoint: Checkpoint
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


def find(folder: Path, which: str, terms: JobTerms, policy: Policy, optimizer: Optimizer | None) -> GoingOn:
    """Choose the checkpoint, and cut the log behind it. Raises CheckpointError and RewindError; nothing has changed
    then."""
    index = LogIndex(folder)
    found, passed = choose(Store(folder / FOLDER), which, lambda m: index.lacks(m.entry, m.job, m.version))
    for sentence in passed:
        log.warning("passed over checkpoint %s", sentence, extra=event("checkpoint_passed_over"))
    about = found.manifest
    wanted = about.optimizer if optimizer is None else optimizer.config
    check_same_job(about, policy, wanted, terms.workers, terms.seed)
    mark = index.marks[about.entry]
    void = index.rewind(mark)
    told = event("resumed", version=about.version, rolled_back=void)
    log.info("goes on from version %d; %d entries behind it are void", about.version, void, extra=told)
    return GoingOn(found, mark, void)
