"""A live cluster for any number of viewers: server 0 is asked every half second while anybody looks.

Messages queued for a viewer are bounded: one that falls behind gets the whole state again.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pslab.dashboard.history import History
from pslab.dashboard.runs import RunPage
from pslab.display.status import INSECURE, headline_rows, status_json
from pslab.display.tables import TITLES, figures_of, table_row
from pslab.launch.status_client import StatusError
from pslab.runs.log import Line, read_log
from pslab.runs.summary import Metric
from pswire.v1 import coordinator_pb2 as pb

# (first entry, first evaluation) -> status.
Ask = Callable[[int, int], pb.StatusReply]

# Seconds of the log's clock that a new viewer gets in detail.
SECONDS = 120.0
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
        self._history = History(SECONDS)
        self._next = 0
        self._skipped = 0
        self._status: dict[str, Any] | None = None
        self._gone = ""
        # Number of known evaluations; version and metrics of the newest.
        self._evaluated = 0
        self._newest: tuple[int, dict[str, float]] = -1, {}
        # How the job ended; None if it goes on or that is unknown.
        self._end: dict[str, Any] | None = None
        # Whether that is from the run folder, which is read once.
        self._from_folder = False

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
                if (
                    self._local
                    and not self._from_folder
                    and self._status is not None
                    and self._status["folder"]
                ):
                    folder = Path(self._status["folder"])
                    self._take_end(await asyncio.to_thread(RunPage.of_job, folder, self._job))
                await asyncio.sleep(PAUSE)
                continue
            behind = self.take(reply)
            # Catch up with an existing log faster, but leave time to process it.
            await asyncio.sleep(INTERVAL / 5 if behind else INTERVAL)

    def take(self, reply: pb.StatusReply) -> bool:
        """Process an answer and post it. Returns True if more entries are available at once."""
        self._gone, self._from_folder = "", False
        if reply.job != self._job:
            asked = self._next
            self._begin(reply.job)
            if asked:
                # The answer starts behind an entry of the previous job: ask again from the first entry.
                return True
        entries, recorder = list(reply.entries), self._history.recorder
        if entries:
            self._skipped += max(reply.entries_from - self._next, 0)
            self._next = reply.entries_from + len(entries)
        for entry in read_log(entries):
            if isinstance(entry, Line):
                recorder.see(entry)
        for evaluation in reply.evaluations:
            if evaluation.number >= self._evaluated:
                self._evaluated = evaluation.number + 1
                self._newest = evaluation.version, dict(evaluation.metrics)
                found = Metric(evaluation.seconds, evaluation.version, "eval", metrics=self._newest[1])
                recorder.measured(found)
        stop = recorder.stop
        if reply.phase == "stopped" and stop is not None:
            version, metrics = self._newest
            final = metrics if version == stop["version"] else {}
            self._end = {**stop, "metrics": final, "folder": reply.folder}
        batch = self._history.keep()
        status = status_json(reply)
        for name in ("entries", "entries_from", "evaluations"):
            status.pop(name)
        status["headline"] = headline_rows(reply)
        status["tables"] = {"titles": TITLES, "rows": list(map(table_row, figures_of(reply)))}
        status["exposed"] = INSECURE if reply.security == "insecure" else ""
        started, self._status = self._status is None, status
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

    def _take_end(self, found: RunPage | None) -> None:
        """Show a job that has ended as its run folder has it."""
        if found is None:
            return
        self._from_folder = True
        if found.end == self._end:
            return
        self._history, self._next, self._end = found.history, found.entries, found.end
        self._post("whole", self._whole())

    def _whole(self) -> str:
        assert self._status is not None
        whole = {
            **self._history.to_json(),
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
