"""Everything that a server needs to know, from its command line or a configuration."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.service.log.flushing import LogFlush
from psserver.service.shard.host import HostOptions
from pswire.addresses import Address
from pswire.security.credentials import NO_TLS, Credentials


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything a server needs to know. `wait_warning`: seconds after which a wait is logged."""

    hosts: tuple[Address, ...]
    task_index: int
    bind: str
    terms: JobTerms
    policy: Policy
    # None: the first worker's.
    optimizer: Optimizer | None
    host: HostOptions
    data_port: int
    out: Path | None
    wait_warning: float
    # None: no metrics; 0: a free port.
    metrics_port: int | None = None
    # Shared by all servers of the job: a coordinator proves to a shard that it knows this. Empty: it need not.
    job_secret: bytes = field(default=b"", repr=False)
    # Of complete checkpoints, so many are kept. Where the job takes none: 0.
    keep: int = 0
    # For final weights that `out` does not take; None: the system's temporary folder.
    rescue: Path | None = None
    # Go on from this checkpoint of `out`, or from the "latest"; "auto": and begin where there is none.
    resume: str | None = None
    # Seconds that a lost server may take to come back, before the job ends for it. 0: none.
    recover: float = 0.0
    # This process has served the job before, and lost others of its servers.
    again: bool = False
    # Of which it was then: an earlier generation gets it no more.
    former: str = ""
    # A job that this one is behind: who has not taken part in that takes no part here; empty: anybody may.
    behind: str = ""
    # Servers that came back on other addresses than those that workers were told.
    moved: frozenset[int] = frozenset()
    # Another job may follow (`psserver.service.succession`).
    stay: bool = False
    log_flush: LogFlush = LogFlush()
    # Of all that it listens on and connects to.
    credentials: Credentials = NO_TLS
    # What is said again and again of a server that others reach, and nothing protects.
    exposure: str | None = None

    @property
    def has_generations(self) -> bool:
        """The job may go on in other processes, each time under a name of its own."""
        return bool(self.keep or self.resume)

    @property
    def security(self) -> str:
        """For statuses and summaries: "tls", "tokens", "loopback" or "insecure"."""
        if self.credentials.encrypted:
            return self.credentials.kind
        return "loopback" if self.exposure is None else "insecure"


def new_job_name() -> str:
    """Unguessable: a process of another job cannot be taken for one of this job."""
    return secrets.token_hex(8)
