"""Sections of an experiment file that only `ps-lab` reads: simulated cluster, places."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_serializer
from pydantic_core import PydanticCustomError

from pswire.config import run_sections
from pswire.config.sections import LARGEST, DelayText, Section, Time, keyed_by_number
from pswire.config.units import parse_size
from pswire.nearest import did_you_mean

Count = Annotated[int, Field(ge=0, le=65536)]
Chance = Annotated[float, Field(ge=0, lt=1)]
WorkerNumber = Annotated[int, Field(ge=0, le=65536)]
# Names a class or function of the user's: "package.module:attribute" or "path/file.py:attribute".
_TARGET = r".+:[A-Za-z_][A-Za-z0-9_]*"


def _rate(value: float) -> float:
    if 0 < value < 1:
        raise PydanticCustomError("range", "expected 0 (no limit), or at least 1 byte/s")
    return value


def _problem(text: str) -> str:
    if text not in PROBLEMS and not re.fullmatch(_TARGET, text):
        known = ", ".join(map(repr, PROBLEMS))
        expected = f"{known} or module:Class of your own{did_you_mean(text, PROBLEMS)}"
        raise PydanticCustomError("shape", "expected {expected}", {"expected": expected})
    return text


# What simulated workers compute; "package.module:Class" names a problem of the user's.
PROBLEMS = ("auto", "none", "job", "quadratic", "logistic", "mlp", "clicks")
ProblemName = Annotated[str, AfterValidator(_problem)]


class LinksSection(Section):
    """[links]: the simulated network."""

    latency: Time = 0.0
    """seconds, one way, between a worker and a server, for every message"""

    bandwidth: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False), AfterValidator(_rate)] = 0.0
    """bytes/s of each server's network card, in each direction; its transfers share it evenly; 0: no limit"""


class Fault(Section):
    """A fault of one worker at `at` seconds."""

    worker: WorkerNumber
    """the worker's number, from 0"""

    at: Time
    """seconds since the start of the simulation"""


class Crash(Fault):
    """The worker's process dies."""

    restart: Time = 0.0
    """seconds until it is restarted; 0: never"""

    silent: bool = False
    """the whole machine fails: servers notice only when the keep-alive expires"""


class Leave(Fault):
    """The worker leaves before its data ends."""


class Join(Fault):
    """The worker starts late. Numbers from cluster.workers on are workers for which the start does not wait."""


class Disconnect(Fault):
    """The worker's connection to the coordinator breaks for some seconds."""

    seconds: Time = 1.0
    """seconds without a connection"""


class FaultsSection(Section):
    """[faults]: faults of the simulated cluster."""

    crashes: list[Crash] = Field(default_factory=list)
    """a worker's process dies"""

    leaves: list[Leave] = Field(default_factory=list)
    """a worker leaves before its data ends"""

    joins: list[Join] = Field(default_factory=list)
    """a worker starts late; each worker once; numbers from cluster.workers on are workers for which the start does not
    wait"""

    disconnects: list[Disconnect] = Field(default_factory=list)
    """a worker's connection to the coordinator breaks and comes back"""

    loss: Chance = 0.0
    """probability that a message to or from the coordinator is lost, each time it is sent"""

    duplicate: Chance = 0.0
    """probability that a message arrives twice"""

    resend: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 0.2
    """seconds after which a lost message is sent again"""


