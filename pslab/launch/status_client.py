"""Clients of the coordinator's status: for one question, and for repeated ones in a thread."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from pslab.launch.events import EventQueue, StatusAnswer, StatusFailure
from pswire.addresses import AddressError, parse_address, parse_hosts
from pswire.bounds import BoundError, check
from pswire.exits import ExitCode
from pswire.generations import Generation
from pswire.logs.lines import escaped
from pswire.model.plan import MAX_VOTERS
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.diagnosis import problem_of
from pswire.security.proof import FILE, VARIABLE, ProofError
from pswire.security.secret import Secret
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.connecting import open_channel, stub_of
from pswire.transport.failures import may_pass, reason
from pswire.transport.leader import NOT_LEADING, Leader
from pswire.transport.proven import ask_coordinator
from pswire.v1 import coordinator_pb2 as pb

# Seconds between two requests.
INTERVAL = 0.25
# Seconds that an answer may take where another server may lead meanwhile, and between two questions who does.
PATIENCE, PAUSE = 1.0, 0.05
# Characters of a sentence at most.
SENTENCE = 2000
LEADERLESS = (
    "no server leads the job: those that answer wait for a majority. Start the lost server again; of two servers, "
    "ps-lab promote has the other one go on alone"
)


class StatusError(OSError):
    """The coordinator did not answer; the message names the address and what to check. `code`: exit code."""

    code = ExitCode.UNREACHABLE


class StatusUntrusted(StatusError):
    """One end does not trust the other, or does not use TLS."""

    code = ExitCode.UNTRUSTED


class AnotherJob(StatusError):
    """Another job answers, because its server has taken the port."""


class ChangeRefused(StatusError):
    """The job refused a change, for the reason in the text."""

    code = ExitCode.USAGE


_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class StatusClient:
    """A client of one coordinator; of a job with replicas, of whichever server leads. Close it when done."""

    def __init__(
        self,
        hosts: str,
        timeout: float = 5.0,
        credentials: Credentials = NO_TLS,
        job: Callable[[], str] = lambda: "",
    ) -> None:
        """`hosts`: the coordinator's address, or those of any servers of a job with replicas. `timeout`: seconds to
        wait for each answer. `job`: the job that is asked, as far as it is known; no other one's answer is taken.
        Raises AddressError."""
        self._timeout, self._credentials, self._job = timeout, credentials, job
        # The newest generation that has answered.
        self._newest: Generation | None = None
        options = CHANNEL_OPTIONS(max(timeout, 1.0))
        self._leader = Leader(parse_hosts(hosts), lambda each: open_channel(str(each), options, credentials))
        self._stub = stub_of(self._leader)

    @property
    def address(self) -> str:
        """The server that is asked."""
        return str(self._leader.address)

    def ask(self, entries_from: int | None = None, evaluations_from: int = 0) -> pb.StatusReply:
        """Return the status; with `entries_from`, also the decision log and evaluations from those numbers on.

        Raises StatusError.
        """
        request = pb.StatusRequest(entries_from=entries_from, evaluations_from=evaluations_from)
        try:
            reply = printable(self._call("Status", request))
            self._recognise(reply.job)
            if any(each.state == "leads" for each in reply.servers):
                self._leader.add(parse_address(each.address) for each in reply.servers[:MAX_VOTERS])
            return reply
        except grpc.RpcError as error:
            raise self._explained(error) from error
        except (AddressError, BoundError) as error:
            raise StatusError(f"{self.address} is no ps-server: its answer is malformed: {error}") from error

    def _recognise(self, answered: str) -> None:
        """Raise AnotherJob unless this is the job that is asked, in a generation no older than one that answered."""
        named = escaped(answered) or "a job without a name"
        expected, got = Generation.named(self._job()), Generation.named(answered)
        if expected.job and (got.job != expected.job or got.number < expected.number):
            raise AnotherJob(
                f"{self.address} serves {named}, not {expected.name}: the server of that job has "
                "ended, and another one has taken its port"
            )
        if self._newest is not None and self._newest.follows(got):
            raise AnotherJob(
                f"{self.address} serves {named}, and the job has gone on as {self._newest.name}: an old "
                "server answers; stop it"
            )
        self._newest = got

    def recognise(self) -> None:
        """Ask which job answers, where it is known which one should. Raises StatusError, AnotherJob among them."""
        if self._job():
            self.ask()

    def _call(self, method: str, request: Any) -> Any:
        """Call a method that changes nothing: again, where another server may lead."""
        until: float | None = None
        while True:
            patience = min(self._timeout, PATIENCE) if self._leader.several else self._timeout
            try:
                return getattr(self._stub, method)(request, timeout=patience)
            except grpc.RpcError as error:
                if not may_pass(error):
                    raise
                until = until or time.monotonic() + self._timeout
                if not self._await_leader(until, slow=error.code() == grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise

    def _await_leader(self, until: float, *, slow: bool) -> bool:
        """Return whether it makes sense to ask once more. `slow`: the server that was asked may lead, and be slow."""
        while True:
            sought = self._leader.seek()
            if sought.moved:
                return True
            in_time = time.monotonic() < until
            if sought.present:
                return slow and self._leader.several and in_time
            if not sought.heard or not in_time:
                return False
            time.sleep(PAUSE)

    def _change(self, method: str, request: Any) -> Any:
        """Call a method that changes the job, once. Raises RpcError, StatusUntrusted."""
        try:
            secret = Secret() if self._credentials.encrypted else self._credentials.job_secret
            return ask_coordinator(self._leader, method, request, self._timeout, secret)
        except ProofError as error:
            raise StatusUntrusted(
                f"{self.address}: {error}: another process is there, or the secret is another job's: expected the one "
                f"in the file {FILE!r} of the run's folder, or in {VARIABLE}"
            ) from error

    def note(self, text: str) -> None:
        """Append a remark to the job's decision log. Raises StatusError."""
        self.recognise()
        self._leader.seek()
        try:
            self._change("Note", pb.NoteRequest(text=text))
        except grpc.RpcError as error:
            raise self._explained(error) from error

    def change_policy(self, name: str, knobs: Mapping[str, object], why: str, rate: float = 0.0) -> str:
        """Have another policy take over; return when it does, as a sentence. Raises StatusError; ChangeRefused.

        `rate`: factor of the job's learning rate from then on; 0: as it is.
        """
        request = pb.ChangePolicyRequest(name=name, knobs=json.dumps(knobs), why=why, rate=rate)
        self.recognise()
        self._leader.seek()
        try:
            reply = self._change("ChangePolicy", request)
        except grpc.RpcError as error:
            raise self._refused(error) or self._explained(error) from error
        return escaped(reply.effect, SENTENCE)

    def promote(self) -> int:
        """Have this server, one of two, go on alone, because the other one is dead; return its epoch. Raises
        StatusError; ChangeRefused, also if it serves another job."""
        try:
            return int(self._change("Promote", pb.PromoteRequest(job=self._job())).epoch)
        except grpc.RpcError as error:
            raise self._refused(error) or self._explained(error) from error

    @staticmethod
    def _refused(error: grpc.RpcError) -> ChangeRefused | None:
        if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
            return ChangeRefused(escaped(str(error.details()), SENTENCE))
        return None

    def _explained(self, error: grpc.RpcError) -> StatusError:
        if error.code() in _DENIED:
            return StatusUntrusted(f"{self.address}: {reason(error)}")
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            problem = problem_of(error, self._leader.address, self._credentials)
            if problem is not None and not problem.passing:
                return StatusUntrusted(problem.sentence)
            if NOT_LEADING in reason(error) or (self._leader.several and self._leader.seek().heard):
                return StatusError(LEADERLESS)
        return StatusError(_explain(self.address, self._timeout, error))

    def close(self) -> None:
        self._leader.close()


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
    """A thread that asks the coordinator about four times a second, and puts the answers into `events`.

    `hosts`: as for `StatusClient`.
    """

    def __init__(
        self,
        hosts: str,
        events: EventQueue,
        credentials: Credentials = NO_TLS,
        job: Callable[[], str] = lambda: "",
    ) -> None:
        self._client = StatusClient(hosts, timeout=1.0, credentials=credentials, job=job)
        self._events = events
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when no request is under way."""
        self._stopped.set()
        self._thread.join()
        self._client.close()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            try:
                self._events.put(StatusAnswer(self._client.ask()))
            except StatusError as error:
                self._events.put(StatusFailure(str(error)))
            self._stopped.wait(INTERVAL)
