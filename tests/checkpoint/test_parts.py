"""A server that resumes takes no more than it needs: its own part, where there are as many servers as before."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from psserver.checkpoint import (
    CheckpointError,
    Store,
    choose,
    coordinator_of,
    needed_by,
    part_of,
    plan_of,
    shards_of,
)
from psserver.checkpoint.contents import load
from psserver.checkpoint.disk import RealDisk
from psserver.coordinator import JobTerms
from psserver.policies import build
from psserver.shard import ShardState
from tests.checkpoint.test_simulated import play
from tests.sentences import Recorder

SERVERS = 3


class Watched(RealDisk):
    """It knows which files were opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: Path) -> BinaryIO:
        self.opened.append(path.name)
        return super().open(path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"optimizer": {"name": "adam"}, "cluster": {"servers": SERVERS}}
    return play(tmp_path_factory.mktemp("parts") / "run", "sync", None, **settings).path / "checkpoints"


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "checkpoints")


def same(one: ShardState, other: ShardState) -> bool:
    arrays = one.arrays.keys() == other.arrays.keys() and all(
        np.array_equal(values, other.arrays[name]) for name, values in one.arrays.items()
    )
    return arrays and one.facts == other.facts


def test_a_server_reads_its_own_part(folder: Path) -> None:
    store = Store(folder, disk := Watched())
    whole = load(store, name := store.names()[-1])
    disk.opened.clear()
    part = part_of(store, name, plan_of(whole, SERVERS), 1)
    assert same(part, whole.shards[1])
    assert set(disk.opened) == {"manifest.json", "server-1.json", "server-1.safetensors"}


def test_of_another_number_of_servers_it_reads_all(folder: Path) -> None:
    store = Store(folder)
    whole = load(store, name := store.names()[-1])
    plan = plan_of(whole, 2)
    assert same(part_of(store, name, plan, 1), shards_of(whole, plan)[1])


def test_server_0_keeps_its_own_part_and_looks_at_all(folder: Path) -> None:
    """A bit that has flipped in another server's file is found before the log is cut."""
    store = Store(folder, disk := Watched())
    newest, before = (load(store, name) for name in (store.names()[-1], store.names()[-2]))
    found, passed = choose(store, "latest", lambda _: None, needed_by(0, SERVERS))
    assert found.shards.keys() == {0} and same(found.shards[0], newest.shards[0]) and passed == []
    assert {f"server-{server}.safetensors" for server in range(SERVERS)} <= set(disk.opened)
    path = folder / store.names()[-1] / "server-2.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found, (sentence,) = choose(store, "latest", lambda _: None, needed_by(0, SERVERS))
    assert found.manifest == before.manifest
    assert "server-2.safetensors: expected the SHA-256 digest" in sentence


def test_on_another_number_of_servers_server_0_keeps_all_parts(folder: Path) -> None:
    found, _ = choose(Store(folder), "latest", lambda _: None, needed_by(0, 2))
    assert found.shards.keys() == set(range(SERVERS))
    assert shards_of(found, plan_of(found, 2)).keys() == {0, 1}


def test_of_another_layout_on_as_many_servers_all_parts_are_kept(folder: Path) -> None:
    """As another release may have divided the variables."""
    store = Store(folder)
    about = store.manifest(store.names()[-1])
    assert set(needed_by(1, SERVERS)(about)) == {1}
    assert set(needed_by(1, SERVERS)(replace(about, plan="0123456789ab"))) == set(range(SERVERS))


def test_a_manifest_with_another_optimizer_than_the_coordinator_is_refused(
    folder: Path, sentences: Recorder
) -> None:
    whole = load(Store(folder), Store(folder).names()[-1])
    edited = replace(whole, manifest=replace(whole.manifest, optimizer={"name": "sgd"}))
    with sentences.raises(CheckpointError):
        coordinator_of(edited, JobTerms("j"), build("sync", {}, 1))


def test_a_manifest_that_names_no_file_of_a_server_is_refused(folder: Path, sentences: Recorder) -> None:
    store = Store(folder)
    about = store.manifest(name := store.names()[-1])
    with sentences.raises(CheckpointError):
        store.verify_files(name, about, ["server-9.json"])