class SimulationSection(Section):
    """[simulation]: the simulated workers."""

    compute: DelayText = "constant(0.001)"
    """a distribution of seconds: a worker's step; its own `delay` is added"""

    factors: Annotated[dict[int, Time], BeforeValidator(keyed_by_number)] = Field(default_factory=dict)
    """worker number -> factor on the duration of its steps"""

    problem: ProblemName = "auto"
    """what is computed: `none` (time only), a problem below, `module:Class` of your own, or `job` (the `[job]`, for
    real); `auto`: `job` if there is one, else `none`"""

    options: dict[str, Any] = Field(default_factory=dict)
    """options of the problem; an error without a problem"""

    batches: Annotated[int, Field(ge=0, le=2**40)] = 0
    """time only: batches of each worker and epoch, 0: endless; with `units`: batches of each unit, 0: one"""

    units: Annotated[int, Field(ge=0, le=2**24)] = 0
    """time only, or a problem: work units per epoch, which the coordinator deals to workers on demand; for a problem,
    unit i has the data of worker i of `units`; 0: each worker has its own data"""

    batch_size: Annotated[int, Field(ge=1, le=10**9)] = 32
    """time only: samples per batch"""

    payload_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    """time only: size of the whole model in bytes, for `[links]`"""

    interrupt: bool = False
    """a worker whose ticket is cancelled stops at once, as in the literature; otherwise at the end of its step, as real
    ones do"""

    record: bool = True
    """write `decisions.jsonl` and `metrics.jsonl`; without them a large simulation is faster"""

    seconds: Time = 0.0
    """virtual seconds after which the run stops; 0: never"""

    evaluate: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """evaluate every N versions, in no virtual time; 0: at the end only"""

    until_accuracy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """stop when an evaluation reaches this accuracy; 0: never; needs `evaluate` and a problem with an accuracy"""

    @field_serializer("factors")
    def _text_keys(self, factors: dict[int, float]) -> dict[str, float]:
        return {str(worker): factor for worker, factor in factors.items()}


def _size(text: str) -> str:
    try:
        if text:
            parse_size(text)
    except ValueError as error:
        raise PydanticCustomError("size", "{problem}", {"problem": str(error)}) from error
    return text


class ServerPlace(Section):
    """[cluster.place] servers: the resources of each."""

    cpus: Count = 0
    """of each server; 0: the engine's default"""

    memory: Annotated[str, AfterValidator(_size)] = ""
    """of each server, such as `4GiB`; empty: the engine's default"""

    spread: bool = False
    """put every server on a node of its own, or start nothing; otherwise on as few nodes as have room, but with
    replicas on as many as there are"""

    @property
    def bytes(self) -> int:
        """`memory` in bytes; 0 if not given."""
        return parse_size(self.memory) if self.memory else 0


class WorkerPlace(Section):
    """[cluster.place] workers: the resources of each."""

    cpus: Count = 0
    """of each worker; 0: the engine's default"""

    gpus: Count = 0
    """of each worker"""


class PlaceSection(Section):
    """[cluster.place]: for `ps-lab run` with an engine that has nodes; an engine refuses what it cannot honour."""

    servers: ServerPlace = ServerPlace()
    """resources of each server"""

    workers: WorkerPlace = WorkerPlace()
    """resources of each worker"""

    place_timeout: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 60.0
    """seconds that the run waits for room; then it reports demand and supply, and ends with exit code 3"""

    @property
    def demands(self) -> dict[str, Any]:
        """The resources asked for, by dotted key: `servers.cpus`, `workers.gpus` and so on."""
        parts = (("servers", self.servers), ("workers", self.workers))
        paths = {f"{role}.{key}": value for role, part in parts for key, value in part}
        return {key: value for key, value in paths.items() if value}


class ClusterSection(run_sections.ClusterSection):
    """[cluster], with the machines and resources of its processes."""

    hosts: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """engine `ssh`: machines, `NAME` for one worker or `NAME:N` for N; the servers run on the first, those with
    replicas on one each"""

    place: PlaceSection = PlaceSection()
    """resources of each process on its node"""

    @property
    def written(self) -> dict[str, Any]:
        """The keys of a resolved file; `hosts`, `place` and `replicas` are left out at their defaults."""
        unsaid = {
            name
            for name in ("hosts", "place", "replicas")
            if getattr(self, name) == getattr(ClusterSection(), name)
        }
        return self.model_dump(exclude=unsaid)
