"""Refusals of requests, for all parts of the service."""

import grpc


class Refused(Exception):
    """A refusal of a request, with a gRPC status code; nothing has changed."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def afresh(self) -> "Refused":
        """Return the same refusal without its traceback, whose frames have what was refused."""
        return Refused(self.code, self.message)


class MembershipOver(Refused):
    """A refusal of a request from a former member, whose stream then releases what it holds."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.ABORTED, message)


def invalid(message: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, message)


def precondition(message: str) -> Refused:
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, message)
