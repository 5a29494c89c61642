"""Sections of an experiment file that only the simulated cluster reads, and what all sections share."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_serializer
from pydantic_core import PydanticCustomError

from pswire.config.distributions import DelayError, parse

Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
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


# A distribution of times as pswire.config.distributions reads it, such as "exponential(0.05)".
DelayText = Annotated[str, AfterValidator(_delay)]


class LinksSection(Section):
    """[links]: the simulated network."""

    latency: Time = 0.0  # seconds from a worker to a server, one way
    bandwidth: Time = 0.0  # bytes/s of a server's network card, each way, shared by its flows; 0: no limit


class Fault(Section):
    """Something that happens to one worker at `at` seconds."""

    worker: WorkerNumber
    at: Time


class Crash(Fault):
    """Its process dies."""

    restart: Time = 0.0  # started again so many seconds later; 0: never
    silent: bool = False  # the whole machine: nobody hears of it before the keep-alive runs out


class Leave(Fault):
    """It says goodbye before its data ends."""


class Join(Fault):
    """It starts late. Numbers from cluster.workers on are workers beyond those the start waits for."""


class Disconnect(Fault):
    """Its connection to the coordinator breaks for some seconds."""

    seconds: Time = 1.0


class FaultsSection(Section):
    """[faults]: what goes wrong in the simulated cluster."""

    crashes: list[Crash] = Field(default_factory=list)
    leaves: list[Leave] = Field(default_factory=list)
    joins: list[Join] = Field(default_factory=list)
    disconnects: list[Disconnect] = Field(default_factory=list)
    loss: Chance = 0.0  # chance that a message is lost, each time it is sent
    duplicate: Chance = 0.0  # chance that a message arrives twice
    resend: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2  # a lost message is sent again after it


class SimulationSection(Section):
    """[simulation]: the simulated workers."""

    compute: DelayText = "constant(0.001)"  # time of a step; a worker's own delay is added
    factors: Annotated[dict[int, Time], BeforeValidator(keyed_by_number)] = Field(
        default_factory=dict
    )  # worker -> its steps take so many times as long
    # auto: the [job], computed for real; without a [job] timing only, as "none".
    problem: Literal["auto", "none", "job", "quadratic", "logistic", "mlp"] = "auto"
    options: dict[str, Any] = Field(default_factory=dict)  # of the problem
    batches: Annotated[int, Field(ge=0)] = 0  # timing only: of each worker and epoch; 0: without end
    batch_size: Annotated[int, Field(ge=1)] = 32  # timing only: samples of a batch
    payload_bytes: Annotated[int, Field(ge=0)] = 0  # timing only: of the whole model
    interrupt: bool = False  # a cancelled worker stops at once; else when its step ends, as real ones do
    record: bool = True  # write decisions.jsonl and metrics.jsonl
    seconds: Time = 0.0  # stop at this virtual time; 0: never
    evaluate: Annotated[int, Field(ge=0)] = 0  # learning: every so many versions; 0: at the end only
    until_accuracy: Annotated[float, Field(ge=0, le=1)] = 0.0  # stop when an evaluation reaches it; 0: never

    @field_serializer("factors")
    def _text_keys(self, factors: dict[int, float]) -> dict[str, float]:
        return {str(worker): factor for worker, factor in factors.items()}


class TrackersSection(Section):
    """[trackers]: classes of the user's that `ps-lab run` gives the run's metrics to."""

    classes: list[Target] = Field(default_factory=list)  # "module:Class" or "path/file.py:Class"
    every: Annotated[int, Field(ge=1)] = 10  # versions that make one point
