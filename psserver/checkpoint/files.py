"""Files that appear whole under their names or not at all, and their digests."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from psserver.checkpoint.disk import CheckpointError, Disk, File, UnwritableError
from psserver.checkpoint.manifest import FileFacts

# Suffix of a file being written. Those who list checkpoints ignore it.
PART = ".part"
Write = Callable[[memoryview], int]
# Bytes that are hashed, written or read at a time.
PIECE = 4 << 20


def aside_of(path: Path, writer: str = "") -> Path:
    """Return the path under which the file is written before it gets its name. `writer`: in whose name, if there may be
    several."""
    return path.with_name(f"{path.name}.{writer}{PART}" if writer else path.name + PART)


def write(
    disk: Disk, path: Path, pieces: Iterable[memoryview], aside: Path | None = None, onto: File | None = None
) -> FileFacts:
    """Write a file aside, sync it, then rename it into place. Return its facts.

    `aside`: where, if not at `aside_of(path)`; `onto`: an empty file that was created there. Raises UnwritableError,
    with nothing changed under the name.
    """
    aside = aside or aside_of(path)
    digest, count = hashlib.sha256(), 0
    try:
        file = onto or disk.create(aside)
        try:
            for piece in pieces:
                digest.update(piece)
                count += len(piece)
                _write_all(file.write, piece)
            file.sync()
        finally:
            file.close()
        disk.rename(aside, path)
    except OSError as error:
        _forget(disk, aside)
        raise UnwritableError(f"{path} cannot be written: {error.strerror or error}") from error
    return FileFacts(count, digest.hexdigest())


def _write_all(write: Write, piece: memoryview) -> None:
    while len(piece):
        taken = write(piece)
        if taken <= 0:
            raise OSError("the disk takes no more bytes")
        piece = piece[taken:]


def _forget(disk: Disk, path: Path) -> None:
    """Remove an unfinished file, which takes up room on a disk that may be full. If that fails, prune removes it."""
    try:
        disk.remove(path)
    except OSError:
        return


class Reader:
    """Reads a file once, from its beginning, and computes the digest of what it reads. Raises CheckpointError."""

    def __init__(
        self, file: BinaryIO, path: Path, size: int, came: Callable[[int], object] = lambda nbytes: None
    ) -> None:
        """`came`: called with the number of bytes of each piece that was read."""
        self.path = path
        self.left = size
        self._came = came
        self._file = file
        self._digest = hashlib.sha256()

    def take(self, count: int) -> bytes:
        """Read exactly this many bytes."""
        into = bytearray(count) if 0 <= count <= self.left else bytearray()
        if len(into) != count:
            raise CheckpointError(f"{self.path}: expected {count} more bytes, it has {self.left}")
        self.fill(memoryview(into))
        return bytes(into)

    def fill(self, into: memoryview) -> None:
        """Fill the buffer."""
        if len(into) > self.left:
            raise CheckpointError(f"{self.path}: expected {len(into)} more bytes, it has {self.left}")
        self.left -= len(into)
        while len(into):
            try:
                found = self._file.read(min(PIECE, len(into)))
            except OSError as error:
                raise CheckpointError(f"{self.path} cannot be read: {error.strerror or error}") from error
            if not found:
                raise CheckpointError(f"{self.path}: ends early")
            self._digest.update(found)
            self._came(len(found))
            into[: len(found)] = found
            into = into[len(found) :]

    def skip(self, count: int | None = None) -> None:
        """Read this many bytes, or the rest, for the digest alone."""
        count = self.left if count is None else count
        room = bytearray(min(PIECE, count))
        while count:
            piece = memoryview(room)[: min(PIECE, count)]
            self.fill(piece)
            count -= len(piece)

    def check(self, facts: FileFacts) -> None:
        """Check that what was read has the digest of what was written."""
        got = self._digest.hexdigest()
        if got != facts.sha256:
            raise CheckpointError(
                f"{self.path}: expected the SHA-256 digest {facts.sha256}, got {got}: the file was damaged or edited"
            )
