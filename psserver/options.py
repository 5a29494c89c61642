"""The options of ps-server beside those of an experiment, as given on the command line.

They stand apart from what a server loads, so that help and wrong options are answered at once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SkipValidation

from pswire.config.flags import SERVER, Flag
from pswire.config.sections import Section
from pswire.security.settings import SecurityOptions


class Options(Section):
    """The command line as given; None for an option that was not given."""

    ps_hosts: str | None = None
    task_index: int | None = None

    data_port: Annotated[int, Field(ge=0, le=65535), Flag((SERVER,))] = 0
    """TCP port for payloads, beside gRPC; workers that cannot reach it send them over gRPC; 0: a free one"""

    arena_versions: Annotated[int, Field(ge=2), Flag((SERVER,))] = 3
    """copies of the model that this server may hold. With 2 an update waits until granted versions are read, and
    workers of this machine copy them rather than read them in place"""

    bind: Annotated[str | None, Flag((SERVER,), metavar="ADDRESS")] = None
    """interface to listen on; default: loopback only. Any other needs TLS (`--tls-ca`) or `--insecure`"""

    metrics_port: Annotated[int | None, Field(ge=0, le=65535), Flag((SERVER,))] = None
    """serve /metrics for Prometheus on this port of the `--bind` address; 0: a free port; default: no metrics"""

    threads: Annotated[int | None, Field(ge=1), Flag((SERVER,))] = None
    """threads that an update of this server may use; default: one per core available to the process, at most 4"""

    memory_limit: Annotated[str | None, Flag((SERVER,), metavar="SIZE")] = None
    """memory that the model and its workers may use on this server, e.g. 1GiB; a model that cannot fit is refused;
    default: four fifths of the memory of the machine or its container"""

    out: Annotated[Path | None, Flag((SERVER,))] = None
    """run folder for the decision log, metrics, summary and weights (task 0); must not hold an earlier run; default: a
    new folder runs/TIME-JOB in the current directory"""

    resume: Annotated[str | None, Flag((SERVER,), metavar="auto|latest|NAME")] = None
    """continue the run in `--out` from this checkpoint (task 0), also with another number of servers. auto: from the
    latest, or begin if there is none, so that a killed server can be restarted with the same command"""

    log_flush: Annotated[Literal["system", "disk"], Flag((SERVER,))] = "system"
    """how far the decision log is written before workers learn of a decision (task 0), in one write for all decisions
    of a moment. system: to the operating system, so that a killed process loses nothing that a worker knows. disk: to
    the disk (fsync), so that not even a loss of power does"""

    no_out: Annotated[bool, Flag((SERVER,))] = False
    """keep no log and no trained model"""

    config: Path | None = None
    overrides: Sequence[str] = ()
    # Experiment key -> the option that set it.
    typed: Mapping[str, str] = Field(default_factory=dict)
    # From PS_JOB_SECRET, never from an option, which every user of the machine could read.
    job_secret: str = Field(default="", repr=False)
    security: SecurityOptions = SecurityOptions()
    # May contain PS_TLS_CA and the like.
    environment: Annotated[Mapping[str, str], SkipValidation] = Field(default_factory=dict, repr=False)
