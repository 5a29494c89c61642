"""Checkpoints: one version on all servers, with everything needed to continue from it, in a folder of plain files.

    disk        the file system behind an interface, at which tests inject faults
    files       a file that appears whole under its name, with its digest
    tensors     arrays in the safetensors format, written and read in pieces
    manifest    the facts of a checkpoint; written last, it completes the checkpoint
    store       the folder of all checkpoints: list, verify, take the newest, prune
    rows        rows of tables, in pieces
    contents    the state of a coordinator and its shards, to files and back
    resumption  from a checkpoint to a running coordinator and shards
    rewind      the log up to a checkpoint; the rest is put aside
    fence       one coordinator per folder, one name per generation

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
from psserver.checkpoint.disk import CheckpointError, Disk, UnwritableError
from psserver.checkpoint.fence import FolderLock
from psserver.checkpoint.manifest import FileFacts, Manifest
from psserver.checkpoint.resumption import (
    check_same_job,
    choose,
    coordinator_of,
    mark_of,
    nbytes_for,
    needed_by,
    part_of,
    plan_of,
    shards_of,
)
from psserver.checkpoint.rows import restore_bytes
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
    "nbytes_for",
    "part_of",
    "restore_bytes",
    "plan_of",
    "shards_of",
    "newest",
    "save_coordinator",
    "save_shard",
    "settled",
    "slots",
    "weights",
]
