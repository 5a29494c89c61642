"""Messages between a launcher and a keeper, over the keeper's standard input and output. Standard library only.

Launcher to keeper, after the keeper's HELLO: one line with a `SpawnRequest` as JSON, then control lines. End of file
means that the launcher is gone.
Keeper to launcher: `MAGIC`, before which a login may have printed anything, then frames of kind, size and payload.
"""

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

MAGIC: Final = b"\nps-keeper 1\n"
_HEAD: Final = struct.Struct(">cI")

# Kinds of frames.
# JSON with `host` and `pid` of the keeper, and `address`, at which the launcher has reached the node. The process has
# its place.
HELLO: Final = b"H"
# One line that the process wrote to stdout; a part of what it wrote to stderr.
STDOUT: Final = b"O"
STDERR: Final = b"E"
# JSON with `code` as in `Popen.returncode`, and `problem` if the process never started. Nothing of it is left.
EXIT: Final = b"X"
# A part of a file in the run folder: JSON with `path`, `offset` and `whole`, a newline, then bytes.
FILE: Final = b"F"
# Empty heartbeat: the node is alive.
ALIVE: Final = b"A"
# Bytes that came before MAGIC. `Frames` makes this kind; the keeper never sends it.
NOISE: Final = b"N"

# Control line: heartbeat of the launcher.
HERE: Final = b"here\n"
# Seconds between heartbeats of either side. The keeper ends its process after LONGEST_SILENCE seconds without one; the
# launcher gives a node up after SILENT_TURNS heartbeats of its own without an answer.
HERE_EVERY: Final = 5.0
LONGEST_SILENCE: Final = 60.0
SILENT_TURNS: Final = 6


def signal_line(number: int) -> bytes:
    """Return the control line that sends the process a signal."""
    return b"signal %d\n" % number


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A process to start. Command words and environment values may contain placeholders (`spawn`).

    `drop`: variables of the node's environment that the process does not get. `host`: the node's address. `folder`:
    the run folder, or empty; the node shares it if it contains the file `marker`. If the node does not share it, the
    process gets a temporary folder, `mirror` sends back what is written there, and with `needs_folder` the process is
    not started at all. `grace`: seconds from SIGTERM to SIGKILL when the launcher is gone; with `spare` SIGKILL
    comes at once.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    cwd: str = ""
    host: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    folder: str = ""
    marker: str = ""
    mirror: bool = False
    needs_folder: bool = False
    grace: float = 5.0
    spare: bool = False

    def encode(self) -> bytes:
        """Return the request as one line."""
        document = asdict(self)
        document["files"] = {name: base64.b64encode(content).decode() for name, content in self.files.items()}
        return json.dumps(document).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "SpawnRequest":
        """Invert `encode`. Raises ValueError or TypeError for anything else."""
        document: dict[str, Any] = json.loads(line)
        files = {name: base64.b64decode(content) for name, content in document.pop("files").items()}
        return cls(**document, files=files)


def frame(kind: bytes, payload: bytes) -> bytes:
    """Return an encoded frame."""
    return _HEAD.pack(kind, len(payload)) + payload


def frame_json(kind: bytes, **fields: object) -> bytes:
    """Return an encoded frame whose payload is a JSON object."""
    return frame(kind, json.dumps(fields).encode())


def file_frame(path: str, offset: int, content: bytes, *, whole: bool) -> bytes:
    """Return a FILE frame. `whole`: truncate the file behind `content`."""
    fields = {"path": path, "offset": offset, "whole": whole}
    return frame(FILE, json.dumps(fields).encode() + b"\n" + content)


class Frames:
    """Incremental parser of a keeper's output."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._begun = False

    def feed(self, more: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (kind, payload) of every frame that is complete now."""
        self._bytes += more
        if not self._begun:
            before, magic, behind = self._bytes.partition(MAGIC)
            if not magic:
                return
            self._begun, self._bytes = True, behind
            if before.strip():
                yield NOISE, bytes(before)
        while len(self._bytes) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._bytes)
            end = _HEAD.size + size
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[_HEAD.size : end])
            del self._bytes[:end]
            yield kind, payload

    @property
    def noise(self) -> bytes:
        """Bytes received instead of MAGIC; empty once MAGIC has arrived."""
        return b"" if self._begun else bytes(self._bytes)
