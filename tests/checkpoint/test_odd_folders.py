"""What people and other programs leave among checkpoints: it is in nobody's way, and is not harmed."""

import errno
import os
from pathlib import Path

import pytest

from psserver.checkpoint import CheckpointError, Store
from psserver.checkpoint import manifest as manifests
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.fence import GENERATION, begin_next
from psserver.checkpoint.store import entry_of
from tests.checkpoint.written import read, write
from tests.replay.command import ps_lab


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "checkpoints")


def test_an_archive_beside_a_checkpoint_is_none_and_stays(store: Store) -> None:
    """Older than all checkpoints, so that it is looked at first."""
    store.root.mkdir()
    archive = store.root / "0000000001-0a1b2c3d.tar.gz"
    archive.write_bytes(b"an archive")
    assert not store.written()
    name = write(store, 10)
    assert store.written()
    with pytest.raises(CheckpointError, match="was not written to its end"):
        store.manifest(archive.name)
    store.prune(1)
    assert archive.is_file() and read(store, name) == 10


def test_names_that_cannot_be_printed_are_no_checkpoints(store: Store) -> None:
    for name in (
        os.fsdecode(b"0000000001-\xff"),
        "0000000002-a\nb",
        "0000000003-\x1b[2J",
        "0000000004-\u00e4",
    ):
        assert entry_of(name) is None
        (store.root / name).mkdir(parents=True)
    write(store, 10)
    assert store.names() == ["0000000010-0a1b2c3d"]
    assert ps_lab("checkpoints", store.root).code == 0


@pytest.mark.parametrize("file", ["manifest.json", "server-0.safetensors", GENERATION])
def test_a_pipe_keeps_nobody_waiting(store: Store, file: str) -> None:
    name = write(store, 10)
    path = store.root / (name if file != GENERATION else "") / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=r"no regular file|it has 0"):
        begin_next(store, "", "fresh") if file == GENERATION else store.verify(name)


def test_of_a_checkpoint_that_is_kept_elsewhere_only_the_link_goes(store: Store, tmp_path: Path) -> None:
    first = write(store, 10)
    elsewhere = tmp_path / "elsewhere"
    (store.root / first).rename(elsewhere)
    (store.root / first).symlink_to(elsewhere)
    assert read(store, first) == 10
    second = write(store, 20)
    assert store.prune(1) == [first] and store.names() == [second]
    elsewhere.rename(store.root / first)
    assert read(store, first) == 10


@pytest.mark.parametrize("shape", ["[0,1000000000000000000000000]", f"[0{',1' * 70}]"])
def test_a_shape_that_no_array_has_is_damage(store: Store, shape: str) -> None:
    name = write(store, 10)
    path = store.root / name / "server-0.safetensors"
    header = f'{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}'.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        store.arrays(name, path.name, manifests.FileFacts(0, ""))


def test_what_will_not_be_completed_makes_room(store: Store) -> None:
    """And nothing that is complete, whoever asks."""
    name = write(store, 10)
    torn = write(store, 20)
    (store.root / torn / "manifest.json").unlink()
    for each in (name, torn, "0000000030-0a1b2c3d"):
        store.discard(each)
    assert store.names() == [name] and read(store, name) == 10


def test_a_folder_is_made_where_one_may_make_it_and_see_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name cannot be synced there; that of the folder in it can."""
    opened: list[str] = []
    usual = os.open

    def guarded(path: str | Path, *arguments: int, **named: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        opened.append(Path(path).name)
        return usual(path, *arguments, **named)

    monkeypatch.setattr(os, "open", guarded)
    RealDisk().make_folder(tmp_path / "mine" / "run")
    assert (tmp_path / "mine" / "run").is_dir() and opened == ["mine"]


def test_a_file_system_that_cannot_sync_folders_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    RealDisk().make_folder(tmp_path / "run")
    RealDisk().sync_folder(tmp_path / "run")
