"""Refusals of requests, for all parts of the service."""

from enum import IntEnum


class Code(IntEnum):
    """Why a request is refused: the numbers, names and meanings of gRPC's status codes."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class RequestRefused(Exception):
    """A refusal of a request; nothing has changed."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def afresh(self) -> "RequestRefused":
        """Return the same refusal without its traceback, whose frames have what was refused."""
        return RequestRefused(self.code, self.message)


class MembershipOver(RequestRefused):
    """A refusal of a request from a former member, whose stream then releases what it holds."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.ABORTED, message)


def invalid(message: str) -> RequestRefused:
    return RequestRefused(Code.INVALID_ARGUMENT, message)


def precondition(message: str) -> RequestRefused:
    return RequestRefused(Code.FAILED_PRECONDITION, message)


def aborted(message: str) -> RequestRefused:
    """Return the refusal of what a ticket has no right to any more."""
    return RequestRefused(Code.ABORTED, message)


def exhausted(message: str) -> RequestRefused:
    """Return the refusal of what there is no room for."""
    return RequestRefused(Code.RESOURCE_EXHAUSTED, message)


def denied(message: str) -> RequestRefused:
    return RequestRefused(Code.PERMISSION_DENIED, message)


def unavailable(message: str) -> RequestRefused:
    """Return the refusal of what the peer is to try again."""
    return RequestRefused(Code.UNAVAILABLE, message)
