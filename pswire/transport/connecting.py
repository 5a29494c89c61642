"""Creation of gRPC channels and ports, in this one place, so that protection is uniform.

A test finds every other use of gRPC's own functions for it.
"""

import threading
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import message_factory

from pswire.security.credentials import Credentials
from pswire.security.identity import Identity
from pswire.transport.channels import Options
from pswire.v1 import coordinator_pb2, shard_pb2


def open_channel(address: str, options: Options, credentials: Credentials) -> grpc.Channel:
    """Open a channel for any thread. With TLS, calls that begin after a change of the files use the new ones."""
    if not credentials.encrypted:
        return grpc.insecure_channel(address, options)
    return RenewedChannel(address, options, credentials)


def open_aio_channel(address: str, options: Options, credentials: Credentials) -> grpc.aio.Channel:
    """Open a channel for one event loop. Its calls need `credentials.metadata`."""
    if not credentials.encrypted:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, _client(credentials.identity), options)


class Stub:
    """The methods of a service as attributes, like gRPC's generated stubs."""

    def __init__(self, channel: Any, service: Any) -> None:
        for method in service.methods:
            asked, answered = (
                "stream" if streams else "unary"
                for streams in (method.client_streaming, method.server_streaming)
            )
            make = getattr(channel, f"{asked}_{answered}")
            request = message_factory.GetMessageClass(method.input_type).SerializeToString
            reply = message_factory.GetMessageClass(method.output_type).FromString
            setattr(self, method.name, make(f"/{service.full_name}/{method.name}", request, reply))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no method {name!r}")


def stub_of(channel: grpc.Channel | grpc.aio.Channel, service: str = "Coordinator") -> Stub:
    """Return a stub for the "Coordinator" or the "Shard" at the other end of `channel`."""
    file = coordinator_pb2 if service == "Coordinator" else shard_pb2
    return Stub(channel, file.DESCRIPTOR.services_by_name[service])


def add_port(server: grpc.aio.Server, address: str, credentials: Credentials) -> int:
    """Make `server` listen. Return the port, 0 for none. Raises RuntimeError, as gRPC does."""
    if not credentials.encrypted:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, _server(credentials))


def _client(identity: Identity) -> grpc.ChannelCredentials:
    if not identity.cert:
        return grpc.ssl_channel_credentials(identity.ca)
    return grpc.ssl_channel_credentials(identity.ca, identity.key.reveal(), identity.cert)


def _server(credentials: Credentials) -> grpc.ServerCredentials:
    """Return credentials that gRPC queries for every new connection; existing connections continue."""
    shown = credentials.identity

    # None means no change, which the type stubs of gRPC do not express.
    def newer() -> Any:
        nonlocal shown
        found = credentials.identity
        if found is shown:
            return None
        shown = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown), newer, require_client_authentication=credentials.mutual
    )


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key.reveal(), identity.cert)], identity.ca)


class RenewedChannel(grpc.Channel):
    """A channel over TLS that follows changes of the certificate files.

    gRPC's own channel keeps the files that it was made with, so each change makes a new channel. Calls in progress stay
    on the previous channel; the one before that is closed. `_one` guards the channels.
    """

    def __init__(self, address: str, options: Options, credentials: Credentials) -> None:
        self._address, self._options, self._credentials = address, options, credentials
        self._one = threading.Lock()
        self._identity = credentials.identity
        self._channels = [self._made()]
        self._closed = False

    def _made(self) -> grpc.Channel:
        return grpc.secure_channel(self._address, _client(self._identity), self._options)

    def newest(self) -> grpc.Channel:
        identity = self._credentials.identity
        with self._one:
            if identity is not self._identity and not self._closed:
                self._identity = identity
                self._channels.append(self._made())
            before = self._channels[:-2]
            del self._channels[:-2]
            found = self._channels[-1]
        for channel in before:
            channel.close()
        return found

    def _method(self, make: Callable[[grpc.Channel], Any]) -> "_Method":
        return _Method(self, make, self._credentials.metadata)

    def unary_unary(self, method: str, *more: Any, **named: Any) -> Any:
        return self._method(lambda channel: channel.unary_unary(method, *more, **named))

    def unary_stream(self, method: str, *more: Any, **named: Any) -> Any:
        return self._method(lambda channel: channel.unary_stream(method, *more, **named))

    def stream_unary(self, method: str, *more: Any, **named: Any) -> Any:
        return self._method(lambda channel: channel.stream_unary(method, *more, **named))

    def stream_stream(self, method: str, *more: Any, **named: Any) -> Any:
        return self._method(lambda channel: channel.stream_stream(method, *more, **named))

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        self.newest().subscribe(callback, try_to_connect=bool(try_to_connect))

    def unsubscribe(self, callback: Any) -> None:
        for channel in self._channels:
            channel.unsubscribe(callback)

    def close(self) -> None:
        with self._one:
            self._closed = True
            channels = list(self._channels)
        for channel in channels:
            channel.close()

    def __enter__(self) -> "RenewedChannel":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Method:
    """One method on the newest channel, with the process's token if it has one."""

    def __init__(
        self,
        channel: RenewedChannel,
        make: Callable[[grpc.Channel], Any],
        metadata: tuple[tuple[str, str], ...],
    ) -> None:
        self._channel, self._make, self._metadata = channel, make, metadata
        # Replaced as a whole, so that any thread may read it.
        self._on: tuple[grpc.Channel, Any] | None = None

    def __call__(self, *request: Any, **named: Any) -> Any:
        return self._newest()(*request, **self._known(named))

    def future(self, *request: Any, **named: Any) -> Any:
        return self._newest().future(*request, **self._known(named))

    def _newest(self) -> Any:
        channel, on = self._channel.newest(), self._on
        if on is None or on[0] is not channel:
            on = self._on = (channel, self._make(channel))
        return on[1]

    def _known(self, named: dict[str, Any]) -> dict[str, Any]:
        if self._metadata:
            named["metadata"] = (*(named.get("metadata") or ()), *self._metadata)
        return named
