"""Who a session is since its newest Join, and what becomes of its tickets where that is another member."""

import logging

from pswire.logs.events import event
from pswire.v1 import coordinator_pb2 as pb
from psworker.engine import ClientEngine

log = logging.getLogger("ps-worker")


class Joined:
    """What the coordinator said last. The session's thread takes an answer; any thread reads what it was.

    `hello`: who this is, the first message of every stream. `learning_rate`: the job's present one; None where no
    commit may set another. `renewals`: how often this session has become another member.
    """

    def __init__(self, reply: pb.JoinReply, session: str, *, numbered: bool) -> None:
        """`numbered`: what is committed are batches of this worker's own data."""
        self._session, self._numbered = session, numbered
        # The loop can go back to the batch that is the next one to count.
        self.goes_back = False
        self.renewals = 0
        # Behind the last batch that was committed, whether it counts or not.
        self._used = 0
        # Renewals before the newest contribution; whether it was said that what is under way is lost.
        self._renewed, self._told = 0, False
        # Of the newest renewal.
        self.reason = ""
        self.take(reply)

    def take(self, reply: pb.JoinReply) -> None:
        """It is this member from now on."""
        self.reply, self.worker_count = reply, reply.worker_count
        self.learning_rate = reply.learning_rate if reply.HasField("learning_rate") else None
        self.hello = pb.Hello(
            job=reply.job, worker=reply.worker, incarnation=reply.incarnation, session=self._session
        )

    def set_rate(self, rate: float | None) -> None:
        """A commit took `rate` along, if any: it is the job's from now on, unless a later Join says otherwise."""
        if rate is not None:
            self.learning_rate = rate

    def is_another(self, reply: pb.JoinReply) -> bool:
        """The answer makes this session another member, which remembers nothing of the one before."""
        return (reply.job, reply.incarnation) != (self.reply.job, self.reply.incarnation)

    def used(self, engine: ClientEngine) -> int:
        """Before it joins again: behind the last batch that the engine has committed, in this membership or an earlier
        one; 0 for a loop that goes back, or whose batches have no numbers."""
        self._used = max(self._used, engine.position.next)
        return self._used if self._numbered and not self.goes_back else 0

    def contributed(self, batch: int, *, void: bool) -> None:
        """The loop has done with that batch. `void`: it does not count; where that is for a loss, it is lost."""
        renewed, told = self.renewals != self._renewed, self._told
        self._renewed, self._told = self.renewals, False
        if not (void and renewed and self._numbered) or self.goes_back:
            return
        self._used = max(self._used, batch + 1)
        if not told:
            log.warning(
                "batch %d of this worker, which was under way, does not count, and is not worked on again",
                batch,
                extra=event("commits_undone", batches=0),
            )

    def renew(self, engine: ClientEngine, reply: pb.JoinReply) -> None:
        """The engine goes on as that other member: tickets are void, and some batches may not count."""
        restarted = reply.job != self.reply.job
        cause = ("the coordinator had given this worker up", "the servers began again from a checkpoint")
        reason = self.reason = cause[restarted]
        told = event("joined_again", incarnation=reply.incarnation, job=reply.job)
        log.warning("joined again as incarnation %d: %s", reply.incarnation, reason, extra=told)
        self.renewals += 1
        if not self._numbered:
            engine.renew(reason)
        elif self.goes_back:
            # Also what was read for a ticket that is void now, or before it was granted, is not lost.
            moved = restarted or engine.undone(reply.next_batch) > 0
            engine.renew(reason, reply.next_batch, again=moved)
        elif undone := engine.renew(reason, reply.next_batch):
            log.warning(
                "%s of this worker, from batch %d on, and the one under way do not count, and are not worked on again",
                *("1 committed batch" if undone == 1 else f"{undone} committed batches", reply.next_batch),
                extra=event("commits_undone", batches=undone),
            )
            self._told = True
