"""What a server says again and again: that nothing protects it, and that its certificate soon ends."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from pswire.logs.events import event
from pswire.security.credentials import Credentials

log = logging.getLogger("ps-server")

# Seconds: between two warnings, and between two looks at the certificate.
MINUTE: Final = 60.0
DAY: Final = 86_400.0
# How long before its end a certificate is worth a warning; days.
WEEK: Final = 7


def ending(credentials: Credentials, now: float) -> str | None:
    """A sentence if the certificate, or its authority's, ends within a week; `now`: seconds since 1970."""
    if not (credentials.encrypted and credentials.identity.cert):
        return None
    facts = credentials.identity.facts
    left = facts.ends - now
    if left > WEEK * DAY:
        return None
    what = (
        "authority (CA) of the certificate"
        if facts.authority_ends <= facts.certificate_ends
        else "certificate"
    )
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.ends))
    over = f"ends on {when}, in {left / DAY:.1f} days" if left > 0 else f"has ended on {when}"
    return f"the {what} {facts.subject} {over}: nobody connects with it then; replace the files, no restart is needed"


def misnamed(credentials: Credentials, host: str) -> str | None:
    """A sentence if nobody who means this server's own `host` believes its certificate."""
    if not (credentials.encrypted and credentials.identity.cert) or credentials.identity.is_for(host):
        return None
    return (
        f"the certificate of this server is not for {host}, its own name in --ps-hosts: nobody who uses this name "
        f"believes it; make one with the name (ps-lab certs --servers {host})"
    )


class Reminders:
    """Within the running loop, until it is cancelled. `exposure`: the warning of a server that others reach without
    TLS."""

    def __init__(
        self,
        credentials: Credentials,
        exposure: str | None,
        every: float = MINUTE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials, self._exposure = credentials, exposure
        self._every, self._clock = every, clock
        self._said = float("-inf")

    async def run(self) -> None:
        while True:
            self.remind()
            await asyncio.sleep(self._every)

    def remind(self) -> None:
        if self._exposure is not None:
            log.warning("%s", self._exposure, extra=event("open_to_all"))
        now = self._clock()
        sentence = ending(self._credentials, now)
        if sentence is not None and now - self._said >= DAY:
            self._said = now
            log.warning("%s", sentence, extra=event("certificate_ends"))
