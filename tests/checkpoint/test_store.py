"""The folder of checkpoints on a real disk: what is refused and why, what is removed, who may write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from psserver.checkpoint import CheckpointError, FolderLock, Store
from psserver.checkpoint import manifest as manifests
from psserver.checkpoint.store import entry_of, name_of
from tests.checkpoint.written import JOB, arrays_of, read, write


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "checkpoints")


def test_what_is_written_is_read(store: Store) -> None:
    names = [write(store, entry) for entry in (10, 9, 100)]
    assert store.names() == sorted(names)
    assert [read(store, name) for name in store.names()] == [9, 10, 100]
    assert all(not name.endswith(".part") for folder in store.root.iterdir() for name in os.listdir(folder))


def test_others_read_the_arrays(store: Store) -> None:
    """With the package of the format."""
    name = write(store, 10)
    found = load_file(store.root / name / "server-1.safetensors")
    expected = arrays_of(10, 1)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_files_are_the_owners_only(store: Store) -> None:
    """Sessions, which a worker's process proves itself by, are in them."""
    name = write(store, 10)
    assert {path.stat().st_mode & 0o077 for path in (store.root / name).iterdir()} == {0}


def test_names_say_entry_and_job(store: Store) -> None:
    assert entry_of(name_of(812, JOB)) == 812 and name_of(812, JOB) == "0000000812-0a1b2c3d"
    for odd in ("notes", "12", "-x", "12-", "x-1", ".lock", "١٢-x"):
        assert entry_of(odd) is None
    (store.root / "notes").mkdir(parents=True)
    assert store.names() == []


def _without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _cut(folder: Path) -> None:
    path = folder / "server-0.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def _gone(folder: Path) -> None:
    (folder / "server-1.json").unlink()


def _changed(folder: Path) -> None:
    path = folder / "server-1.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 64
    path.write_bytes(bytes(data))


def _edited(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))


def _half(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])


def _formatted(folder: Path, number: int) -> None:
    path = folder / "manifest.json"
    plain = json.loads(path.read_text())["manifest"] | {"format": number}
    path.write_text(json.dumps({"manifest": plain, "sha256": manifests.digest_of(plain)}))


def _later_release(folder: Path) -> None:
    _formatted(folder, 99)


def _former_release(folder: Path) -> None:
    _formatted(folder, 1)


def _deep(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)


def _moved(folder: Path) -> None:
    folder.rename(folder.with_name(name_of(11, JOB)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without_manifest, "has no manifest.json: it was not written to its end"),
        (_cut, "server-0.safetensors: expected .* bytes, it has"),
        (_gone, "server-1.json: expected .* bytes, it is missing"),
        (_changed, "server-1.safetensors: expected the SHA-256 digest .* damaged or edited"),
        (_edited, "manifest.json: its own digest does not fit"),
        (_half, "manifest.json: is no manifest of a checkpoint"),
        (_later_release, "expected format 5, got 99: another release wrote it"),
        (_former_release, "expected format 5, got 1: release 0.2.0 reads it"),
        (_deep, "manifest.json: is no manifest of a checkpoint"),
        (_moved, "is of entry 10 of job 0a1b2c3d, expected that of its folder"),
    ],
)
def test_what_is_damaged_is_refused_with_the_files_name(store: Store, damage: object, words: str) -> None:
    assert callable(damage)
    damage(store.root / write(store, 10))
    (name,) = store.names()
    with pytest.raises(CheckpointError, match=words):
        store.verify(name)
    with pytest.raises(CheckpointError, match=words):
        read(store, name)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b'{"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}',
        b'{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}',
        b'{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}',
        b'{"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
        b'{"w":3}',
        b"{" * 5000,
    ],
)
def test_a_file_that_is_no_safetensors_takes_no_memory(store: Store, header: bytes) -> None:
    name = write(store, 10)
    path = store.root / name / "server-0.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match=r"is no safetensors file|follow on the last array"):
        store.arrays(name, path.name, manifests.FileFacts(0, ""))


def test_only_complete_newer_ones_make_older_ones_superfluous(store: Store) -> None:
    first, second, third, fourth = (write(store, entry) for entry in (10, 20, 30, 40))
    _without_manifest(store.root / third)
    _without_manifest(store.root / first)
    # Two are complete: no more is removed than the torn ones that are older than the newest.
    assert store.prune(5) == [first, third]
    assert store.names() == [second, fourth]
    _cut(store.root / fourth)
    assert store.prune(1) == []
    assert store.names() == [second, fourth]
    fifth = write(store, 50)
    assert store.prune(1, frozenset({fourth})) == [second]
    assert store.prune(1) == [fourth] and store.names() == [fifth]


def test_void_ones_count_as_none(store: Store) -> None:
    """However new they are; they go once one from which a job can go on is newer."""
    first, second, third, fourth = (write(store, entry) for entry in (10, 20, 30, 40))
    void = frozenset({second, fourth}).__contains__
    assert store.prune(2, void=void) == [second]
    assert store.names() == [first, third, fourth]
    fifth = write(store, 50)
    assert store.prune(2, void=void) == [first, fourth]
    assert store.names() == [third, fifth]


def test_a_folder_that_cannot_be_written_to_is_named(store: Store) -> None:
    store.root.parent.joinpath("checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match="checkpoints.* cannot be made"):
        write(store, 10)
    assert Store(Path("/nowhere/checkpoints")).names() == []


def test_one_coordinator_to_a_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from psserver.checkpoint import FolderLock;"
        f"lock = FolderLock(Path({str(tmp_path)!r})); print('held', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(
            CheckpointError, match=rf"another coordinator \(process {other.pid}\) works in it"
        ):
            FolderLock(tmp_path)
        other.kill()
    with FolderLock(tmp_path), pytest.raises(CheckpointError, match=str(os.getpid())):
        FolderLock(tmp_path)
    FolderLock(tmp_path).close()
