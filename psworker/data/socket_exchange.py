"""Exchange with a server over a plain socket, for as long as a stream of gRPC bears witness."""

import grpc

from pswire.transport.framed_socket import FramedSocket, LineError, Parts
from pswire.transport.frames import Message
from psworker.data.exchange import GrpcStream

CODES = {code.value[0]: code for code in grpc.StatusCode}


class LineBroken(grpc.RpcError):
    """Why a line is over, in the words of gRPC: it is treated as a stream of gRPC that ended so."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class LineStream:
    """A `Stream` that breaks with `witness`: a socket alone would not tell that the server is stopped or stuck,
    which gRPC finds out by its pings."""

    def __init__(self, line: FramedSocket, witness: GrpcStream) -> None:
        self._line = line
        witness.when_over(self._line.cut)

    def send(self, message: Parts) -> None:
        try:
            self._line.send(message)
        except LineError as error:
            raise LineBroken(grpc.StatusCode.UNAVAILABLE, str(error)) from error

    def receive(self) -> Message | None:
        try:
            frame = self._line.receive()
        except LineError as error:
            raise LineBroken(grpc.StatusCode.UNKNOWN, str(error)) from error
        if frame is None:
            raise LineBroken(grpc.StatusCode.UNAVAILABLE, "the line to the server is cut")
        message, code = frame
        if code:
            raise LineBroken(
                CODES.get(code, grpc.StatusCode.UNKNOWN), bytes(message).decode(errors="replace")
            )
        return message

    def close(self) -> None:
        self._line.close()
