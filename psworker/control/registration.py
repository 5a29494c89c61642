"""Join: what a worker says it is, and what the servers answer."""

import secrets
from dataclasses import dataclass

import grpc

from pswire.generations import follows
from pswire.model.plan import Plan
from pswire.model.specs import specs_to_wire
from pswire.transport.codecs import Codec
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.backoff import Backoff, bounded, insist
from psworker.errors import Refused
from psworker.work import WorkUnits


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of what a process trains, one after another. `stays`: it may not be the last one. `of`: the job of which
    this is a further phase. `after`: the job behind which this one begins another."""

    stays: bool = False
    of: str = ""
    after: str = ""


FIRST = Phase()


class Registration:
    """What one session says at Join. `session` is the secret by which the servers know it again.

    Used by the thread that makes the session, for the first `join`, and from then on by the session's own thread only.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        plan: Plan,
        codec: Codec,
        name: str | None,
        task_index: int | None,
        backoff: Backoff,
        optimizer: str,
        work: WorkUnits | None = None,
        epochs: int = 1,
        phase: Phase = FIRST,
    ) -> None:
        """`optimizer`: the one that is expected, as JSON, or empty. `work`: the data is dealt, for so many epochs."""
        self.session = secrets.token_hex(16)
        self._plan = plan
        self._codec = codec
        self._name, self._task_index = name, task_index
        self._optimizer = optimizer
        self._backoff = backoff
        self._work = None if work is None else _dealt(work, epochs)
        self._stub = stub_of(channel)
        # Of the newest answer: other servers on this address are none of ours.
        self._job, self._phase = phase.of, phase

    def join(self, used: int = 0) -> pb.JoinReply:
        """For the first time, or again: for the same name and part of the data. `used`: behind the last batch that this
        session has committed, where it does not go back. Raises Refused, Unreachable."""
        request = pb.JoinRequest(
            worker=self._name or "",
            session=self.session,
            variables=specs_to_wire(self._plan.variables),
            plan=self._plan.fingerprint,
            servers=len(self._plan.shards),
            wire_dtype=self._codec.number,
            task_index=self._task_index,
            optimizer=self._optimizer,
            job=self._job,
            work=self._work,
            stays=self._phase.stays,
            after="" if self._job else self._phase.after,
            used=used,
        )
        reply: pb.JoinReply = bounded(insist(lambda: self._stub.Join(request), self._backoff))
        if self._job and reply.job != self._job and not follows(reply.job, self._job):
            # Nothing of their answer is taken up.
            raise Refused(f"the servers started another job ({reply.job}, before {self._job})")
        self._backoff.reset()
        self._job = reply.job
        self._name, self._task_index = reply.worker, reply.worker_index
        return reply


def _dealt(work: WorkUnits, epochs: int) -> pb.WorkUnits:
    return pb.WorkUnits(
        units=work.count, epochs=epochs, batches=work.batches_each, data=str(work), apart=work.apart
    )
