"""Sources of the page: what the command line names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pslab.dashboard.access import is_loopback
from pslab.dashboard.observer import Observer
from pslab.dashboard.playground.pool import Pool
from pslab.dashboard.playground.settings import experiment_of
from pslab.dashboard.runs import RunPages
from pslab.experiment import Experiment
from pslab.launch.status_client import StatusClient, StatusError, StatusUntrusted
from pslab.runs.folder import RunError, address_of, job_of
from pswire.addresses import AddressError, parse_hosts
from pswire.config.experiment import ExperimentError
from pswire.config.toml import apply_overrides, read_toml
from pswire.security.credentials import NO_TLS, Credentials

NOTE = (
    "The [job] itself is not computed here: the simulation shows the experiment's timing, without learning."
)

NO_SETTINGS = "--set: expected an experiment file to override"


@dataclass
class Source:
    """The subject of the page: a live cluster, a run folder, a simulated experiment, or the playground alone.

    `settings`: flat settings of a simulated experiment (`settings.experiment_of`). `note`: what was left out of it.
    """

    kind: str
    title: str
    observer: Observer | None = None
    run: RunPages | None = None
    settings: dict[str, Any] | None = None
    note: str = ""
    pool: Pool = field(default_factory=Pool)


def find(
    target: str | None,
    overrides: Sequence[str] = (),
    credentials: Credentials = NO_TLS,
) -> Source:
    """Return the source for `target`. Raises RunError, ExperimentError, AddressError, StatusError."""
    if target is None:
        if overrides:
            raise ExperimentError(NO_SETTINGS)
        return Source("playground", "")
    path = Path(target)
    if overrides and not (path.is_file() or path.suffix == ".toml"):
        raise ExperimentError(NO_SETTINGS)
    if path.is_dir():
        return _running(path, credentials) or Source("run", path.resolve().name, run=_read(path))
    if path.is_file() or path.suffix == ".toml":
        return _simulated(path, overrides)
    return _live(target, credentials)


def live_address(folder: Path) -> str:
    """Return the address of an unfinished run, as `address_of`; the run may have been killed; empty otherwise."""
    try:
        return address_of(folder) if folder.is_dir() else ""
    except RunError:
        return ""


def _running(folder: Path, credentials: Credentials) -> Source | None:
    """Return the live cluster of a run; None if no server answers. Raises StatusUntrusted."""
    address = live_address(folder)
    try:
        return _live(address, credentials, partial(job_of, folder)) if address else None
    except StatusUntrusted:
        raise
    except (AddressError, StatusError):
        return None


def _read(path: Path) -> RunPages:
    pages = RunPages(path)
    pages.parts()
    return pages


def _live(target: str, credentials: Credentials, job: Callable[[], str] = lambda: "") -> Source:
    try:
        local = all(is_loopback(each.host) for each in parse_hosts(target))
    except AddressError as error:
        raise AddressError(f"{error} (and no run folder or file has that name)") from error
    client = StatusClient(target, credentials=credentials, job=job)
    # Ask once, so that a wrong address fails here and not on the page.
    client.ask()
    return Source("live", client.address, observer=Observer(client.ask, local=local))


def _simulated(path: Path, overrides: Sequence[str]) -> Source:
    experiment = Experiment.load(path, overrides)
    document = read_toml(path.read_text(encoding="utf-8"))
    apply_overrides(document, overrides)
    left_out = document.pop("job", None)
    document.pop("trackers", None)
    settings = flat(document)
    note = ""
    if experiment.simulation.problem in ("auto", "job"):
        settings["simulation.problem"] = "none"
        note = NOTE if left_out else ""
    try:
        experiment_of(settings)
    except ValueError as error:
        raise ExperimentError(f"{path}: {error}") from error
    return Source("simulated", path.name, settings=settings, note=note)


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables: {"policy": {"name": "ssp"}} becomes {"policy.name": "ssp"}."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
