"""Join: a session's request, and its identity by the newest answer."""

import functools
import logging
import os
import secrets
import socket
from dataclasses import dataclass, replace
from typing import Any

import grpc

from pswire.generations import follows
from pswire.logs.events import event
from pswire.logs.lines import escaped
from pswire.messages import specs_to_wire
from pswire.model.plan import Plan
from pswire.model.tables import tables_to_json
from pswire.transport.connecting import stub_of
from pswire.transport.wire import Wire, number_of
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.backoff import Backoff, bounded, insist
from psworker.engine import ClientEngine
from psworker.errors import Refused
from psworker.local import PLAIN
from psworker.work import WorkUnits

log = logging.getLogger("ps-worker")

HOST_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Phase:
    """One of several trainings of a process, one after another.

    `stays`: another may follow. `job`: of the phase before. `begins_next`: that job ends, and this phase begins the
    next one; otherwise it continues the job.
    """

    stays: bool = False
    job: str = ""
    begins_next: bool = False


FIRST = Phase()


class Registration:
    """Makes the Join calls of one session, whose secret is `session`.

    The thread that opens the session makes the first call, and the session's own thread all others.
    """

    def __init__(
        self, channel: grpc.Channel, backoff: Backoff, plan: Plan, wire: Wire, *, session: str, **facts: Any
    ) -> None:
        """`facts`: other fields of a JoinRequest."""
        self.session, self.stub, self._backoff = session, stub_of(channel), backoff
        self._request = pb.JoinRequest(
            session=session,
            variables=specs_to_wire(plan.variables),
            plan=plan.fingerprint,
            servers=len(plan.shards),
            wire_dtype=wire.up.number,
            deltas=number_of(wire.deltas),
            tables=tables_to_json(plan.tables),
            **facts,
        )

    def join(self, used: int = 0) -> pb.JoinReply:
        """Join, or join again with the same name and part of the data.

        `used`: the batch after the last one that this session committed, if it does not go back in its data. Raises
        Refused, Unreachable.
        """
        request = self._request
        request.used, request.process, request.place = used, token(), place()
        reply: pb.JoinReply = bounded(insist(lambda: self.stub.Join(request), self._backoff))
        job = "" if request.begins_next else request.job
        if job and reply.job != job and not follows(reply.job, job):
            # Nothing of the answer is used.
            raise Refused(f"the servers started another job ({reply.job}, before {job})")
        # By the newest answer: other servers at this address are not followed.
        request.job, request.begins_next = reply.job, False
        request.worker, request.task_index = reply.worker, reply.worker_index
        return reply


