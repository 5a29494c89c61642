"""The environment variables that servers and workers read, and a warning about one that looks misspelt."""

import logging
from collections.abc import Mapping
from typing import Final

from pswire.logs.events import event
from pswire.nearest import nearest

log = logging.getLogger("paramserver")

VARIABLES: Final = (
    "PS_HOSTS",
    "PS_JOB_SECRET",
    "PS_REPLICAS",
    "PS_TASK_INDEX",
    "PS_TLS_CA",
    "PS_TLS_CERT",
    "PS_TLS_KEY",
    "PS_TRANSPORT",
    "PS_WIRE_DTYPE",
)


def warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Warn of each variable that nothing reads, and whose name is like one of `VARIABLES`."""
    for name in sorted(environment):
        # PS_PORT and others Kubernetes sets for a service "ps".
        if not name.startswith("PS_") or name in (*VARIABLES, "PS_PORT"):
            continue
        meant = nearest(name[3:], [each[3:] for each in VARIABLES])
        if meant is not None:
            log.warning(
                "the environment has %s, which nothing reads: did you mean PS_%s?",
                *(name, meant),
                extra=event("variable_misspelt", variable=name),
            )
