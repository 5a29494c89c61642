"""A long log in parts: each is what a browser holds at once, with the past before it. Pure: entries in, JSON out."""

import json
import zlib
from typing import Any

from pslab.dashboard.past import Before
from pslab.dashboard.recording import LISTS, Batch, Recorder
from pslab.runs.log import Line

# Entries of a part.
PART = 40_000


class Parts:
    """Give it entries in order, and say `seen` before you ask. Parts that are full never change."""

    def __init__(self, size: int = PART) -> None:
        self.count = 0
        # From which second to which each part goes.
        self.spans: list[list[float]] = []
        self._size = size
        self._recorder = Recorder()
        self._before = Before()
        self._full: list[bytes] = []
        self._open: Batch = {name: [] for name in LISTS}
        self._newest = ""
        # The newest update's row.
        self._final: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def workers(self) -> list[str]:
        return self._recorder.workers

    def see(self, entry: Line) -> None:
        # Only now: a part that is full is closed by the entry after it, so no part is empty.
        if self.count and self.count % self._size == 0:
            self._close()
        self._recorder.see(entry)
        self.count += 1

    def seen(self) -> None:
        """Take in what `see` was given."""
        batch = self._recorder.take()
        for name in LISTS:
            self._open[name] += batch.pop(name, [])
        self._open |= batch
        self._final = self._open["updates"][-1] if self._open["updates"] else self._final
        begin = self.spans[len(self._full) - 1][1] if self._full else 0.0
        self.spans[len(self._full) :] = [[begin, self._recorder.seconds]]
        self._newest = ""

    def _close(self) -> None:
        self.seen()
        self._full.append(zlib.compress(self._text().encode(), 1))
        self._before.add(self._open)
        self._open = {name: [] for name in LISTS}

    def _text(self) -> str:
        body = {name: values for name, values in self._open.items() if name not in ("workers", "evals")}
        return json.dumps({**body, "past": self._before.to_json()}, allow_nan=False, separators=(",", ":"))

    def body(self, number: int) -> str:
        """A JSON object: the entries as `Recorder` has them, and `past`."""
        if number < len(self._full):
            return zlib.decompress(self._full[number]).decode()
        self._newest = self._newest or self._text()
        return self._newest

    def whole(self) -> dict[str, Any]:
        """What is true of the whole run."""
        return {
            "workers": self.workers,
            "parts": len(self),
            "spans": self.spans,
            "entries": self.count,
            "end": self._recorder.seconds,
            "final": self._final,
        }