def work_units(work: WorkUnits, epochs: int) -> pb.WorkUnits:
    """Return the message of work that the coordinator deals, for `epochs` epochs."""
    return pb.WorkUnits(
        units=work.count,
        epochs=epochs,
        batches=work.batches_each,
        data=str(work),
        apart=work.apart,
        last=work.batches_last,
    )


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The job and this worker's place in it, as of the newest Join.

    `job`, `worker`: their names. `rank`: this worker's number and part of the data, 0 to `size` - 1, higher for workers
    that join later. `size`: the number of workers that the job was started for. `seed`: the job's, the same on every
    worker. `next_batch`: the first batch that no incarnation of this worker has committed. `learning_rate`: the job's
    present one; None if no worker can set it, because it follows a schedule or began with 0, or because the policy
    tolerates bad workers. `local_rule`: what the policy wants done between pull and push, "gradient" or a rule of
    `psworker.local`. `incarnation`: how often a worker of this name joined before; it rises when the servers had given
    this worker up. `membership`: how often this session has become another member. `chief`: the worker that validates
    and writes files for all; empty: worker 0. `phases_over`: phases of the job that are over. `phase_batch`: the first
    batch of this worker's data in the present phase.
    """

    job: str
    worker: str
    rank: int
    size: int
    seed: int
    next_batch: int
    learning_rate: float | None
    local_rule: str
    incarnation: int
    membership: int
    chief: str
    phases_over: int
    phase_batch: int


class JoinedMember:
    """The member that the session is since the newest Join. The session's thread updates it; any thread may read it.

    `hello`: the first message of every stream. `info`: what the training loop sees of it. `renewals`: how often this
    session has become another member.
    """

    def __init__(self, reply: pb.JoinReply, session: str, *, numbered: bool) -> None:
        """`numbered`: commits are of batches of this worker's own data."""
        self._session, self._numbered = session, numbered
        # Whether the loop can go back to an earlier batch.
        self.goes_back = False
        self.renewals = 0
        # The batch after the last one that was committed, whether it counts or not.
        self._used = 0
        # `renewals` at the newest contribution; whether a warning has named the batch under way as lost.
        self._seen_renewals, self._warned = 0, False
        # Of the newest renewal.
        self.reason = ""
        self.take(reply)

    def take(self, reply: pb.JoinReply) -> None:
        """Become this member from now on."""
        self.reply = reply
        self.hello = pb.Hello(
            job=reply.job, worker=reply.worker, incarnation=reply.incarnation, session=self._session
        )
        # Made once, because every step looks at it.
        self.info = JobInfo(
            job=reply.job,
            worker=reply.worker,
            rank=reply.worker_index,
            size=reply.worker_count,
            seed=reply.seed,
            next_batch=reply.next_batch,
            learning_rate=reply.learning_rate if reply.HasField("learning_rate") else None,
            local_rule=reply.local_rule.name or PLAIN,
            incarnation=reply.incarnation,
            membership=self.renewals,
            chief=reply.chief,
            phases_over=reply.phase,
            phase_batch=reply.phase_batch,
        )

    def set_rate(self, rate: float | None) -> None:
        """Note the job's learning rate that a commit has set, which holds until a later Join; None: it has set none."""
        if rate is not None:
            self.info = replace(self.info, learning_rate=rate)

    def is_another(self, reply: pb.JoinReply) -> bool:
        """Whether the answer makes this session another member, which inherits nothing from the former one."""
        return (reply.job, reply.incarnation) != (self.reply.job, self.reply.incarnation)

    def used(self, engine: ClientEngine) -> int:
        """Return the batch after the last one that any membership of this session committed, for the next Join.

        0 for a loop that goes back, or whose batches have no numbers.
        """
        self._used = max(self._used, engine.position.next)
        return self._used if self._numbered and not self.goes_back else 0

    def contributed(self, batch: int, *, void: bool) -> None:
        """Note that the loop has finished with the batch. `void`: it does not count, although it was worked on."""
        renewed, warned = self.renewals != self._seen_renewals, self._warned
        self._seen_renewals, self._warned = self.renewals, False
        if not (void and renewed and self._numbered) or self.goes_back:
            return
        self._used = max(self._used, batch + 1)
        if not warned:
            log.warning(
                "batch %d, on which this worker was working, does not count and is not trained again",
                batch,
                extra=event("commits_undone", batches=0),
            )

    def renew(self, engine: ClientEngine, reply: pb.JoinReply) -> None:
        """Let the engine go on as the other member: its tickets become void, and some batches may not count."""
        restarted = reply.job != self.reply.job
        cause = ("the coordinator had given this worker up", "the servers began again from a checkpoint")
        reason = self.reason = cause[restarted]
        log.warning(
            "joined again as incarnation %d: %s",
            *(reply.incarnation, reason),
            extra=event("joined_again", incarnation=reply.incarnation, job=reply.job),
        )
        self.renewals += 1
        if not self._numbered:
            engine.renew(reason)
        elif self.goes_back:
            # Going back also recovers a batch that was read for a ticket now void, or before its ticket was granted.
            moved = restarted or engine.undone(reply.next_batch) > 0
            engine.renew(reason, reply.next_batch, again=moved)
        elif undone := engine.renew(reason, reply.next_batch):
            log.warning(
                "%s of this worker, from batch %d on, and the batch in progress do not count and are not trained again",
                *("1 committed batch" if undone == 1 else f"{undone} committed batches", reply.next_batch),
                extra=event("commits_undone", batches=undone),
            )
            self._warned = True


@functools.cache
def _token(number: int) -> str:
    return secrets.token_hex(16)


def token() -> str:
    """Return a random text, the same for all sessions of this process. A forked child is another process."""
    return _token(os.getpid())


def place() -> str:
    """Return process and host for people."""
    return f"process {os.getpid()} on host {escaped(socket.gethostname()[:HOST_LIMIT])}"
