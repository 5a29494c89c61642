"""The listeners of a server (gRPC, payloads, metrics), and its warnings about certificates."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from psserver.service.guard.authorization import Authorizer
from psserver.service.guard.limits import CALLS
from psserver.service.job.job import ServedJob
from psserver.service.life.settings import ServerSettings
from psserver.service.net.sockets import Admit, SocketListener
from psserver.service.runtime import BindError
from psserver.service.store.host import ShardHost
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.patience import transfer
from pswire.security.credentials import Credentials
from pswire.transport.channels import SERVER_OPTIONS
from pswire.transport.framed_socket import SocketError

if TYPE_CHECKING:
    from psserver.metrics.endpoint import Metrics
    from psserver.service.replicas.overview import ReplicaNumbers

log = logging.getLogger("ps-server")


class Listeners:
    """Everything that one server listens on. `admit`: admits who connects to a socket. The loop's thread owns it."""

    def __init__(
        self,
        settings: ServerSettings,
        host: ShardHost,
        admit: Admit,
        authorizer: Authorizer,
    ) -> None:
        self._settings, self._host = settings, host
        self.grpc: grpc.aio.Server | None = None
        self.metrics: Metrics | None = None
        # Seconds that a peer may take to read a given number of bytes.
        self.patience = partial(transfer, worker_timeout=settings.terms.worker_timeout)
        self.sockets = SocketListener(
            admit,
            host.runtime,
            settings.bind,
            settings.data_port,
            host.watch,
            self.patience,
            settings.credentials.server_contexts,
            authorizer,
        )

    def bind_grpc(self) -> tuple[grpc.aio.Server, Address]:
        """Listen for gRPC; return the server and its address with the real port. Within the loop. Raises BindError."""
        settings = self._settings
        options = SERVER_OPTIONS(
            settings.terms.worker_timeout, liveness=settings.task_index == 0 or settings.replicas > 1
        )
        served = self.grpc = self._host.runtime.serve(options, CALLS)
        own = settings.hosts[settings.task_index]
        port = self._host.runtime.listen(served, Address(settings.bind, own.port), settings.credentials)
        return served, Address(own.host, port)

    def open_data_port(self) -> None:
        """Open a requested data port at once, or raise BindError. Any other opens when a worker first needs it."""
        if self._settings.data_port:
            try:
                self.sockets.open_port()
            except SocketError as error:
                raise BindError(f"--data-port: {error}; is another process using it?") from error

    async def open_metrics(
        self,
        name: str,
        job: Callable[[], ServedJob | None],
        copies: "Callable[[], ReplicaNumbers] | None",
        authorizer: Authorizer,
    ) -> None:
        """Open the metrics port, if any. `job`: returns it where it is led; `copies`: with replicas, this server's
        part. Raises BindError.

        Imports here, because prometheus_client is an extra and costs a server memory.
        """
        port = self._settings.metrics_port
        if port is None:
            return
        from psserver.metrics.collector import registry
        from psserver.metrics.endpoint import Metrics

        bind, credentials = self._settings.bind, self._settings.credentials
        try:
            self.metrics = Metrics(
                self._host.runtime,
                bind,
                port,
                {name.lower()},
                registry(self._host, job, copies, credentials, authorizer),
                credentials,
                authorizer,
            )
        except SocketError as error:
            raise BindError(f"--metrics-port: {error}") from error
        await self.metrics.begin()

    def write_metrics(self) -> None:
        """Write the last metrics to the run folder: a scrape may come too late for them."""
        if self.metrics is not None and self._settings.out is not None:
            try:
                self.metrics.write(self._settings.out / "metrics.prom")
            except OSError as error:
                fields = event("metrics_not_written")
                log.error("metrics.prom was not written: %s", error.strerror or error, extra=fields)


# Seconds between two warnings.
DAY: Final = 86_400.0
# Days before its end from which a certificate is worth a warning.
WEEK: Final = 7


def ending(credentials: Credentials, now: float) -> str | None:
    """Return a sentence if the certificate, or its authority's, ends within a week. `now`: seconds since 1970."""
    if not credentials.encrypted:
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
    return f"the {what} {facts.subject} {over}: no peer trusts it after that; replace the files (no restart is needed)"


def name_warning(credentials: Credentials, host: str) -> str | None:
    """Return a sentence if the certificate is not valid for this server's own `host`."""
    if not credentials.encrypted or credentials.identity.is_for(host):
        return None
    return (
        f"the certificate of this server is not for {host}, its own name in --ps-hosts: no peer that uses this name "
        f"trusts it; issue one with the name (ps-lab certs --servers {host})"
    )


def remind(credentials: Credentials, exposure: str | None, now: float) -> None:
    """Warn of a server that others reach without TLS (`exposure`), and of a certificate that ends soon."""
    if exposure is not None:
        log.warning("%s", exposure, extra=event("open_to_all"))
    sentence = ending(credentials, now)
    if sentence is not None:
        log.warning("%s", sentence, extra=event("certificate_ends"))


async def remind_daily(credentials: Credentials, exposure: str | None) -> None:
    """Warn now and every day, until cancelled."""
    while True:
        remind(credentials, exposure, time.time())
        await asyncio.sleep(DAY)
