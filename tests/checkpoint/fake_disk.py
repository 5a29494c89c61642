"""A disk in memory that fails when it is told to, and a loss of power that keeps what was synced, and some of the rest.

A name and a file's content are two things, as on real disks: `sync` makes the content last, `sync_folder` the names.
"""

import io
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

FAULTS = ("crash", "full", "short", "broken", "lost sync")


class PowerLoss(BaseException):
    """The process is gone: nobody catches it on the way."""


@dataclass(eq=False)
class Node:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class FakeFile:
    disk: "FakeDisk"
    node: Node

    def write(self, data: memoryview) -> int:
        fault = self.disk.step()
        taken = len(data) if fault is None else self.disk.dice.randrange(len(data)) if len(data) else 0
        self.node.data += data[:taken]
        if fault == "crash":
            raise PowerLoss
        if fault == "broken":
            raise OSError(5, "Input/output error")
        if fault == "full" or (fault == "short" and not taken):
            raise OSError(28, "No space left on device")
        return taken if fault == "short" else len(data) if fault is None else self._whole(data, taken)

    def _whole(self, data: memoryview, taken: int) -> int:
        self.node.data += data[taken:]
        return len(data)

    def sync(self) -> None:
        if self.disk.does("sync"):
            self.node.synced = bytes(self.node.data)

    def close(self) -> None:
        pass


class FakeDisk:
    """`fault` happens at step number `at` (counted from 0), once. "full" stays so until `at` is set to -1."""

    def __init__(self, seed: int, fault: str = "", at: int = -1) -> None:
        self.dice = random.Random(seed)
        self.fault, self.at, self.steps = fault, at, 0
        self.happened = False
        # Live and lasting names: of files with their nodes, of folders with None.
        self.live: dict[Path, Node | None] = {}
        self.lasting: dict[Path, Node | None] = {}

    def step(self) -> str | None:
        """Count a step; the fault that happens in it."""
        now, self.steps = self.steps, self.steps + 1
        if self.at < 0 or not (now == self.at or (self.fault == "full" and now > self.at)):
            return None
        self.happened = True
        return self.fault

    def does(self, what: str) -> bool:
        """A step that is no write: done, not done, or the end."""
        fault = self.step()
        if fault == "crash":
            if self.dice.random() < 0.5:
                raise PowerLoss
            self._after = True
            raise PowerLoss
        if fault == "lost sync":
            return what not in ("sync", "sync_folder")
        if fault == "broken" or (fault == "full" and what in ("create", "make", "sync")):
            raise OSError(28 if fault == "full" else 5, f"{what} failed")
        return True

    # What a store asks

    def make_folder(self, path: Path) -> None:
        if not self.does("make"):
            return
        new = [folder for folder in (path, *path.parents) if folder not in self.live]
        for folder in reversed(new):
            self.live[folder] = None
            self.sync_folder(folder.parent)

    def names(self, path: Path) -> list[str]:
        return [found.name for found in self.live if found.parent == path and found != path]

    def create(self, path: Path) -> FakeFile:
        self.does("create")
        node = Node()
        self.live[path] = node
        return FakeFile(self, node)

    def open(self, path: Path) -> BinaryIO:
        return io.BytesIO(bytes(self._node(path).data))

    def size(self, path: Path) -> int:
        return len(self._node(path).data)

    def _node(self, path: Path) -> Node:
        node = self.live.get(path)
        if node is None:
            raise FileNotFoundError(2, "No such file", str(path))
        return node

    def rename(self, old: Path, new: Path) -> None:
        self.does("rename")
        self.live[new] = self._node(old)
        del self.live[old]

    def sync_folder(self, path: Path) -> None:
        if self.does("sync_folder"):
            inside = {name: node for name, node in self.live.items() if name.parent == path}
            self.lasting = {n: node for n, node in self.lasting.items() if n.parent != path} | inside

    def remove(self, path: Path) -> None:
        self.does("remove")
        self.live.pop(path, None)

    def free(self, path: Path) -> int:
        return 1 << 40

    def is_link(self, path: Path) -> bool:
        return False

    def remove_folder(self, path: Path) -> None:
        for name in [name for name in self.live if path in name.parents]:
            self.does("remove")
            del self.live[name]
        self.live.pop(path, None)

    # What happens to it

    def lose_power(self, root: Path) -> "FakeDisk":
        """The disk as the next process finds it: of what was not synced any part may be there."""
        after = FakeDisk(self.dice.randrange(1 << 30))
        for name in {*self.live, *self.lasting}:
            live, lasting = self.live.get(name, self), self.lasting.get(name, self)
            found = live if live is lasting or self.dice.random() < 0.5 else lasting
            if isinstance(found, Node):
                after.live[name] = Node(bytearray(self._content(found)))
            elif found is None:
                after.live[name] = None
        # Nothing is in a folder whose own name is lost.
        for name in list(after.live):
            folders = [
                folder for folder in name.parents if root in (folder, *folder.parents) and folder != root
            ]
            if not all(folder in after.live for folder in folders):
                del after.live[name]
        after.lasting = dict(after.live)
        for node in after.live.values():
            if node is not None:
                node.synced = bytes(node.data)
        return after

    def _content(self, node: Node) -> bytes:
        if bytes(node.data) == node.synced or self.dice.random() < 0.3:
            return bytes(node.data)
        if self.dice.random() < 0.4:
            return node.synced
        # Its length has come to the disk, its blocks only in part.
        blocks = bytearray(node.data)
        for start in range(len(node.synced), len(blocks), 16):
            if self.dice.random() < 0.5:
                blocks[start : start + 16] = bytes(len(blocks[start : start + 16]))
        return bytes(blocks[: self.dice.randint(len(node.synced), len(blocks))])

    def flip(self) -> Path:
        """One bit of one file is another one. Which file."""
        files = sorted(name for name, node in self.live.items() if node is not None and node.data)
        name = self.dice.choice(files)
        node = self._node(name)
        place = self.dice.randrange(len(node.data))
        node.data[place] ^= 1 << self.dice.randrange(8)
        return name
