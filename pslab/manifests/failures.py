"""Which exit codes are worth another pod (`pswire.exits`)."""

from collections.abc import Mapping
from typing import Any

from pswire.exits import ExitCode

# Of a process that was told to end: nothing is wrong with its command.
_TOLD = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_DISRUPTED: Mapping[str, Any] = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def final_codes() -> list[int]:
    """The same command would fail in the same way."""
    return [int(code) for code in ExitCode if code and not code.restart and code not in _TOLD]


def limits(container: str, restarts: int) -> dict[str, Any]:
    """Fields of an Indexed Job whose pods come again, each index `restarts` times; 0: the first failure ends the job.

    A pod that gave way (drained, evicted) does not count. One whose exit code says that nothing passing was wrong is
    not tried again, and the others go on. All else counts: a lost server (3), SIGKILL (137), SIGTERM (143).
    """
    final = {"containerName": container, "operator": "In", "values": final_codes()}
    if not restarts:
        ending = [{"action": "FailJob", "onExitCodes": final}]
        return {"backoffLimit": 0, "podFailurePolicy": {"rules": ending}}
    rules = [dict(_DISRUPTED), {"action": "FailIndex", "onExitCodes": final}]
    return {"backoffLimitPerIndex": restarts, "podFailurePolicy": {"rules": rules}}
