"""Everything that a server needs to know, from its command line or a configuration."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.service.job.run_log import LogFlush
from psserver.service.store.host import HostOptions
from pswire.addresses import Address
from pswire.config.flags import SERVER, Flag
from pswire.config.sections import Section
from pswire.security.credentials import NO_TLS, Credentials


class ProcessSection(Section):
    """What one server process is told beside the experiment, and reads as it stands."""

    data_port: Annotated[int, Field(ge=0, le=65535), Flag((SERVER,))] = 0
    """TCP port for payloads, beside gRPC; workers that cannot reach it send them over gRPC; 0: a free one"""

    arena_versions: Annotated[int, Field(ge=2), Flag((SERVER,))] = 3
    """copies of the model that this server may hold. With 2 an update waits until granted versions are read, and
    workers of this machine copy them rather than read them in place"""

    staging_limit: Annotated[int, Field(ge=1), Flag((SERVER,))] = 4
    """gradients held out of order under a barrier"""

    wait_warning: Annotated[float, Flag((SERVER,))] = 10.0
    """log why a worker waits, after this many seconds"""

    stay: Annotated[bool, Flag((SERVER,))] = False
    """do not exit when a job ends (task 0): a worker that joins then begins the next one, in a folder of its own,
    OUT/job-2. With `--checkpoint-every` a worker of the same model goes on in the same folder, with more epochs"""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything a server needs to know."""

    hosts: tuple[Address, ...]
    task_index: int
    bind: str
    terms: JobTerms
    policy: Policy
    # None: the first worker's.
    optimizer: Optimizer | None
    host: HostOptions
    process: ProcessSection
    out: Path | None
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


# Called with what happens, and facts of it.
Announce = Callable[[str, Mapping[str, Any]], None]
