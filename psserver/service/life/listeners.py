"""What a server listens on: gRPC, the port for payloads, the port for metrics."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc

from psserver.service.guard.authorization import Authorizer
from psserver.service.guard.table import CALLS
from psserver.service.job.job import Job
from psserver.service.life.settings import ServerSettings
from psserver.service.net.listening import BindError, listen
from psserver.service.net.sockets import SocketListener
from psserver.service.net.streams import Stream
from psserver.service.store.host import ShardHost
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.patience import transfer
from pswire.transport.channels import SERVER_OPTIONS
from pswire.transport.framed_socket import SocketError

if TYPE_CHECKING:
    from psserver.metrics.endpoint import Metrics

log = logging.getLogger("ps-server")


class Listeners:
    """Of one server. The loop's thread owns it. `exchange`: the method that sockets have."""

    def __init__(
        self,
        settings: ServerSettings,
        host: ShardHost,
        exchange: Callable[[Stream], Awaitable[None]],
        authorizer: Authorizer,
    ) -> None:
        self._settings, self._host = settings, host
        self.grpc: grpc.aio.Server | None = None
        self.metrics: Metrics | None = None
        self.sockets = SocketListener(
            exchange,
            host.owner,
            settings.bind,
            settings.process.data_port,
            host.watch,
            self.patience,
            settings.credentials.server_contexts,
            authorizer.refused,
        )
        host.memory.ledger.watch(
            lambda: self.sockets.received, lambda: host.held_by(self.sockets.holders(), "frames")
        )

    def patience(self, nbytes: int) -> float:
        """Seconds that a peer may take over so much."""
        return transfer(nbytes, self._settings.terms.worker_timeout)

    def bind_grpc(self) -> tuple[grpc.aio.Server, Address]:
        """Its address, with the port that it has. Within the loop. Raises BindError."""
        settings = self._settings
        options = SERVER_OPTIONS(settings.terms.worker_timeout, liveness=settings.task_index == 0)
        served = self.grpc = grpc.aio.server(options=options, maximum_concurrent_rpcs=int(CALLS.value))
        own = settings.hosts[settings.task_index]
        port = listen(served, Address(settings.bind, own.port), settings.credentials)
        return served, Address(own.host, port)

    def open_data_port(self) -> None:
        """One that was asked for is opened at once, or there is no server; any other when a worker first needs it."""
        if self._settings.process.data_port:
            try:
                self.sockets.open_port()
            except SocketError as error:
                raise BindError(f"--data-port: {error}; is another process using it?") from error

    def open_metrics(self, name: str, job: Job | None, authorizer: Authorizer) -> None:
        """Raises BindError. Imported here: prometheus_client is an extra, and costs a server its memory."""
        port = self._settings.metrics_port
        if port is None:
            return
        from psserver.metrics.endpoint import Metrics

        bind, credentials = self._settings.bind, self._settings.credentials
        try:
            self.metrics = Metrics(
                bind, port, {name.lower()}, self._host, job, credentials=credentials, authorizer=authorizer
            )
        except OSError as error:
            raise BindError(f"--metrics-port {port}: {error.strerror or error}") from error

    def write_metrics(self) -> None:
        """The last numbers: a scrape may come too late for them."""
        if self.metrics is not None and self._settings.out is not None:
            try:
                self.metrics.write(self._settings.out / "metrics.prom")
            except OSError as error:
                told = event("metrics_not_written")
                log.error("metrics.prom was not written: %s", error.strerror or error, extra=told)
