"""Resumption of a job: from which checkpoint, and after which place in the log."""

import json
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

from psserver.checkpoint import (
    Checkpoint,
    CheckpointError,
    Manifest,
    Store,
    check_same_job,
    choose,
    fence,
    mark_of,
    name_of,
    needed_by,
    restore_bytes,
)
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.resumption import AUTO, LATEST
from psserver.checkpoint.rewind import (
    BEGINNING,
    DECISIONS,
    SUMMARY,
    UNREADABLE,
    WEIGHTS,
    LogIndex,
    Mark,
)
from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.service.guard.memory import MIB
from psserver.service.life.settings import ServerSettings
from psserver.service.store.slow import said
from pswire.generations import Generation
from pswire.logs.events import event

log = logging.getLogger("ps-server")

FOLDER = "checkpoints"
# The file beside it that names the newest checkpoint. A job that has lost its checkpoints must not begin anew.
SAVED = "saved"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The point from which a job resumes. `checkpoint`: None if it begins anew. Nothing changes in the folder
    before `cut`."""

    checkpoint: Checkpoint | None
    mark: Mark
    index: LogIndex
    store: Store
    # Workers whose processes may still be running; empty: all are started anew.
    expected: frozenset[str] = frozenset()
    # What is damaged or belongs to another log, in sentences.
    warnings: tuple[str, ...] = ()

    @property
    def rolled_back(self) -> int:
        """Number of entries behind the mark, which are void."""
        return self.index.entries - self.mark.entry - 1

    @property
    def names(self) -> set[str]:
        """Checkpoints that still belong to the log."""
        return self.index.names(self.mark)

    def cut(self) -> None:
        """Put aside what is behind the mark. Call it once nothing can refuse the checkpoint. Raises
        UnwritableError."""
        if self.checkpoint is None:
            void = self.index.rewind(self.mark)
            fields = event("begins_anew", rolled_back=void)
            log.warning(
                "there is no checkpoint yet: the job begins anew; %d entries are void", void, extra=fields
            )
            return
        about = self.checkpoint.manifest
        self.store.settle(name_of(about.entry, about.job))
        void = self.index.rewind(self.mark)
        fields = event("resumed", version=about.version, rolled_back=void)
        log.info(
            "goes on from version %d; the %d log entries after it are void", about.version, void, extra=fields
        )


def name_job(settings: ServerSettings, disk: RealDisk) -> JobTerms:
    """Return the job's terms under the name of its next generation, if the folder has had one. Raises
    CheckpointError, RewindError."""
    terms, out = settings.terms, settings.out
    if out is None or not settings.has_generations:
        return terms
    store = Store(out / FOLDER, disk)
    if settings.resume is None:
        name = fence.begin(store, terms.job)
    else:
        if fence.damaged(store):
            path, fields = store.root / fence.GENERATION, event("generation_damaged")
            log.warning(
                "%s is damaged: the job's generation number skips ahead by %d", path, fence.LEAP, extra=fields
            )
        logged = LogIndex(out).job if (out / DECISIONS).is_file() else ""
        name = fence.begin_next(store, logged, terms.job)
    return replace(terms, job=name, generation=Generation.named(name).number, regather=settings.recover)


def saved_once(folder: Path) -> str:
    """Return the newest checkpoint that was ever complete, as the folder remembers; empty: none."""
    try:
        return (folder / SAVED).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def succeeded(folder: Path) -> str | None:
    """Return the result of the folder's job if it has succeeded and concluded: a restart has nothing to do.
    Otherwise None."""
    try:
        found = json.loads((folder / SUMMARY).read_bytes())
        whole = found["success"] is True and found["concluded"] is True and found["weights_sha256"]
        if whole and (folder / WEIGHTS).is_file():
            return f"version {int(found['versions'])}, {found['reason']}"
    except (OSError, *UNREADABLE):
        return None
    return None


class _NoRoomError(Exception):
    """A checkpoint is too large for this server. An older one is not taken in its place."""


def find(
    folder: Path,
    which: str,
    terms: JobTerms,
    policy: Policy,
    optimizer: Optimizer | None,
    disk: RealDisk,
    room: float = math.inf,
) -> ResumePoint | None:
    """Choose the checkpoint. Returns None if there is nothing to resume or to put aside. `room`: the bytes that rows of
    tables may take. Raises CheckpointError, RewindError."""
    store = Store(folder / FOLDER, disk)
    if which == AUTO and not (folder / DECISIONS).is_file():
        if store.written():
            raise CheckpointError(
                f"{folder}: holds checkpoints, but no {DECISIONS}, without which nothing goes on from them: put it "
                "back, or name another folder"
            )
        return None
    index = LogIndex(folder)
    if which == AUTO and not store.written():
        saved = saved_once(folder)
        if saved:
            raise CheckpointError(
                f"{store.root}: the job had checkpoints ({saved} was the newest), and there is none any more: put them "
                "back, or begin anew in another folder (--out)"
            )
        return ResumePoint(None, BEGINNING, index, store) if index.entries or index.damage else None
    auto, which = which == AUTO, LATEST if which == AUTO else which
    wanted_parts = needed_by(0, terms.servers)

    def lacks(about: Manifest) -> str | None:
        reason = index.lacks(about.entry, about.job, about.version)
        nbytes = restore_bytes(about, wanted_parts(about))
        if reason is None and nbytes > room:
            raise _NoRoomError(
                f"the rows of the checkpoint of version {about.version} take {nbytes / MIB:.1f} MiB while they are "
                f"restored, expected at most {room / MIB:.1f} (--memory-limit): give the servers more memory, or "
                "resume on more of them"
            )
        return reason

    try:
        with said(lambda: f"reading the checkpoint in {store.root}, {store.read / MIB:.1f} MiB so far"):
            found, passed = choose(store, which, lacks, wanted_parts)
    except _NoRoomError as error:
        raise CheckpointError(str(error)) from error
    warnings = [f"passed over checkpoint {sentence}" for sentence in passed]
    for sentence in warnings:
        log.warning("%s", sentence, extra=event("checkpoint_passed_over"))
    about = found.manifest
    wanted = about.optimizer if optimizer is None else optimizer.config
    check_same_job(about, policy, wanted, terms.workers, terms.seed)
    if index.hole is not None:
        what = "the log proves nothing of it any more" if index.hole < about.entry else "what follows is void"
        warnings.append(f"the log is damaged at its entry {index.hole}: {index.damage}; {what}")
        log.warning("%s", warnings[-1], extra=event("log_damaged", entries=index.hole))
    mark = mark_of(index, found)
    expected = index.expected(mark) if auto else frozenset[str]()
    return ResumePoint(found, mark, index, store, expected, tuple(warnings))
