"""How a request is refused, whichever part of the service finds out."""

import grpc


class Refused(Exception):
    """An RPC that cannot be served; nothing has changed."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class MembershipOver(Refused):
    """The request of one that was a member; what its stream holds of the server is given back."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.ABORTED, message)


def invalid(message: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, message)


def precondition(message: str) -> Refused:
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, message)
