"""Clients of the coordinator's status: for one question, and for repeated ones in a thread."""

import json
import threading
from collections.abc import Mapping, Sequence

import grpc

from pslab.launch.events import EventQueue, StatusAnswer, StatusFailure
from pswire.addresses import AddressError, parse_address
from pswire.bounds import BoundError, check
from pswire.exits import ExitCode
from pswire.logs.lines import escaped
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.probe import find_problem
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.connecting import open_channel, stub_of
from pswire.transport.failures import reason
from pswire.v1 import coordinator_pb2 as pb

# Seconds between two requests.
INTERVAL = 0.25
# Characters of a sentence at most.
SENTENCE = 2000


class StatusError(OSError):
    """The coordinator did not answer; the message names the address and what to check. `code`: exit code."""

    code = ExitCode.UNREACHABLE


class StatusUntrusted(StatusError):
    """One end does not trust the other, or does not use TLS."""

    code = ExitCode.UNTRUSTED


class ChangeRefused(StatusError):
    """The job refused a change of its policy, for the reason in the text."""

    code = ExitCode.USAGE


_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class StatusClient:
    """A client of one coordinator. Close it when done."""

    def __init__(self, address: str, timeout: float = 5.0, credentials: Credentials = NO_TLS) -> None:
        """`timeout`: seconds to wait for each answer."""
        self._address, self._timeout, self._credentials = address, timeout, credentials
        self._channel = open_channel(address, CHANNEL_OPTIONS(max(timeout, 1.0)), credentials)
        self._stub = stub_of(self._channel)

    def ask(self, entries_from: int | None = None, evaluations_from: int = 0) -> pb.StatusReply:
        """Return the status; with `entries_from`, also the decision log and evaluations from those numbers on.

        Raises StatusError.
        """
        request = pb.StatusRequest(entries_from=entries_from, evaluations_from=evaluations_from)
        try:
            return printable(self._stub.Status(request, timeout=self._timeout))
        except grpc.RpcError as error:
            raise self._explained(error) from error
        except BoundError as error:
            raise StatusError(f"{self._address} is no ps-server: its answer is malformed: {error}") from error

    def note(self, text: str) -> None:
        """Append a remark to the job's decision log. Raises StatusError."""
        try:
            self._stub.Note(pb.NoteRequest(text=text), timeout=self._timeout)
        except grpc.RpcError as error:
            raise self._explained(error) from error

    def change_policy(self, name: str, knobs: Mapping[str, object], why: str, rate: float = 0.0) -> str:
        """Have another policy take over; return when it does, as a sentence. Raises StatusError; ChangeRefused.

        `rate`: factor of the job's learning rate from then on; 0: as it is.
        """
        request = pb.ChangePolicyRequest(name=name, knobs=json.dumps(knobs), why=why, rate=rate)
        try:
            reply = self._stub.ChangePolicy(request, timeout=self._timeout)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
                raise ChangeRefused(escaped(str(error.details()), SENTENCE)) from error
            raise self._explained(error) from error
        return escaped(reply.effect, SENTENCE)

    def _explained(self, error: grpc.RpcError) -> StatusError:
        if error.code() in _DENIED:
            return StatusUntrusted(f"{self._address}: {reason(error)}")
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            problem = self._problem()
            if problem:
                return StatusUntrusted(problem)
        return StatusError(_explain(self._address, self._timeout, error))

    def _problem(self) -> str:
        """Return what is wrong with TLS; empty if nothing."""
        try:
            found = find_problem(parse_address(self._address), self._credentials)
        except AddressError:
            return ""
        return "" if found is None or found.passing else found.sentence

    def close(self) -> None:
        self._channel.close()


def printable(reply: pb.StatusReply) -> pb.StatusReply:
    """Escape the sentences of a reply in place. Raises BoundError for a field beyond its bound."""
    check(reply)
    reply.note = escaped(reply.note, SENTENCE)
    reply.change = escaped(reply.change, SENTENCE)
    reply.folder = escaped(reply.folder, SENTENCE)
    for worker in reply.workers:
        worker.waiting_for = escaped(worker.waiting_for, SENTENCE)
    return reply


def _explain(address: str, timeout: float, error: grpc.RpcError) -> str:
    code = error.code()
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return f"{address} hosts no coordinator: expected the server with task index 0"
    if code == grpc.StatusCode.UNAVAILABLE:
        return f"nothing listens on {address}, or it is no ps-server: {reason(error)}"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{address} gave no status within {timeout:g} s"
    return f"{address} answered {code.name}: {reason(error)}"


class StatusPoller:
    """A thread that asks about four times a second and puts the answers into `events`. It asks the first address, and
    the next one when that fails."""

    def __init__(
        self, addresses: Sequence[str], events: EventQueue, credentials: Credentials = NO_TLS
    ) -> None:
        self._clients = [StatusClient(each, timeout=1.0, credentials=credentials) for each in addresses]
        self._events = events
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when no request is under way."""
        self._stopped.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            try:
                self._events.put(StatusAnswer(self._clients[0].ask()))
            except StatusError as error:
                self._clients.append(self._clients.pop(0))
                self._events.put(StatusFailure(str(error)))
            self._stopped.wait(INTERVAL)
