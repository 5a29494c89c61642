"""Creation of gRPC channels and ports, in this one place, so that protection is uniform.

A test finds every other use of gRPC's own functions for it.
"""

import socket
from typing import Any, Final

import grpc
from google.protobuf import message_factory

from pswire.addresses import Address
from pswire.security.credentials import Credentials
from pswire.security.identity import Identity
from pswire.transport.channels import Options
from pswire.v1 import coordinator_pb2, shard_pb2

#: Seconds that a system may take to refuse a connection, or accept it.
LISTENING: Final = 0.8


def open_channel(address: str, options: Options, credentials: Credentials) -> grpc.Channel:
    """Open a channel for any thread. It keeps the certificate that it is made with."""
    if not credentials.encrypted:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, _client(credentials.identity), options)


def open_aio_channel(address: str, options: Options, credentials: Credentials) -> grpc.aio.Channel:
    """Open a channel for one event loop. It keeps the certificate that it is made with."""
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
        _configuration(shown), newer, require_client_authentication=True
    )


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key.reveal(), identity.cert)], identity.ca)


def nobody_listens(address: Address) -> bool:
    """Return whether the system at the address refuses connections: no process has the port. False for silence."""
    try:
        with socket.create_connection((address.host, address.port), LISTENING):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
