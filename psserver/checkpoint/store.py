"""The folder of a run's checkpoints.

    checkpoints/
        0000000812-1f0c9a2b7d3e4c55/      the log entry, and the job
            server-0.safetensors          arrays of one server
            server-0.json                 its other state
            server-0-rows.safetensors     rows of its tables (`psserver.checkpoint.rows`)
            coordinator.json
            manifest.json                 written last: completes the checkpoint

A checkpoint is complete when its manifest is whole, and every file has the size and the digest that the manifest
states. An incomplete checkpoint is never used, and never in the way.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from psserver.checkpoint import files, manifest, tensors
from psserver.checkpoint.disk import CheckpointError, Disk, RealDisk, UnwritableError
from psserver.checkpoint.manifest import FileFacts, Manifest

Array = NDArray[Any]

DIGITS = 10
# Bytes that a checkpoint takes besides the contents of its files: the manifest, and blocks that are not full.
MARGIN = 1 << 20


def name_of(entry: int, job: str) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{entry:0{DIGITS}d}-{job}"


def entry_of(name: str) -> int | None:
    """Return the number of the log entry, or None if the name is not that of a checkpoint's folder."""
    number, dash, job = name.partition("-")
    # Only printable ASCII can appear in every message.
    plain = name.isascii() and name.isprintable()
    return int(number) if plain and dash and job and number.isdecimal() else None


