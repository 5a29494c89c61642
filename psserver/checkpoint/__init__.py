"""Checkpoints: one version on all servers, with everything that goes on from it, in a folder of plain files.

    disk       what is asked of a file system: the seam at which tests put their own
    files      a file that appears whole under its name, with its digest
    tensors    arrays in the safetensors format, written and read in pieces
    manifest   what a checkpoint is of; written last, it makes the checkpoint one
    store      the folder of all of them: list, verify, take the newest, prune
    contents   the state of a coordinator and its shards, to files and back
    resumption from a checkpoint to a coordinator and shards that go on
    rewind     the log up to a checkpoint, and what followed put aside
    lock       one coordinator to a folder

A server writes its own files; the coordinator completes the checkpoint.
"""

from psserver.checkpoint.contents import (
    Checkpoint,
    Look,
    describe,
    load,
    load_part,
    look,
    newest,
    save_coordinator,
    save_shard,
    settled,
    slots,
    weights,
)
from psserver.checkpoint.disk import Disk
from psserver.checkpoint.errors import CheckpointError, UnwritableError
from psserver.checkpoint.lock import FolderLock
from psserver.checkpoint.manifest import FileFacts, Manifest
from psserver.checkpoint.resumption import (
    check_same_job,
    choose,
    coordinator_of,
    mark_of,
    needed_by,
    part_of,
    plan_of,
    shards_of,
)
from psserver.checkpoint.store import Store, name_of

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Disk",
    "FileFacts",
    "FolderLock",
    "Look",
    "Manifest",
    "Store",
    "UnwritableError",
    "check_same_job",
    "choose",
    "coordinator_of",
    "describe",
    "load",
    "load_part",
    "look",
    "mark_of",
    "name_of",
    "needed_by",
    "part_of",
    "plan_of",
    "shards_of",
    "newest",
    "save_coordinator",
    "save_shard",
    "settled",
    "slots",
    "weights",
]
