"""The files of a task, secrets among them: in memory, open in the process that reads them, and gone with it.

However the process ends, and whoever started it, nothing is left on a disk. Standard library only.
"""

import os
from collections.abc import Mapping, Sequence
from types import TracebackType


class MemoryFiles:
    """Files for one process, to be started within the block with `descriptors` as its `pass_fds`."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._open: dict[str, int] = {}
        for name, content in files.items():
            descriptor = os.memfd_create(name)
            self._open[name] = descriptor
            os.fchmod(descriptor, 0o600)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)

    @property
    def descriptors(self) -> Sequence[int]:
        return tuple(self._open.values())

    @property
    def paths(self) -> dict[str, str]:
        """By name, as the process that has the descriptors calls them. Each opening begins at the beginning."""
        return {name: f"/proc/self/fd/{descriptor}" for name, descriptor in self._open.items()}

    def __enter__(self) -> "MemoryFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