class Store:
    """The checkpoints of a run. Several servers that share the folder may write files of one checkpoint.

    The run's log lies beside the folder. Raises CheckpointError.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or RealDisk()
        # Two writers of one file, of which one was given up, do not share a file that is being written.
        self._writer = os.urandom(4).hex()
        # Bytes that were read, for whoever waits for it.
        self.read = 0

    # Writing

    def begin(self, name: str) -> None:
        """Make a checkpoint's folder. Any server may call this any number of times."""
        try:
            self.disk.make_folder(self.root / name)
        except OSError as error:
            raise CheckpointError(f"{self.root / name} cannot be made: {error.strerror or error}") from error

    def put_arrays(self, name: str, file: str, arrays: Mapping[str, Array]) -> FileFacts:
        """Write arrays by name to a file; they must not change meanwhile."""
        return self.put_series(name, file, [arrays])

    def put_series(self, name: str, file: str, series: Iterable[Mapping[str, Array]]) -> FileFacts:
        """Write arrays by name to a file, some of each at a time; at least one of `series`."""
        pieces = (piece for arrays in series for piece in tensors.pieces(arrays, {"format": "np"}))
        return self._write(self.root / name / file, pieces)

    def _write(self, path: Path, pieces: Iterable[memoryview]) -> FileFacts:
        return files.write(self.disk, path, pieces, files.aside_of(path, self._writer))

    def has(self, name: str, wanted: Mapping[str, FileFacts]) -> bool:
        """Return whether the checkpoint, complete or not, has these files in full length."""
        try:
            present = set(self.disk.names(self.root / name))
            return set(wanted) <= present and all(
                self.disk.size(self.root / name / file) == facts.bytes for file, facts in wanted.items()
            )
        except OSError:
            return False

    def put_json(self, name: str, file: str, plain: object) -> FileFacts:
        """Write plain data, as `psserver.records.to_plain` makes it, to a file."""
        text = json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
        return self._write(self.root / name / file, _cut(text))

    def complete(self, about: Manifest) -> None:
        """Write the manifest, which completes the checkpoint, once all other files are there in full length."""
        folder = self.root / name_of(about.entry, about.job)
        if not self.has(folder.name, about.files):
            raise CheckpointError(f"{folder}: files that were written are missing, or have another length")
        try:
            # Sync names first: after a loss of power, a manifest must never be found without its files, nor a complete
            # checkpoint without the log that leads to it.
            self.disk.sync_folder(self.root.parent)
            self.disk.sync_folder(folder)
            self._write(folder / manifest.NAME, _cut(about.text()))
            self.disk.sync_folder(folder)
            self.disk.sync_folder(self.root)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be completed: {error.strerror or error}") from error
        self.manifest(folder.name)

    def settle(self, name: str) -> None:
        """Make a complete checkpoint survive a loss of power. Call this before a log is cut after it.

        The process that completed it may have been killed before its folder was on the disk.
        """
        try:
            for folder in (self.root / name, self.root, self.root.parent):
                self.disk.sync_folder(folder)
        except OSError as error:
            raise UnwritableError(
                f"{self.root / name} may not outlast a loss of power: {error.strerror or error}"
            ) from error

    # Reading

    def names(self) -> list[str]:
        """Return the names of checkpoints, complete or not, by log entry, newest last."""
        try:
            found = self.disk.names(self.root)
        except OSError as error:
            raise CheckpointError(f"{self.root} cannot be read: {error.strerror or error}") from error
        numbered = [(entry, name) for name in found if (entry := entry_of(name)) is not None]
        return [name for _, name in sorted(numbered)]

    def written(self) -> bool:
        """Return True if any checkpoint was ever completed, even if it was damaged since."""
        try:
            return any(manifest.NAME in self.disk.names(self.root / name) for name in self.names())
        except OSError as error:
            raise CheckpointError(f"{self.root} cannot be read: {error.strerror or error}") from error

    def manifest(self, name: str) -> Manifest:
        """Read a manifest, and check that its files exist with their sizes; digests are checked by readers."""
        path = self.root / name / manifest.NAME
        try:
            present = set(self.disk.names(self.root / name))
            if manifest.NAME not in present:
                raise CheckpointError(f"{path.parent}: has no {manifest.NAME}: it was not written to its end")
            with self._open(path) as reader:
                about = manifest.parse(path, reader.take(min(reader.left, manifest.LARGEST)))
            for file, facts in about.files.items():
                size = self.disk.size(self.root / name / file) if file in present else None
                if size != facts.bytes:
                    got = "it is missing" if size is None else f"it has {size}"
                    raise CheckpointError(f"{path.parent / file}: expected {facts.bytes} bytes, {got}")
        except OSError as error:
            raise CheckpointError(f"{path.parent} cannot be read: {error.strerror or error}") from error
        if name_of(about.entry, about.job) != name:
            raise CheckpointError(
                f"{path}: is of entry {about.entry} of job {about.job}, expected that of its folder: it was moved here"
            )
        return about

    def verify(self, name: str) -> Manifest:
        """Read every byte of a checkpoint and check the digests."""
        about = self.manifest(name)
        self.verify_files(name, about, about.files)
        return about

    def verify_files(self, name: str, about: Manifest, wanted: Iterable[str]) -> None:
        """Read every byte of these files and check their digests."""
        for file in wanted:
            if file not in about.files:
                raise CheckpointError(f"the manifest of entry {about.entry} names no {file}: it was edited")
            with self._open(self.root / name / file) as reader:
                reader.skip()
                reader.check(about.files[file])

    def arrays(
        self, name: str, file: str, facts: FileFacts, wanted: Callable[[str], bool] = lambda _: True
    ) -> dict[str, Array]:
        """Read those arrays of a file of `put_arrays` whose names are `wanted`."""
        with self._open(self.root / name / file) as reader:
            found = tensors.read(reader, wanted)
            reader.check(facts)
        return found

    def series(self, name: str, file: str, facts: FileFacts) -> list[dict[str, Array]]:
        """Read a file of `put_series`."""
        with self._open(self.root / name / file) as reader:
            found = tensors.read_series(reader)
            reader.check(facts)
        return found

    def json(self, name: str, file: str, facts: FileFacts) -> object:
        """Read a file of `put_json`."""
        path = self.root / name / file
        with self._open(path) as reader:
            text = reader.take(reader.left)
            reader.check(facts)
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: is not JSON: {error}") from error
        return found

    def _count(self, nbytes: int) -> None:
        self.read += nbytes

    @contextlib.contextmanager
    def _open(self, path: Path) -> Iterator[files.Reader]:
        try:
            size = self.disk.size(path)
            with self.disk.open(path) as file:
                yield files.Reader(file, path, size, self._count)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error

    # Removing

    def discard(self, name: str, server: int | None = None) -> None:
        """Remove the files of a checkpoint that will not be completed, to make room for the next one. `server`: only
        that server's files.

        Leaves a complete one alone, and files that are being written: those are their writer's. What cannot be removed
        is left to `prune`.
        """
        folder = self.root / name
        prefixes = ("",) if server is None else (f"server-{server}.", f"server-{server}-")
        with contextlib.suppress(OSError):
            found = self.disk.names(folder)
            if manifest.NAME in found:
                return
            for file in found:
                if file.startswith(prefixes) and not file.endswith(files.PART):
                    self.disk.remove(folder / file)
            if not self.disk.names(folder):
                self.disk.remove_folder(folder)

    def newest(self) -> Manifest | None:
        """Return the manifest of the newest complete checkpoint, if there is any."""
        for name in reversed(self.names()):
            with contextlib.suppress(CheckpointError):
                return self.manifest(name)
        return None

    def clear(self) -> None:
        """Remove all checkpoints, for another run. Raises OSError if one cannot be removed."""
        for name in self.names():
            self._remove(name)

    def _remove(self, name: str) -> None:
        if self.disk.is_link(self.root / name):
            # The target of a symbolic link belongs to somebody else: remove only the link.
            self.disk.remove(self.root / name)
            return
        # Remove the manifest first: without it the rest is no checkpoint.
        self.disk.remove(self.root / name / manifest.NAME)
        self.disk.sync_folder(self.root / name)
        self.disk.remove_folder(self.root / name)

    def prune(
        self,
        keep: int,
        busy: frozenset[str] = frozenset(),
        void: Callable[[str], bool] = lambda name: False,
    ) -> list[str]:
        """Remove old checkpoints, and return their names.

        All but the newest `keep` complete ones are removed, and those older than the newest complete one that are
        incomplete or `void`: no job can continue from them. Those in `busy`, which are being written, are kept.

        No complete one is removed while fewer than `keep` are complete. A file that cannot be removed is left for the
        next time.
        """
        complete, useless = self._sorted(void)
        spare = complete[: -max(1, keep)]
        if complete:
            spare += [name for name in useless if (entry_of(name) or 0) < (entry_of(complete[-1]) or 0)]
        removed = [name for name in spare if name not in busy]
        for name in removed:
            with contextlib.suppress(OSError):
                self._remove(name)
        return removed

    def make_room(self, void: Callable[[str], bool] = lambda name: False) -> list[str]:
        """Remove old complete checkpoints until the disk has room for one more like the newest; return their names.

        The oldest goes first, and the newest stays. A file that cannot be removed is left.
        """
        complete, _ = self._sorted(void)
        removed = list[str]()
        for name in complete[:-1]:
            with contextlib.suppress(OSError, CheckpointError):
                if self.disk.free(self.root) >= self.manifest(complete[-1]).nbytes + MARGIN:
                    break
                self._remove(name)
                removed.append(name)
        return removed

    def _sorted(self, void: Callable[[str], bool]) -> tuple[list[str], list[str]]:
        """Return the checkpoints from which a job can continue, newest last, and the others."""
        complete, useless = list[str](), list[str]()
        for name in self.names():
            try:
                self.manifest(name)
                (useless if void(name) else complete).append(name)
            except CheckpointError:
                useless.append(name)
        return complete, useless


def _cut(text: bytes) -> Iterator[memoryview]:
    whole = memoryview(text)
    for start in range(0, len(whole), files.PIECE):
        yield whole[start : start + files.PIECE]
