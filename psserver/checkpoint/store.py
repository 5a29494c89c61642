"""The folder of a run's checkpoints.

    checkpoints/
        0000000812-1f0c9a2b7d3e4c55/      the log entry, and the job
            server-0.safetensors          arrays of one server
            server-0.json                 what else it knows
            coordinator.json
            manifest.json                 written last: without it there is no checkpoint

A checkpoint is complete when its manifest is whole, and every file has the size and the digest that the manifest
says. What is not complete is never used, and never in the way.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import files, manifest, tensors
from psserver.checkpoint.disk import Disk, RealDisk
from psserver.checkpoint.errors import CheckpointError, UnwritableError
from psserver.checkpoint.manifest import FileFacts, Manifest

Floats = NDArray[np.float32]

DIGITS = 10
# Bytes that a checkpoint takes beside its files' contents: its manifest, blocks that are not full.
MARGIN = 1 << 20


def name_of(entry: int, job: str) -> str:
    """A checkpoint's folder."""
    return f"{entry:0{DIGITS}d}-{job}"


def entry_of(name: str) -> int | None:
    """The number of the log entry; None for what is no checkpoint's folder."""
    number, dash, job = name.partition("-")
    # No other name can be said in every message.
    plain = name.isascii() and name.isprintable()
    return int(number) if plain and dash and job and number.isdecimal() else None


class Store:
    """Files of one checkpoint may be written by several servers, which share the folder; the run's log lies beside it.
    Raises CheckpointError."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or RealDisk()

    # Writing

    def begin(self, name: str) -> None:
        """Make its folder. Any server may, any number of times."""
        try:
            self.disk.make_folder(self.root / name)
        except OSError as error:
            raise CheckpointError(f"{self.root / name} cannot be made: {error.strerror or error}") from error

    def put_arrays(self, name: str, file: str, arrays: Mapping[str, Floats]) -> FileFacts:
        """A file of arrays, by name; they must not change meanwhile."""
        return files.write(self.disk, self.root / name / file, tensors.pieces(arrays, {"format": "np"}))

    def put_json(self, name: str, file: str, plain: object) -> FileFacts:
        """A file of plain data, as `pswire.records.to_plain` makes it."""
        text = json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
        return files.write(self.disk, self.root / name / file, _cut(text))

    def complete(self, about: Manifest) -> None:
        """All of its files are there: from now on it is a checkpoint."""
        folder = self.root / name_of(about.entry, about.job)
        try:
            # Names first: a manifest may never be found beside files that a loss of power has taken, nor a complete
            # checkpoint without the log that leads to it.
            self.disk.sync_folder(self.root.parent)
            self.disk.sync_folder(folder)
            files.write(self.disk, folder / manifest.NAME, _cut(about.text()))
            self.disk.sync_folder(folder)
            self.disk.sync_folder(self.root)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be completed: {error.strerror or error}") from error

    def settle(self, name: str) -> None:
        """What is complete outlasts a loss of power from here on, too: who completed it may have been killed before its
        folder was on the disk. To be called before a log is cut behind it."""
        try:
            for folder in (self.root / name, self.root, self.root.parent):
                self.disk.sync_folder(folder)
        except OSError as error:
            raise UnwritableError(
                f"{self.root / name} may not outlast a loss of power: {error.strerror or error}"
            ) from error

    # Reading

    def names(self) -> list[str]:
        """Of checkpoints, complete or not, by log entry, newest last."""
        try:
            found = self.disk.names(self.root)
        except OSError as error:
            raise CheckpointError(f"{self.root} cannot be read: {error.strerror or error}") from error
        numbered = [(entry, name) for name in found if (entry := entry_of(name)) is not None]
        return [name for _, name in sorted(numbered)]

    def written(self) -> bool:
        """A checkpoint was written to its end, whatever has become of it since."""
        try:
            return any(manifest.NAME in self.disk.names(self.root / name) for name in self.names())
        except OSError as error:
            raise CheckpointError(f"{self.root} cannot be read: {error.strerror or error}") from error

    def manifest(self, name: str) -> Manifest:
        """Of a checkpoint whose files are there with their sizes; their digests are left to `verify` and reading."""
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
        """Read every byte of it, and hold it against the digests."""
        about = self.manifest(name)
        self.verify_files(name, about, about.files)
        return about

    def verify_files(self, name: str, about: Manifest, wanted: Iterable[str]) -> None:
        """Read every byte of these."""
        for file in wanted:
            if file not in about.files:
                raise CheckpointError(f"the manifest of entry {about.entry} names no {file}: it was edited")
            with self._open(self.root / name / file) as reader:
                reader.skip()
                reader.check(about.files[file])

    def arrays(
        self, name: str, file: str, facts: FileFacts, wanted: Callable[[str], bool] = lambda _: True
    ) -> dict[str, Floats]:
        """What `put_arrays` wrote, as far as its name is `wanted`."""
        with self._open(self.root / name / file) as reader:
            found = tensors.read(reader, wanted)
            reader.check(facts)
        return found

    def json(self, name: str, file: str, facts: FileFacts) -> object:
        """What `put_json` wrote."""
        path = self.root / name / file
        with self._open(path) as reader:
            text = reader.take(reader.left)
            reader.check(facts)
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: is not JSON: {error}") from error
        return found

    @contextlib.contextmanager
    def _open(self, path: Path) -> Iterator[files.Reader]:
        try:
            size = self.disk.size(path)
            with self.disk.open(path) as file:
                yield files.Reader(file, path, size)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error

    # Removing

    def discard(self, name: str) -> None:
        """What was written of a checkpoint that will not be completed: the next one may need the room. Nothing of one
        that is complete; what cannot be removed is left to `prune`."""
        with contextlib.suppress(OSError):
            if manifest.NAME not in self.disk.names(self.root / name):
                self.disk.remove_folder(self.root / name)

    def clear(self) -> None:
        """All of them, for another run. Raises OSError where one cannot be removed."""
        for name in self.names():
            self._remove(name)

    def _remove(self, name: str) -> None:
        if self.disk.is_link(self.root / name):
            # What somebody keeps elsewhere is theirs: only the name here goes.
            self.disk.remove(self.root / name)
            return
        # The manifest first: half a checkpoint is none.
        self.disk.remove(self.root / name / manifest.NAME)
        self.disk.sync_folder(self.root / name)
        self.disk.remove_folder(self.root / name)

    def prune(
        self,
        keep: int,
        busy: frozenset[str] = frozenset(),
        void: Callable[[str], bool] = lambda name: False,
    ) -> list[str]:
        """Remove all but the newest `keep` complete checkpoints, and those that are older than the newest complete one
        and either incomplete or `void`: no job can go on from them. Never those in `busy`, which are being written.
        Returns their names.

        No complete one is removed while fewer than `keep` are complete. A file that cannot be removed is left for
        the next time.
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
        """Remove complete checkpoints but the newest, the oldest first, until the disk has room for one more like the
        newest. Returns their names. A file that cannot be removed is left."""
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
        """Those from which a job can go on, the newest last; and the others."""
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
