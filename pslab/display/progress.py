"""How a run is shown while it goes on: a live table, plain lines, JSON lines, or nothing."""

import json
import shlex
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pslab.display.status import SampleRate, number, status_json, status_line, status_view
from pswire.v1 import coordinator_pb2 as pb

LINE_INTERVAL = 2.0  # seconds between two plain lines


class Display(Protocol):
    """Told what happens; used as a context manager around a run."""

    def event(self, name: str, event: dict[str, Any]) -> None: ...

    def status(self, status: pb.StatusReply, now: float) -> None:
        """`now`: seconds of a monotonic clock."""
        ...

    def no_status(self, reason: str) -> None: ...

    def warning(self, sentence: str, tail: str) -> None:
        """`tail`: the last lines of the process in question."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Quiet:
    """Warnings only, on standard error."""

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
    """A line every two seconds, and one for each change of phase."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._rate = SampleRate()
        self._printed = float("-inf")
        self._phase = ""

    def event(self, name: str, event: dict[str, Any]) -> None:
        _show(self._console, name, event)

    def status(self, status: pb.StatusReply, now: float) -> None:
        self._rate.add(now, status.samples)
        if now - self._printed < LINE_INTERVAL and status.phase == self._phase:
            return
        self._printed, self._phase = now, status.phase
        self._console.print(status_line(status, self._rate.rate), markup=False)


class Table(Quiet):
    """A table that renews itself on a terminal."""

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


class JsonLines(Quiet):
    """One JSON object per line and happening, for programs."""

    def event(self, name: str, event: dict[str, Any]) -> None:
        print_json({"event": "process", "name": name, "said": event})

    def status(self, status: pb.StatusReply, now: float) -> None:
        print_json({"event": "status", **status_json(status)})

    def no_status(self, reason: str) -> None:
        print_json({"event": "silence", "reason": reason})

    def warning(self, sentence: str, tail: str) -> None:
        print_json({"event": "warning", "text": sentence, "tail": tail})


def print_json(record: dict[str, Any]) -> None:
    """One line on standard output, at once."""
    print(json.dumps(record), flush=True)


def choose(*, as_json: bool = False, quiet: bool = False) -> Display:
    """The display that was asked for, or the one that suits where standard output goes."""
    if as_json:
        return JsonLines()
    if quiet:
        return Quiet()
    console = Console(highlight=False)
    return Table(console) if console.is_terminal else Lines()


def _show(console: Console, name: str, event: dict[str, Any]) -> None:
    """Where to ask about the run, by its folder, which also says who may ask; where its metrics are; evaluations."""
    if event.get("event") == "evaluated":
        said = ", ".join(f"{metric} {number(value, 4)}" for metric, value in event.get("metrics", {}).items())
        console.print(f"version {event.get('version')}: {said}", markup=False)
    if event.get("event") != "ready":
        return
    if event.get("task_index") == 0:
        run = shlex.quote(_short(Path(event.get("run", "."))))
        said = f"servers are ready at {event.get('address')}; ps-lab status {run} asks them"
        console.print(f"{said} (watch and dashboard take the same)", markup=False)
    if "metrics" in event:
        console.print(f"{name}: metrics at http://{event['metrics']}/metrics", markup=False)


def _short(path: Path) -> str:
    """As seen from the current folder, where it lies below that."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _warning(sentence: str, tail: str) -> Text:
    text = Text(f"warning: {sentence}", style="yellow")
    for line in tail.splitlines():
        text.append(f"\n  | {line}", style="not yellow")
    return text
