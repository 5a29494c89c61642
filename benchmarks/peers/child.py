"""A program under measurement: a child process that speaks JSON lines, and certainly ends."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# Seconds. Loading TensorFlow on busy cores and tracing a model with 200 variables come first in mind.
PATIENCE = 240.0
FAREWELL = 10.0


class ChildError(RuntimeError):
    """A program failed; the text says which, how, and the end of its log."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs: the address that others reach it at, and what its command begins with there."""

    address: str = "127.0.0.1"
    prefix: Sequence[str] = ()


HERE = Place()


class Child:
    """One started program. Lines on its standard output that are JSON objects are its messages.

    Everything else that it prints goes to `log`. `close` leaves no process behind.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        root: Path = ROOT,
        place: Place = HERE,
        python: str = sys.executable,
    ) -> None:
        """Start `python ARGUMENTS...` in `root`, a checkout of this repository, with that checkout's code."""
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab", buffering=0) as errors:
            self._process = subprocess.Popen(
                [*place.prefix, python, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root), **(environment or {})},
                text=True,
                # Ctrl-C reaches the benchmark alone, which then ends its children in order.
                start_new_session=True,
            )
        self._messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self._messages.put(json.loads(line))
        self._messages.put(None)

    def send(self, do: str, **fields: Any) -> None:
        """Send a command; `receive` gives the answer. Raises ChildError when it has ended."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do, **fields}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure("has ended") from None

    def receive(self, patience: float = PATIENCE) -> dict[str, Any]:
        """The next message. Raises ChildError when it fails, ends, or sends nothing in time (seconds)."""
        try:
            message = self._messages.get(timeout=patience)
        except Empty:
            raise self._failure(f"has not answered for {patience:g} s") from None
        if message is None:
            raise self._failure("has ended")
        if "error" in message:
            raise ChildError(f"{self.name} failed:\n{message['error']}")
        return message

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """`send`, then `receive`."""
        self.send(do, **fields)
        return self.receive()

    def leave(self, patience: float = FAREWELL) -> None:
        """Let it end by itself; then as `close`."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            patience = 0.0
        self.close(patience)

    def close(self, patience: float = FAREWELL) -> None:
        """End it: by the end of its input, after `patience` seconds by SIGTERM, at last by SIGKILL."""
        assert self._process.stdin is not None
        # A pipe that is broken: it has ended already, with a command unread.
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        for push in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                push()
                patience = FAREWELL
        self._process.wait()
        self._reader.join()

    def _failure(self, what: str) -> ChildError:
        tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return ChildError("\n".join([f"{self.name} {what}; the end of {self._log}:", *tail]))


def together(children: Sequence[Child], do: str, **fields: Any) -> list[dict[str, Any]]:
    """Send all of them a command at once; their answers, in order."""
    for child in children:
        child.send(do, **fields)
    return [child.receive() for child in children]
