"""manifest.json: the facts of a checkpoint and the digests of its files. Written last."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from psserver.checkpoint.disk import CheckpointError
from psserver.decisions.records import MOST_SECONDS
from psserver.records import StateError, from_plain, to_plain
from pswire.domains import in_range
from pswire.model.plan import Plan, make_plan
from pswire.model.tables import tables_from_json
from pswire.model.variables import VariableSpec

NAME = "manifest.json"
FORMAT = 5
# What reads an older format.
READ_BY = {
    1: "release 0.2.0",
    **dict.fromkeys((2, 3, 4), "an unreleased build between 0.2.0 and this one"),
}
# A manifest has a few lines for each variable and file.
LARGEST = 256 << 20


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Size and digest of a file. `sha256`: in hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts of a checkpoint.

    `entry`: the number of its entry in the decision log of `job`. `t`: seconds since the job began. `plan`:
    fingerprint of the layout of `variables` and `tables` (their specifications) over `servers`. `policy`, `optimizer`,
    `tensors`: configurations, as in the log's first entry. `files`: every other file of the checkpoint, by name.
    """

    format: int
    job: str
    entry: int
    version: int
    t: float
    servers: int
    workers: int
    seed: int
    plan: str
    variables: tuple[VariableSpec, ...]
    tables: list[object]
    policy: dict[str, object]
    optimizer: dict[str, object]
    tensors: dict[str, object]
    files: dict[str, FileFacts]

    @property
    def nbytes(self) -> int:
        """The size of all files except the manifest itself."""
        return sum(facts.bytes for facts in self.files.values())

    def plan_for(self, servers: int) -> Plan:
        """Return the plan of this model on that many servers. Raises PlanError."""
        return make_plan(self.variables, servers, tables_from_json(self.tables))

    def text(self) -> bytes:
        """Return the contents of the file: readable JSON with a digest of its own."""
        plain = to_plain(self)
        return (
            json.dumps({"manifest": plain, "sha256": digest_of(plain)}, indent=1, allow_nan=False).encode()
            + b"\n"
        )


def digest_of(plain: object) -> str:
    """Return the digest of the manifest as plain data."""
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def parse(path: Path, text: bytes) -> Manifest:
    """Read what `Manifest.text` wrote. Raises CheckpointError for anything else, and for another release's format."""
    try:
        found = json.loads(text)
        plain, recorded = found["manifest"], found["sha256"]
        intact = digest_of(plain) == recorded
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no manifest of a checkpoint, or was damaged: {error!r}") from error
    if not intact:
        raise CheckpointError(f"{path}: its own digest does not fit: the file was damaged or edited")
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        got = plain.get("format") if isinstance(plain, dict) else plain
        reads = READ_BY.get(got) if isinstance(got, int) else None
        able = f"{reads} reads it" if reads else "another release wrote it"
        raise CheckpointError(f"{path}: expected format {FORMAT}, got {got!r}: {able}")
    try:
        made = from_plain(Manifest, plain, path.name)
    except StateError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not in_range(made.t, 0, MOST_SECONDS):
        raise CheckpointError(f"{path}: t should be seconds from 0 to {MOST_SECONDS:g}, got {made.t:g}")
    return made
