"""A live cluster for any number of viewers: server 0 is asked every half second while anybody looks.

Messages queued for a viewer are bounded: one that falls behind gets the whole state again.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pslab.dashboard.past import Past
from pslab.dashboard.recording import Batch, Recorder
from pslab.dashboard.runs import RunRest, rest_of
from pslab.display.status import INSECURE, headline_rows, status_json
from pslab.display.tables import TITLES, figures_of, table_row
from pslab.launch.status_client import StatusError
from pslab.runs.folder import Metric
from pslab.runs.log import Line, read_log
from pswire.v1 import coordinator_pb2 as pb

# (first entry, first evaluation) -> status.
Ask = Callable[[int, int], pb.StatusReply]

# Detailed past that a new viewer gets: seconds of the log's clock, and rows of lists.
SECONDS, ROWS = 120.0, 60_000
# Limits: messages queued for one viewer, and viewers.
BEHIND, VIEWERS = 8, 64
# Seconds between two questions. This rate costs even a small job little of its pace.
INTERVAL = 0.5
# Seconds between two attempts when the server does not answer.
PAUSE = 1.0

Message = tuple[str, str]


class TooMany(Exception):
    """The limit of viewers is reached."""


class Observer:
    """Polls a cluster and distributes its state. Use it within one event loop.

    `ask` blocks; one task calls it in a thread while there are viewers. `local`: the server and its run folder are on
    this machine, so that the end of the log can be read there once the server is gone.
    """

    def __init__(self, ask: Ask, *, local: bool = False) -> None:
        self._ask, self._local = ask, local
        self._viewers: set[asyncio.Queue[Message]] = set()
        self._task: asyncio.Task[None] | None = None
        self._begin("")

    def _begin(self, job: str) -> None:
        """Forget everything about the previous job."""
        self._job = job
        self._recorder = Recorder()
        self._next = 0
        self._skipped = 0
        self._recent: deque[tuple[float, int, Batch]] = deque()
        self._rows = 0
        self._past = Past()
        self._status: dict[str, Any] | None = None
        self._gone = ""
        # Number of known evaluations; version and metrics of the newest.
        self._evaluated = 0
        self._newest: tuple[int, dict[str, float]] = -1, {}
        # How the job ended; None if it goes on or that is unknown.
        self._end: dict[str, Any] | None = None

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    async def messages(self) -> AsyncIterator[Message]:
        """Yield ("whole" | "frame" | "gone", JSON) for one viewer, without end. Raises TooMany."""
        if len(self._viewers) >= VIEWERS:
            raise TooMany(f"{VIEWERS} pages show this cluster already; close one of them")
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
                    # Between two jobs there is no status; the next answer is posted as a whole.
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
            # A full queue is replaced by the whole state when it is read again.
            if not queue.full():
                queue.put_nowait((kind, text))

    async def _watch(self) -> None:
        while True:
            try:
                reply = await asyncio.to_thread(self._ask, self._next, self._evaluated)
            except StatusError as error:
                self._gone = str(error)
                self._post("gone", json.dumps({"reason": self._gone}))
                if self._local and self._status is not None and self._status["folder"]:
                    folder = Path(self._status["folder"])
                    self._take_end(await asyncio.to_thread(rest_of, folder, self._job, self._next))
                await asyncio.sleep(PAUSE)
                continue
            behind = self.take(reply)
            # Catch up with an existing log faster, but leave time to process it.
            await asyncio.sleep(INTERVAL / 5 if behind else INTERVAL)

    def take(self, reply: pb.StatusReply) -> bool:
        """Process an answer and post it. Returns True if more entries are available at once."""
        self._gone = ""
        if reply.job != self._job:
            asked = self._next
            self._begin(reply.job)
            if asked:
                # The answer starts behind an entry of the previous job: ask again from the first entry.
                return True
        entries = list(reply.entries)
        if entries:
            self._skipped += max(reply.entries_from - self._next, 0)
            self._next = reply.entries_from + len(entries)
        for entry in read_log(entries):
            if isinstance(entry, Line):
                self._recorder.see(entry)
        for evaluation in reply.evaluations:
            if evaluation.number >= self._evaluated:
                self._evaluated = evaluation.number + 1
                self._newest = evaluation.version, dict(evaluation.metrics)
                found = Metric(evaluation.seconds, evaluation.version, "eval", metrics=self._newest[1])
                self._recorder.measured(found)
        stop = self._recorder.stop
        if reply.phase == "stopped" and stop is not None:
            version, metrics = self._newest
            final = metrics if version == stop["version"] else {}
            self._end = {**stop, "metrics": final, "folder": reply.folder}
        batch = self._recorder.take()
        status = status_json(reply)
        for name in ("entries", "entries_from", "evaluations"):
            status.pop(name)
        status["headline"] = headline_rows(reply)
        status["tables"] = {"titles": TITLES, "rows": list(map(table_row, figures_of(reply)))}
        status["exposed"] = INSECURE if reply.security == "insecure" else ""
        started, self._status = self._status is None, status
        self._keep(batch)
        if started:
            self._post("whole", self._whole())
        else:
            frame = {
                **batch,
                "status": status,
                "skipped": self._skipped,
                "now": reply.seconds,
                "ended": self._end,
            }
            self._post("frame", json.dumps(frame, allow_nan=False, separators=(",", ":")))
        return len(entries) >= 1000

    def _take_end(self, rest: RunRest | None) -> None:
        """Process the end of a job that was read from its run folder."""
        if rest is None or rest.end == self._end:
            return
        for entry in rest.entries:
            self._next = entry.i + 1
            self._recorder.see(entry)
        for metric in rest.evaluations[self._evaluated :]:
            self._evaluated += 1
            self._recorder.measured(metric)
        self._end = rest.end
        self._keep(self._recorder.take())
        self._post("whole", self._whole())

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
            "ended": self._end,
        }
        return json.dumps(whole, allow_nan=False, separators=(",", ":"))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
