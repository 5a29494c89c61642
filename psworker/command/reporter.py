"""What a worker prints."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pswire.exits import ExitCode
from pswire.logs.events import last_words
from psworker.engine import Disposition
from psworker.loop import Outcome
from psworker.session import Session

# Between progress lines, in seconds.
PROGRESS_EVERY = 2.0


class Reporter:
    """What the worker prints: plain lines every few seconds, or JSON lines."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last = time.monotonic()
        self._steps = 0
        self._counts: dict[str, int] = {}

    def joined(self, session: Session, device: str) -> None:
        fields = {
            "worker": session.worker,
            "index": session.worker_index,
            "device": device,
            "job": session.job,
        }
        start = f", going on at batch {session.next_batch}" if session.next_batch else ""
        self._say("joined", fields, f"{session.worker} joined job {session.job} on {device}{start}")

    def progress(self, steps: int, loss: float, fates: list[Disposition]) -> None:
        for fate in fates:
            self._counts[fate.fate] = self._counts.get(fate.fate, 0) + 1
        now = time.monotonic()
        if now - self._last < PROGRESS_EVERY:
            return
        rate = (steps - self._steps) / (now - self._last)
        self._last, self._steps = now, steps
        counts = ", ".join(f"{count} {fate}" for fate, count in sorted(self._counts.items()))
        fields = {"steps": steps, "loss": loss, "steps_per_second": round(rate, 2), **self._counts}
        self._say(
            "progress",
            fields,
            f"step {steps}: loss {loss:.4f}, {rate:.1f} steps/s, {counts or 'none settled'}",
        )

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        said = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        fields = {"version": version, "metrics": dict(metrics)}
        self._say("evaluated", fields, f"version {version}: {said}")

    def lowered(self, version: int, rate: float) -> None:
        text = f"behind the evaluation of version {version} the learning rate is lowered to {rate:.6g}"
        self._say("lowered", {"version": version, "learning_rate": rate}, text)

    def saved(self, path: Path) -> None:
        self._say("saved", {"path": str(path)}, f"the model of the last version is in {path}")

    def finished(self, outcome: Outcome) -> None:
        assert outcome.stop is not None
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in outcome.metrics.items())
        fields = {
            "steps": outcome.steps,
            "reason": outcome.stop.reason,
            "version": outcome.stop.version,
            "metrics": outcome.metrics,
        }
        text = f"finished after {outcome.steps} steps, version {outcome.stop.version}: {outcome.stop.reason}"
        self._say("finished", fields, f"{text}; {metrics}" if metrics else text)

    def over(self, reason: str) -> None:
        self._say("over", {"reason": reason}, f"nothing is left to do: {reason}")

    def _say(self, event: str, fields: Mapping[str, Any], text: str) -> None:
        print(json.dumps({"event": event, **fields}) if self._as_json else text, flush=True)


def fail(message: str, code: ExitCode) -> SystemExit:
    last_words("ps-worker", message, int(code))
    return SystemExit(int(code))
