"""A live cluster for any number of viewers: one question to server 0 every half second, while anybody looks.

What a viewer has not taken in yet is bounded: one that falls behind gets the whole picture anew.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from pslab.dashboard.past import Past
from pslab.dashboard.recording import Batch, Recorder
from pslab.display.status import INSECURE, status_json
from pslab.launch.status_poll import StatusError
from pslab.runs import log
from pslab.runs.reader import read_log
from pswire.v1 import coordinator_pb2 as pb

Ask = Callable[[int], pb.StatusReply]

# Of the log's clock, and of lists' rows: what a new viewer gets of the past in detail.
SECONDS, ROWS = 120.0, 60_000
# Messages that wait for one viewer, and viewers.
BEHIND, VIEWERS = 8, 64
# Between two questions, in seconds: a page moves twice a second, and 20 of them cost a small job little of its pace.
INTERVAL = 0.5
# Between two tries when the server does not answer, in seconds.
PAUSE = 1.0

Message = tuple[str, str]


class TooMany(Exception):
    """No more viewers are taken."""


class Observer:
    """`ask(first entry)` blocks; it is called in a thread, by one task, while there are viewers. One event loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._viewers: set[asyncio.Queue[Message]] = set()
        self._task: asyncio.Task[None] | None = None
        self._begin("")

    def _begin(self, job: str) -> None:
        """Another job: nothing of the one before is true any more."""
        self._job = job
        self._recorder = Recorder()
        self._next = 0
        self._skipped = 0
        self._recent: deque[tuple[float, int, Batch]] = deque()
        self._rows = 0
        self._past = Past()
        self._status: dict[str, Any] | None = None
        self._gone = ""

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    async def messages(self) -> AsyncIterator[Message]:
        """("whole" | "frame" | "gone", JSON), without end. Raises TooMany."""
        if len(self._viewers) >= VIEWERS:
            raise TooMany(f"{VIEWERS} pages look at this cluster already")
        queue: asyncio.Queue[Message] = asyncio.Queue(BEHIND)
        self._viewers.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            if self._status is not None:
                yield "whole", self._whole()
            while True:
                if queue.full():
                    while not queue.empty():
                        queue.get_nowait()
                    # Between two jobs there is nothing to show; the next answer is posted as a whole.
                    if self._status is not None:
                        yield "whole", self._whole()
                yield await queue.get()
        finally:
            self._viewers.discard(queue)
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _post(self, kind: str, text: str) -> None:
        for queue in self._viewers:
            # One that is full gets the whole picture when it is read again.
            if not queue.full():
                queue.put_nowait((kind, text))

    async def _watch(self) -> None:
        while True:
            try:
                reply = await asyncio.to_thread(self._ask, self._next)
            except StatusError as error:
                self._gone = str(error)
                self._post("gone", json.dumps({"reason": self._gone}))
                await asyncio.sleep(PAUSE)
                continue
            behind = self.take(reply)
            # Catching up with a log that is there already; never faster than it can be taken in.
            await asyncio.sleep(INTERVAL / 5 if behind else INTERVAL)

    def take(self, reply: pb.StatusReply) -> bool:
        """Take in an answer, and send it on. True when there are more entries to be had at once."""
        self._gone = ""
        if reply.job != self._job:
            asked = self._next
            self._begin(reply.job)
            if asked:
                # The answer is about what follows an entry of the job before: ask anew, from the first.
                return True
        entries = list(reply.entries)
        if entries:
            self._skipped += max(reply.entries_from - self._next, 0)
            self._next = reply.entries_from + len(entries)
        for entry in read_log(entries):
            if isinstance(entry, log.Entry):
                self._recorder.see(entry)
        batch = self._recorder.take()
        status = status_json(reply)
        status.pop("entries"), status.pop("entries_from")
        status["exposed"] = INSECURE if reply.security == "insecure" else ""
        started, self._status = self._status is None, status
        self._keep(batch)
        if started:
            self._post("whole", self._whole())
        else:
            frame = {**batch, "status": status, "skipped": self._skipped, "now": reply.seconds}
            self._post("frame", json.dumps(frame, allow_nan=False, separators=(",", ":")))
        return len(entries) >= 1000

    def _keep(self, batch: Batch) -> None:
        rows = sum(len(values) for values in batch.values() if isinstance(values, list))
        if not rows:
            return
        self._recent.append((batch["seconds"], rows, batch))
        self._rows += rows
        while self._recent and (self._recent[0][0] < self._recorder.seconds - SECONDS or self._rows > ROWS):
            _, rows, oldest = self._recent.popleft()
            self._rows -= rows
            self._past.add(oldest)

    def _whole(self) -> str:
        assert self._status is not None
        whole = {
            "workers": self._recorder.workers,
            "job": self._recorder.job,
            "past": self._past.to_json(),
            "recent": [batch for _, _, batch in self._recent],
            "status": self._status,
            "skipped": self._skipped,
            "now": self._status["seconds"],
            "gone": self._gone,
        }
        return json.dumps(whole, allow_nan=False, separators=(",", ":"))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
