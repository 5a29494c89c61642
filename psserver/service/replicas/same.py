"""The settings that must be the same on all servers of a job with replicas."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from psserver.checkpoint import UnwritableError
from psserver.checkpoint.disk import RealDisk
from psserver.service.job.agreement import FROM_JOB
from psserver.service.job.job import ServedJob
from psserver.service.job.log_file import LogError
from psserver.service.life.settings import ServerSettings
from psserver.service.replicas.disk import FOLDER

# Terms that the first primary of a generation names.
OWN: Final = ("job", "generation", "regather")


class OtherSettingsError(Exception):
    """This server was started with other options than the primary."""


def described(settings: ServerSettings) -> str:
    """Return what must be the same on all servers, as text."""
    terms, policy, optimizer = settings.terms, settings.policy, settings.optimizer
    shown: dict[str, Any] = {name: getattr(terms, name) for name in terms.__match_args__ if name not in OWN}
    shown["policy"] = {"name": policy.name, **policy.knobs}
    shown["optimizer"] = {"name": FROM_JOB} if optimizer is None else optimizer.config
    return json.dumps(shown, default=str, sort_keys=True)


def named(job: ServedJob) -> dict[str, Any]:
    """Return what a copy needs of the job to make its own, beside `described`."""
    terms = {name: getattr(job.terms, name) for name in OWN}
    return {**terms, "secret": job.host.secret.hex()}


def check_same(settings: ServerSettings, others: str) -> None:
    """Raise OtherSettingsError unless `described` gives `others`."""
    own = described(settings)
    if own != others:
        differing = "; ".join(_differences("", json.loads(others), json.loads(own)))
        raise OtherSettingsError(
            f"expected the options of the server that leads, {differing}: start all servers of a job with replicas "
            "with the same options"
        )


def _differences(name: str, theirs: Any, own: Any) -> Iterator[str]:
    """Yield what differs, by dotted name."""
    if isinstance(theirs, dict) and isinstance(own, dict):
        for key in sorted(theirs.keys() | own.keys()):
            yield from _differences(f"{name}.{key}" if name else key, theirs.get(key), own.get(key))
    elif theirs != own:
        yield f"{name} = {json.dumps(theirs)}, got {json.dumps(own)}"


def mark_folder(out: Path, job: str) -> None:
    """Leave the job's name in the run folder, for `check_folder`. Raises LogError."""
    mark = _mark(out, job)
    try:
        RealDisk().make_folder(mark.parent)
        mark.touch()
    except (OSError, UnwritableError) as error:
        raise LogError(f"{mark}: {error}") from error


def check_folder(out: Path, job: str) -> None:
    """Raise OtherSettingsError unless this is the run folder of the job's first primary."""
    if not _mark(out, job).is_file():
        raise OtherSettingsError(
            f"{out} is not the run folder of the server that leads: expected --out on a file system that all servers "
            "see, because another one goes on with the log there"
        )


def _mark(out: Path, job: str) -> Path:
    return out / FOLDER / f"job-{job}"
