"""Sources of the page: what the command line names."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pslab.dashboard.access import is_loopback
from pslab.dashboard.observer import Observer
from pslab.dashboard.playground.pool import PlayPool
from pslab.dashboard.runs import RunPage
from pslab.launch.status_client import StatusClient, StatusError, StatusUntrusted
from pslab.runs.folder import RunError, address_of, job_of
from pswire.addresses import AddressError, parse_hosts
from pswire.security.credentials import NO_TLS, Credentials


@dataclass
class PageSource:
    """The subject of the page: a live cluster, a run folder, or the playground alone."""

    kind: str
    title: str
    observer: Observer | None = None
    run: RunPage | None = None
    pool: PlayPool = field(default_factory=PlayPool)


def find(target: str | None, credentials: Credentials = NO_TLS) -> PageSource:
    """Return the source for `target`. Raises RunError, AddressError, StatusError."""
    if target is None:
        return PageSource("playground", "")
    path = Path(target)
    if path.is_dir():
        return _running(path, credentials) or PageSource("run", path.resolve().name, run=RunPage(path))
    if path.suffix == ".toml" and not path.exists():
        raise RunError(f"{path}: expected HOST:PORT or a run folder, and there is no such file")
    if path.is_file():
        raise RunError(
            f"{path}: expected HOST:PORT or a run folder, got a file; to see an experiment simulated, run it with "
            "`ps-lab run --engine simulated` and name its run folder"
        )
    return _live(target, credentials)


def live_address(folder: Path) -> str:
    """Return the address of an unfinished run, as `address_of`; the run may have been killed; empty otherwise."""
    try:
        return address_of(folder) if folder.is_dir() else ""
    except RunError:
        return ""


def _running(folder: Path, credentials: Credentials) -> PageSource | None:
    """Return the live cluster of a run; None if no server answers. Raises StatusUntrusted."""
    address = live_address(folder)
    try:
        return _live(address, credentials, partial(job_of, folder)) if address else None
    except StatusUntrusted:
        raise
    except (AddressError, StatusError):
        return None


def _live(target: str, credentials: Credentials, job: Callable[[], str] = lambda: "") -> PageSource:
    try:
        local = all(is_loopback(each.host) for each in parse_hosts(target))
    except AddressError as error:
        raise AddressError(f"{error} (and no run folder or file has that name)") from error
    client = StatusClient(target, credentials=credentials, job=job)
    # Ask once, so that a wrong address fails here and not on the page.
    client.ask()
    return PageSource("live", client.address, observer=Observer(client.ask, local=local))
