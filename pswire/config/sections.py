"""Sections of an experiment file that only the simulated cluster reads, and what all sections share."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_serializer
from pydantic_core import PydanticCustomError

from pswire.config.distributions import DelayError, parse

# Up to thirty years: beyond, the ticks of a virtual clock would vanish beside its time.
Time = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Chance = Annotated[float, Field(ge=0, lt=1)]
WorkerNumber = Annotated[int, Field(ge=0, le=65536)]
# Names something of the user's own: "package.module:attribute" or "path/file.py:attribute".
Target = Annotated[str, Field(pattern=r".+:[A-Za-z_][A-Za-z0-9_]*")]


class Section(BaseModel):
    # Strict: 1 for true or "1" for 1 is a slip, not a style.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def keyed_by_number(value: Any) -> Any:
    """TOML's keys are strings; a key that is no number stays one and is refused for it."""
    if not isinstance(value, Mapping):
        return value
    is_number = re.compile(r"[0-9]{1,9}").fullmatch
    return {int(key) if is_number(str(key)) else key: entry for key, entry in value.items()}


def _delay(text: str) -> str:
    try:
        parse(text)
    except DelayError as error:
        raise PydanticCustomError("delay", "{problem}", {"problem": str(error)}) from error
    return text


def _rate(value: float) -> float:
    if 0 < value < 1:
        raise PydanticCustomError("range", "expected 0 (no limit), or 1 byte/s at least")
    return value


# A distribution of times as pswire.config.distributions reads it, such as "exponential(0.05)".
DelayText = Annotated[str, AfterValidator(_delay)]


class LinksSection(Section):
    """[links]: the simulated network."""

    latency: Time = 0.0
    """seconds, one way, between a worker and a server, for every message"""

    bandwidth: Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_rate)] = 0.0
    """bytes/s of each server's network card, in each direction; its transfers share it evenly; 0: no limit"""


class Fault(Section):
    """Something that happens to one worker at `at` seconds."""

    worker: WorkerNumber
    """the worker's number, from 0"""

    at: Time
    """seconds since the start of the simulation"""


class Crash(Fault):
    """Its process dies."""

    restart: Time = 0.0
    """seconds after which it is started again; 0: never"""

    silent: bool = False
    """the whole machine is gone: the servers notice only when the keep-alive runs out"""


class Leave(Fault):
    """It leaves before its data ends."""


class Join(Fault):
    """It starts late. Numbers from cluster.workers on are workers beyond those the start waits for."""


class Disconnect(Fault):
    """Its connection to the coordinator breaks for some seconds."""

    seconds: Time = 1.0
    """seconds for which the connection is gone"""


class FaultsSection(Section):
    """[faults]: what goes wrong in the simulated cluster."""

    crashes: list[Crash] = Field(default_factory=list)
    """a worker's process dies"""

    leaves: list[Leave] = Field(default_factory=list)
    """a worker leaves before its data ends"""

    joins: list[Join] = Field(default_factory=list)
    """a worker starts late; each worker once; numbers from cluster.workers on are workers beyond those that the
    start waits for"""

    disconnects: list[Disconnect] = Field(default_factory=list)
    """a worker's connection to the coordinator breaks and comes back"""

    loss: Chance = 0.0
    """probability that a message to or from the coordinator is lost, each time it is sent"""

    duplicate: Chance = 0.0
    """probability that a message arrives twice"""

    resend: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """seconds after which a lost message is sent again"""


class SimulationSection(Section):
    """[simulation]: the simulated workers."""

    compute: DelayText = "constant(0.001)"
    """a distribution of seconds: a worker's step; its own `delay` is added"""

    factors: Annotated[dict[int, Time], BeforeValidator(keyed_by_number)] = Field(default_factory=dict)
    """worker number -> factor by which its steps take longer"""

    problem: Literal["auto", "none", "job", "quadratic", "logistic", "mlp"] = "auto"
    """what is computed: `none` (time only), a problem below, or `job` (the `[job]`, for real); `auto` is `job` where
    there is one, else `none`"""

    options: dict[str, Any] = Field(default_factory=dict)
    """the problem's own; an error where no problem is named"""

    batches: Annotated[int, Field(ge=0)] = 0
    """time only: batches of each worker and epoch, 0: without end; with `units`, of each unit, 0: one"""

    units: Annotated[int, Field(ge=0, le=2**40)] = 0
    """time only, or a problem: work units of each epoch, which the coordinator deals to workers as they come; of a
    problem a unit is what worker i of `units` would have; 0: each worker has data of its own"""

    batch_size: Annotated[int, Field(ge=1)] = 32
    """time only: samples of a batch"""

    payload_bytes: Annotated[int, Field(ge=0)] = 0
    """time only: bytes of the whole model, for `[links]`"""

    interrupt: bool = False
    """a worker whose ticket is cancelled stops at once, as in the literature; otherwise when its step ends, as real
    ones do"""

    record: bool = True
    """write `decisions.jsonl` and `metrics.jsonl`; without them a large simulation is faster"""

    seconds: Time = 0.0
    """virtual seconds after which the run stops; 0: never"""

    evaluate: Annotated[int, Field(ge=0)] = 0
    """evaluate every N versions, which takes no virtual time; 0: at the end only"""

    until_accuracy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """stop when an evaluation reaches it; 0: never; needs `evaluate` and a problem that has an accuracy"""

    @field_serializer("factors")
    def _text_keys(self, factors: dict[int, float]) -> dict[str, float]:
        return {str(worker): factor for worker, factor in factors.items()}


class TrackersSection(Section):
    """[trackers]: classes of the user's that `ps-lab run` gives the run's metrics to."""

    classes: list[Target] = Field(default_factory=list)
    """Trackers, each `package.module:Class` or `path/file.py:Class`; see [Observe a run](observe.md)"""
    every: Annotated[int, Field(ge=1)] = 10
    """Versions that make one point"""
