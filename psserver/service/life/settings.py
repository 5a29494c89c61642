"""Everything that a server needs to know, from its command line or a configuration."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.service.store.host import HostOptions
from pswire.addresses import Address
from pswire.security.credentials import NO_TLS, Credentials


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that a server needs to know."""

    hosts: tuple[Address, ...]
    task_index: int
    bind: str
    terms: JobTerms
    policy: Policy
    # None: the first worker names it.
    optimizer: Optimizer | None
    host: HostOptions
    # The port for payloads; 0: a free one.
    data_port: int
    out: Path | None
    # None: no metrics; 0: a free port.
    metrics_port: int | None = None
    # Number of complete checkpoints to keep; 0: the job takes none.
    keep: int = 0
    # Where final weights go if `out` does not take them; None: the system's temporary folder.
    rescue: Path | None = None
    # Resume from this checkpoint of `out`, or from the "latest"; "auto": or begin if there is none.
    resume: str | None = None
    # Seconds that a lost server may take to come back before the job ends; 0: none.
    recover: float = 0.0
    # Whether this process has served the job before, and lost others of its servers.
    again: bool = False
    # The generation that it served then; earlier ones do not get it back.
    former: str = ""
    # Whether the log is synced to the disk before workers learn of a decision.
    log_to_disk: bool = False
    # Credentials of everything that it listens on and connects to.
    credentials: Credentials = NO_TLS
    # Copies of the coordinator and of the model.
    replicas: int = 1
    # The repeated warning of a server that others reach without protection.
    exposure: str | None = None

    @property
    def has_generations(self) -> bool:
        """Whether the job may continue in other processes, each time under another name."""
        return bool(self.keep or self.resume)

    @property
    def security(self) -> str:
        """One of "tls", "loopback" or "insecure", for statuses and summaries."""
        if self.credentials.encrypted:
            return "tls"
        return "loopback" if self.exposure is None else "insecure"


def new_job_name() -> str:
    """Return an unguessable name, so that a process of another job cannot be mistaken for one of this job."""
    return secrets.token_hex(8)


# Called with an event's name and its fields.
Announce = Callable[[str, Mapping[str, Any]], None]
