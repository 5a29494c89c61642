"""From what stands on the command line to what the page shows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.dashboard.access import is_loopback
from pslab.dashboard.observer import Observer
from pslab.dashboard.playground.settings import SettingsError, experiment_of
from pslab.dashboard.runs import RunPages
from pslab.launch.status_client import StatusClient, StatusError, StatusUntrusted
from pslab.runs.folder import RunError, address_of
from pswire.addresses import AddressError, parse_address
from pswire.config.experiment import ExperimentError, load_experiment
from pswire.config.toml import apply_overrides, read_toml
from pswire.security.credentials import NO_TLS, Credentials

if TYPE_CHECKING:
    from pslab.dashboard.app import Source

NOTE = "The [job] itself is not computed here: this is the experiment's time, with nothing learned."

NO_SETTINGS = "--set changes an experiment file; name one, or leave --set out"


def find(
    target: str | None,
    overrides: Sequence[str] = (),
    credentials: Credentials = NO_TLS,
    *,
    trusted: bool = False,
) -> "Source":
    """`trusted`: a policy that is code may be run. Raises RunError, ExperimentError, AddressError, StatusError."""
    from pslab.dashboard.app import Source

    if target is None:
        if overrides:
            raise ExperimentError(NO_SETTINGS)
        return Source("playground", "")
    path = Path(target)
    if overrides and not (path.is_file() or path.suffix == ".toml"):
        raise ExperimentError(NO_SETTINGS)
    if path.is_dir():
        return _going(path, credentials) or Source("run", path.resolve().name, run=_read(path, trusted))
    if path.is_file() or path.suffix == ".toml":
        return _simulated(path, overrides)
    return _live(target, credentials)


def live_address(folder: Path) -> str:
    """Where server 0 of a run that goes on listens, or did when it was killed; empty for everything else."""
    try:
        return address_of(folder) if folder.is_dir() else ""
    except RunError:
        return ""


def _going(folder: Path, credentials: Credentials) -> "Source | None":
    """The live cluster of a run; None where nobody answers. Raises StatusUntrusted."""
    address = live_address(folder)
    try:
        return _live(address, credentials) if address else None
    except StatusUntrusted:
        raise
    except (AddressError, StatusError):
        return None


def _read(path: Path, trusted: bool) -> RunPages:
    pages = RunPages(path, trusted=trusted)
    pages.parts()
    return pages


def _live(target: str, credentials: Credentials) -> "Source":
    from pslab.dashboard.app import Source

    try:
        parsed = parse_address(target)
        address = str(parsed)
    except AddressError as error:
        raise AddressError(f"{error} (and there is no run folder or file of that name)") from error
    client = StatusClient(address, credentials=credentials)
    # Asked once: an address where nothing is must be said here, not on the page.
    client.ask()
    return Source("live", address, observer=Observer(client.ask, local=is_loopback(parsed.host)))


def _simulated(path: Path, overrides: Sequence[str]) -> "Source":
    from pslab.dashboard.app import Source

    experiment = load_experiment(path, overrides)
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
    except SettingsError as error:
        raise ExperimentError(f"{path}: {error}") from error
    return Source("simulated", path.name, settings=settings, note=note)


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"policy": {"name": "ssp"}} -> {"policy.name": "ssp"}."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
