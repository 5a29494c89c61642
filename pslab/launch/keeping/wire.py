"""What a launcher and a keeper say to each other, over the keeper's standard input and output. Standard library only.

To the keeper, once it has said HELLO: one line with a `Request` as JSON, then lines of `control`. Its end means that
the launcher is gone.
From the keeper: `MAGIC`, before which a login may have printed anything, then frames: kind, size, payload.
"""

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

MAGIC: Final = b"\nps-keeper 1\n"
_HEAD: Final = struct.Struct(">cI")

# JSON: `host`, `pid` of the keeper; `address`: where the launcher has reached it. The process has its place.
HELLO: Final = b"H"
# A line that the process wrote on stdout; part of what it wrote on stderr.
STDOUT: Final = b"O"
STDERR: Final = b"E"
# JSON: `code` as `Popen.returncode`, and `problem` where there never was a process. Nothing of it is left.
EXIT: Final = b"X"
# A part of a file of the run folder: JSON with `path`, `offset`, `whole`; a line's end; bytes.
FILE: Final = b"F"
# Nothing: the node is still there.
ALIVE: Final = b"A"
# What stood before MAGIC. The keeper never sends it.
NOISE: Final = b"N"

# A control line: the launcher is still there.
HERE: Final = b"here\n"
# Seconds between two of them, and between two of ALIVE. The keeper ends its process when nothing has come for
# LONGEST_SILENCE; the launcher gives a node up when nothing has come in so many of these times.
HERE_EVERY: Final = 5.0
LONGEST_SILENCE: Final = 60.0
SILENT_TURNS: Final = 6


def signal_line(number: int) -> bytes:
    """A control line: send the process this signal."""
    return b"signal %d\n" % number


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be started: words and values with blanks.

    `drop`: variables of the node's environment that it does not get. `host`: the node's address. `folder`: the run
    folder, empty: none; it is the same one on the node if `marker` is in it. Where it is not: the process gets a folder
    there, of which `mirror` sends what is written; with `needs_folder` it is not started. `grace`: seconds from SIGTERM
    to SIGKILL when the launcher is gone.
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

    def encode(self) -> bytes:
        said = asdict(self)
        said["files"] = {name: base64.b64encode(content).decode() for name, content in self.files.items()}
        return json.dumps(said).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "Request":
        """Raises ValueError or TypeError for anything else."""
        said: dict[str, Any] = json.loads(line)
        files = {name: base64.b64decode(content) for name, content in said.pop("files").items()}
        return cls(**said, files=files)


def frame(kind: bytes, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


def frame_json(kind: bytes, **told: object) -> bytes:
    return frame(kind, json.dumps(told).encode())


def file_frame(path: str, offset: int, content: bytes, *, whole: bool) -> bytes:
    """`whole`: what is behind `content` in an older file of that name goes."""
    told = {"path": path, "offset": offset, "whole": whole}
    return frame(FILE, json.dumps(told).encode() + b"\n" + content)


class Frames:
    """Takes bytes as they come, gives whole frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._begun = False

    def feed(self, more: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(kind, payload) of every frame that is whole now."""
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
        """What came instead of a keeper's first words; empty once it has begun."""
        return b"" if self._begun else bytes(self._bytes)
