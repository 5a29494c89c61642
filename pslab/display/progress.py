"""Views of a run in progress: a live table, plain lines, JSON lines, or nothing."""

import json
import shlex
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pslab.display.status import SampleRate, finite_or_none, number, status_json, status_line, status_view
from pswire.v1 import coordinator_pb2 as pb

# Seconds between two plain lines; and while the job does not train, between two that say the same.
LINE_INTERVAL, SAME_INTERVAL = 2.0, 30.0


class Display(Protocol):
    """A receiver of what happens in a run; a context manager around the run."""

    def event(self, name: str, event: dict[str, Any]) -> None: ...

    def status(self, status: pb.StatusReply, now: float) -> None:
        """Show a status. `now`: seconds of a monotonic clock."""
        ...

    def no_status(self, reason: str) -> None: ...

    def warning(self, sentence: str, tail: str) -> None:
        """Show a warning. `tail`: the last output of the process that it is about."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Quiet:
    """A display of warnings only, on standard error."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def event(self, name: str, event: dict[str, Any]) -> None:
        pass

    def status(self, status: pb.StatusReply, now: float) -> None:
        pass

    def no_status(self, reason: str) -> None:
        pass

    def warning(self, sentence: str, tail: str) -> None:
        self._console.print(_warning(sentence, tail))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Lines(Quiet):
    """A display with a line at each change of phase, and every two seconds while the job trains.

    Before and after the training, a line that only repeats what is waited for comes every thirty seconds.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._rate = SampleRate()
        self._printed = float("-inf")
        self._phase = self._note = ""

    def event(self, name: str, event: dict[str, Any]) -> None:
        _show(self._console, name, event)

    def status(self, status: pb.StatusReply, now: float) -> None:
        self._rate.add(now, status.samples)
        # Without how long it has been so.
        note = status.note.partition(" (since ")[0]
        same = status.phase == self._phase and (status.phase == "training" or note == self._note)
        interval = LINE_INTERVAL if status.phase == "training" else SAME_INTERVAL
        if same and now - self._printed < interval:
            return
        self._printed, self._phase, self._note = now, status.phase, note
        self._console.print(status_line(status, self._rate.rate), markup=False)


class TableDisplay(Quiet):
    """A display with a table that is updated in place on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._rate = SampleRate()
        self._live = Live(Text("starting servers and workers ..."), console=self._console, auto_refresh=False)

    def event(self, name: str, event: dict[str, Any]) -> None:
        _show(self._console, name, event)

    def status(self, status: pb.StatusReply, now: float) -> None:
        self._rate.add(now, status.samples)
        self._live.update(status_view(status, self._rate.rate), refresh=True)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class JsonDisplay(Quiet):
    """A display with one JSON object per event and line, for programs."""

    def event(self, name: str, event: dict[str, Any]) -> None:
        print_json({"event": "process", "name": name, "said": event})

    def status(self, status: pb.StatusReply, now: float) -> None:
        print_json({"event": "status", **status_json(status)})

    def no_status(self, reason: str) -> None:
        print_json({"event": "silence", "reason": reason})

    def warning(self, sentence: str, tail: str) -> None:
        print_json({"event": "warning", "text": sentence, "tail": tail})


def print_json(record: dict[str, Any]) -> None:
    """Print one line to standard output and flush it. JSON has neither NaN nor infinity: they become null."""
    print(json.dumps(_finite(record), allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return finite_or_none(value)
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


def choose(*, as_json: bool = False, quiet: bool = False) -> Display:
    """Return the requested display, or by default the one that suits standard output."""
    if as_json:
        return JsonDisplay()
    if quiet:
        return Quiet()
    console = Console(highlight=False)
    return TableDisplay(console) if console.is_terminal else Lines()


def _show(console: Console, name: str, event: dict[str, Any]) -> None:
    """Print evaluations, and for a server that is ready how to observe the run and where its metrics are."""
    if event.get("event") == "evaluated":
        metrics = ", ".join(f"{name} {number(value, 4)}" for name, value in event.get("metrics", {}).items())
        console.print(f"version {event.get('version')}: {metrics}", markup=False)
    if event.get("event") != "ready":
        return
    if event.get("task_index") == 0:
        run = shlex.quote(_short(Path(event.get("run", "."))))
        ready = f"servers are ready at {event.get('address')}; ps-lab status {run} shows what they do"
        console.print(f"{ready} (and again with --watch; dashboard takes the same argument)", markup=False)
    if "metrics" in event:
        console.print(f"{name}: metrics at http://{event['metrics']}/metrics", markup=False)


def _short(path: Path) -> str:
    """Return the path relative to the current folder if it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _warning(sentence: str, tail: str) -> Text:
    text = Text(f"warning: {sentence}", style="yellow")
    for line in tail.splitlines():
        text.append(f"\n  | {line}", style="not yellow")
    return text
