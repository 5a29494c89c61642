"""A run folder for the page: its log in parts that a browser holds, its waits, and what its processes printed."""

import json
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from pslab.dashboard.recording import Recorder
from pslab.dashboard.waits import waits_of
from pslab.replay.log_entries import read_steps
from pslab.runs.folder import LOGS, METRICS, Metric, Run, RunError
from pslab.runs.log import Entry, Malformed
from psserver.policies import PolicyError
from pswire.logs.events import spoken

# Entries of a part.
PART = 40_000
# Runs longer than this have no explanations of waits: asking the policy again takes 50 µs an entry.
EXPLAINED = 200_000
# Of what a process printed, the end, in bytes.
PRINTED = 200_000


class RunPages:
    """Read anew when the log has grown. Raises RunError, here and later."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self._parts: list[str] = []
        self._size = -1

    def parts(self) -> int:
        self._read()
        return len(self._parts)

    def part(self, number: int) -> str:
        """JSON: a recording of these entries, and `waits`. Raises RunError for a part that is none."""
        self._read()
        if not 0 <= number < len(self._parts):
            raise RunError(f"{self.run.path}: expected a part from 0 to {len(self._parts) - 1}, got {number}")
        return self._parts[number]

    def _read(self) -> None:
        size = self.run.log.stat().st_size
        if size == self._size:
            return
        recorder = Recorder()
        pieces: list[dict[str, Any]] = []
        metrics, count = list(self._metrics()), 0
        for entry in self._entries():
            recorder.see(entry)
            count += 1
            if count % PART == 0:
                pieces.append(recorder.take())
        if count % PART or not pieces:
            pieces.append(recorder.take())
        self._size = size
        self._complete(pieces, metrics, recorder.workers, count)
        self._parts = [json.dumps(piece, allow_nan=False, separators=(",", ":")) for piece in pieces]

    def _complete(
        self, pieces: list[dict[str, Any]], metrics: list[Metric], workers: list[str], count: int
    ) -> None:
        """What does not come from one entry after the other: all workers, evaluations, waits, the end."""
        waits, unexplained = self._waits(workers, count)
        begin = 0.0
        for place, piece in enumerate(pieces):
            end = piece["seconds"] if place < len(pieces) - 1 else float("inf")
            piece["workers"], piece["begin"] = workers, begin
            piece["parts"], piece["part"] = len(pieces), place
            piece["evals"] = [
                [m.t, m.version, {k: v for k, v in m.metrics.items() if v == v and abs(v) != float("inf")}]
                for m in metrics
                if m.kind == "eval" and begin <= m.t < end
            ]
            piece["waits"] = [wait for wait in waits if wait[2] > begin and wait[1] < end]
            piece["unexplained"] = unexplained
            piece["going"] = not self.run.stopped
            begin = piece["seconds"]

    def _metrics(self) -> Iterator[Metric]:
        if (self.run.path / METRICS).is_file():
            yield from self.run.metrics()

    def _entries(self) -> Iterator[Entry]:
        """The log; of a run that goes on or was killed the last line may not be whole."""
        for line, following in pairwise(chain(self.run.lines(), [None])):
            if isinstance(line, Entry):
                yield line
            elif isinstance(line, Malformed) and (following is not None or self.run.stopped):
                raise RunError(f"{self.run.log}:{line.line}: {line.problem}")

    def _waits(self, workers: list[str], count: int) -> tuple[list[list[Any]], str]:
        if count > EXPLAINED:
            return [], f"a log of {count} entries is too long to ask its policy again"
        numbers = {name: number for number, name in enumerate(workers)}
        try:
            found = waits_of(read_steps(self.run))
        except (RunError, PolicyError) as error:
            return [], str(error)
        except Exception as error:  # a policy is anybody's code, and this is only an explanation
            return [], f"its policy cannot be asked again: {type(error).__name__}: {error}"
        return [
            [numbers[str(w)], begin, end, event, [numbers[name] for name in names if name in numbers]]  # type: ignore[attr-defined]
            for w, begin, end, event, names in found
        ], ""

    # What processes printed

    def printed(self) -> list[str]:
        """Names of the processes that printed something."""
        return sorted(path.stem for path in (self.run.path / LOGS).glob("*.log") if path.stat().st_size)

    def print_of(self, name: str) -> str:
        """The end of it. Raises RunError for a process that is none of `printed`."""
        if name not in self.printed():
            raise RunError(f"{self.run.path}: expected one of {', '.join(self.printed())}, got {name!r}")
        data = (self.run.path / LOGS / f"{name}.log").read_bytes()[-PRINTED:]
        text = data.decode("utf-8", "replace")
        return "\n".join(spoken(line) for line in text.splitlines())
