"""Exit codes of ps-server, ps-worker and ps-lab: each has one meaning, the same for all three."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """A process's exit status."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    UNREACHABLE = 3
    ADDRESS_IN_USE = 4
    REFUSED = 5
    JOB_FAILED = 6
    ABANDONED = 7
    DIVERGED = 8
    VIOLATIONS = 9
    UNTRUSTED = 10
    STORAGE = 11
    RESOURCES = 12
    MISSING = 13
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def meaning(self) -> str:
        """The line in --help and in the documentation."""
        return _MEANINGS[self]

    @property
    def restart(self) -> bool:
        """True if the same command may succeed when it is repeated. An unintended signal also allows it."""
        return self in _PASSING


_MEANINGS: Final = {
    ExitCode.OK: "the job succeeded",
    ExitCode.INTERNAL: "a fault of this program; please report it with the traceback",
    ExitCode.USAGE: "wrong options, experiment file or TF_CONFIG",
    ExitCode.UNREACHABLE: "a server cannot be reached or was lost",
    ExitCode.ADDRESS_IN_USE: "another process is that server, or listens on its address",
    ExitCode.REFUSED: "refused by the servers: another model, plan or job, or another process has the name",
    ExitCode.JOB_FAILED: "the job module or script does not import, or its code or a policy raised an error",
    ExitCode.ABANDONED: "all workers left before the work was done",
    ExitCode.DIVERGED: "gradients stayed NaN or infinite, or an update of finite gradients was not finite",
    ExitCode.VIOLATIONS: "ps-lab check, replay or verify-policy found a violation",
    ExitCode.UNTRUSTED: "a certificate, role or name is refused, or only one of the two ends speaks TLS",
    ExitCode.STORAGE: "the run folder cannot be written to: the disk is full, read-only or gone",
    ExitCode.RESOURCES: "the machine has no thread or descriptor left for a server to start",
    ExitCode.MISSING: "a part of the data was not trained on; --allow-missing makes that a success",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C (SIGINT)",
    ExitCode.TERMINATED: "stopped by SIGTERM",
}


_PASSING: Final = frozenset(
    {ExitCode.INTERNAL, ExitCode.UNREACHABLE, ExitCode.ADDRESS_IN_USE, ExitCode.RESOURCES}
)


def exit_codes_text() -> str:
    """Return all codes, one aligned line each, for --help."""
    return "\n".join(f"{int(code):>5}  {code.meaning}" for code in ExitCode)
