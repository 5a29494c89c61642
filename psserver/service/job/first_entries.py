"""What the log begins with, where the optimizer is the workers'."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from psserver.coordinator import Output, Record
from pswire.decisions.entries import Job as JobEntry


class FirstEntries:
    """Outputs that wait until a session stands.

    The log's first entry names the optimizer. Where that is the workers', a Join alone decides nothing: what is to be
    written waits here, and another Join may name another optimizer. The loop's thread owns it.
    """

    def __init__(self, *, wait: bool) -> None:
        # None: nothing waits any more.
        self._outputs: list[Output] | None = [] if wait else None

    @property
    def waiting(self) -> bool:
        """Nothing is written yet."""
        return self._outputs is not None

    def release(self, outputs: list[Output], *, settled: bool) -> list[Output]:
        """`outputs`, behind those that waited; none until it is `settled` what the job trains."""
        if self._outputs is None:
            return outputs
        self._outputs += outputs
        if not settled:
            return []
        outputs, self._outputs = self._outputs, None
        return outputs

    def correct(self, optimizer: Mapping[str, Any]) -> None:
        """The optimizer is another one than the first Join said."""
        assert self._outputs
        first = self._outputs[0]
        assert isinstance(first, Record) and isinstance(first.entry, JobEntry)
        self._outputs[0] = Record(first.index, first.t, replace(first.entry, optimizer=optimizer))

    def skip(self) -> None:
        """The log has its beginning already."""
        self._outputs = None
