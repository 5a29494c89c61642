"""A server of gRPC that gives one answer to everything."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message


class _Everything(grpc.GenericRpcHandler):
    def __init__(self, reply: Message) -> None:
        self._data = reply.SerializeToString()

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._data)


@contextmanager
def answering(reply: Message) -> Iterator[str]:
    """Its address."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((_Everything(reply),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
