"""Sections of an experiment file that daemons and workers read: run, cluster, policy, optimizer and job.

Knobs of policies and optimizers are not checked here, because only their builders know them.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from pswire.config.flags import CONNECTING, LISTENING, RUN, SERVER, WORKER, Flag
from pswire.config.sections import LARGEST, DelayText, Section, Time
from pswire.config.units import Interval, IntervalError, parse_interval
from pswire.model.plan import MAX_SERVERS, parts_of

Name = Annotated[str, Field(min_length=1)]
# In milliseconds it fits the 32 bits of gRPC's options.
Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
# Seconds that a lost server has to come back, and that workers retry a server that does not answer.
RECOVER: Final = 60.0

_MODULE = re.compile(r".+:[A-Za-z_][A-Za-z0-9_]*")
_DEVICE = re.compile(r"auto|cpu|gpu:[0-9]{1,4}")


def _interval(*units: str) -> AfterValidator:
    """Return a validator of texts that are empty or an interval in one of `units`."""

    def check(text: str) -> str:
        try:
            if text:
                parse_interval(text, units)
        except IntervalError as error:
            raise PydanticCustomError("interval", "{problem}", {"problem": str(error)}) from error
        return text

    return AfterValidator(check)


def _like(pattern: str, expected: str) -> AfterValidator:
    """Return a validator of texts that match the whole pattern or are empty."""

    def check(text: str) -> str:
        if text and not re.fullmatch(pattern, text):
            raise PydanticCustomError("shape", "expected {expected}", {"expected": expected})
        return text

    return AfterValidator(check)


def _folder_name(name: str) -> str:
    """Check a name that becomes a folder in `runs`, and must not lead elsewhere."""
    if name.startswith(".") or "/" in name or not name.isprintable() or len(name) > 100:
        expected = "at most 100 printable characters, without /, and no . at the beginning"
        raise PydanticCustomError("shape", "expected {expected}", {"expected": expected})
    return name


# The units of each interval.
SAVES: Final = ("versions", "s")
EVALUATES: Final = ("epochs", "versions", "s")
CHANGES: Final = ("versions",)


class RunSection(Section):
    """[run]"""

    name: Annotated[Name, AfterValidator(_folder_name)] = "run"
    """of the run; its folder is `runs/NAME` unless `--out` names one"""

    engine: Annotated[Name, Flag((RUN,), metavar="NAME")] = "local"
    """where `ps-lab run` starts the processes"""

    seed: Annotated[int, Field(ge=0, lt=2**63), Flag((SERVER,))] = 0
    """seed of the data order, initial values, dropout and other random layers, and delays. A worker draws initial
    values before it joins: without a file, start every `ps-worker` with the same `--set run.seed=N`"""

    versions: Annotated[int, Field(ge=0, le=LARGEST), Flag((SERVER,))] = 0
    """stop at this version; 0: when the data ends"""

    deterministic: Annotated[bool, Flag((WORKER, RUN))] = False
    """each worker computes on one thread, with TensorFlow's deterministic operations: the run repeats (under a barrier)
    and replays to the bit, without using further cores. A simulated run is always deterministic"""

    checkpoint_every: Annotated[str, _interval(*SAVES), Flag((SERVER,), metavar="N UNIT")] = ""
    """take a checkpoint into the run folder every `500 versions` or `60 s`, and at the end; empty: none. Must be the
    same for all servers"""

    keep: Annotated[int, Field(ge=1, le=LARGEST), Flag((SERVER,))] = 3
    """number of complete checkpoints to keep, the newest ones; older ones are removed, and more if the disk has no room
    for another one"""

    rescue: Annotated[str, Flag((SERVER,), metavar="DIR")] = ""
    """folder for the final weights if they cannot be written to the run folder, for example because the disk is full;
    `""`: the system's temporary folder"""

    @property
    def checkpoints(self) -> Interval | None:
        """The time between two checkpoints, in versions or seconds; None if none are taken."""
        return parse_interval(self.checkpoint_every, SAVES) if self.checkpoint_every else None


class ClusterSection(Section):
    """[cluster]"""

    servers: Annotated[int, Field(ge=1, le=MAX_SERVERS), Flag((RUN,), metavar="N")] = 1
    """number of server processes"""

    workers: Annotated[int, Field(ge=1, le=65536), Flag((SERVER, RUN), metavar="N")] = 1
    """number of workers among which the data is divided, and for which the start waits"""

    worker_timeout: Annotated[Seconds, Flag((SERVER,))] = 10.0
    """seconds that the job waits for a silent worker"""

    idle_timeout: Annotated[Seconds, Flag((SERVER,))] = 600.0
    """seconds that server 0 waits without any worker, and other servers without server 0 (at least 60)"""

    ticket_timeout: Annotated[Literal["auto"] | Time, Flag((SERVER,), metavar="SECONDS")] = "auto"
    """seconds after which a worker that keeps a ticket is given up; 0: never; `auto`: twenty usual steps, at least six
    times `worker_timeout`, and only while another worker waits for it, which never happens under `async`"""

    recover_timeout: Annotated[Literal["auto"] | Time, Flag((SERVER,), metavar="SECONDS")] = "auto"
    """seconds that a lost server has to come back, after which the job continues from its newest checkpoint; 0: its
    loss ends the job; `auto`: 60 if checkpoints are taken"""

    replicas: Annotated[int, Field(ge=1, le=2), Flag((SERVER, WORKER, RUN), metavar="1|2")] = 1
    """2: each pair of servers holds two copies of a part of the model, the first pair also of the job, and an odd last
    one votes: a job on three or more goes on without going back when one of them dies; on two it waits. All need one
    run folder that they see"""

    nonfinite_limit: Annotated[int, Field(ge=1, le=2**31), Flag((SERVER,))] = 10
    """number of consecutive updates after which the job ends (exit code 8), if each leaves a ten-thousandth of the
    model, or a whole variable, as it was, because new numbers would not be finite"""

    wire_dtype: Annotated[Name, Flag((WORKER,))] = "float32"
    """encoding of numbers outside shared memory: `float32`, `bfloat16` or `float16`; for gradients also `int8`, `int4`
    or `top-k`, with error feedback; after a slash the encoding of weights, for which the latter three send changes:
    `int8/bfloat16`, `int8/int8`; servers add in float32"""

    transport: Annotated[Literal["auto", "grpc", "socket", "shared-memory"], Flag((SERVER, WORKER))] = "auto"
    """transport of payloads: `auto` uses shared memory if server and worker are on one machine (float32 only), else a
    plain socket, else gRPC; any other value requires that transport"""

    metrics: bool = False
    """serve `/metrics` for Prometheus on every server, on a free port unless `--metrics-port` names one"""

    prefetch: Annotated[bool, Flag((WORKER,), name="prefetch/--no-prefetch")] = False
    """fetch the next weights while the gradient is computed, if the policy permits it: hides the transfer time, at the
    cost of one more version of staleness and of memory"""

    min_workers: Annotated[int, Field(ge=0, le=65536), Flag((SERVER,))] = 0
    """number of workers for which the start waits; the others may come later; 0: all `workers`"""

    allow_missing: Annotated[bool, Flag((SERVER, RUN))] = False
    """count a job as a success even if a worker left for good before its data ended, or batches were lost with a
    server; otherwise the exit code is 13"""

    max_workers: Annotated[int, Field(ge=0, le=65536), Flag((SERVER,))] = 0
    """number of worker names that may ever join; 0: no limit"""

    allowed_workers: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]],
        Flag((SERVER,), name="allow-worker", metavar="NAME"),
    ] = Field(default_factory=list)
    """the only worker names that may join; empty: any. Names are proved by certificates; without these, a
    name does not prove who uses it"""

    @field_validator("wire_dtype")
    @classmethod
    def _known_codec(cls, name: str) -> str:
        # Imported on use, so that reading a file needs neither numpy nor protobuf.
        from pswire.transport.codecs import WireDtypeError
        from pswire.transport.wire import wire_named

        try:
            return wire_named(name).name
        except WireDtypeError as error:
            raise PydanticCustomError("wire_dtype", "{error}", {"error": str(error)}) from None

    @property
    def parts(self) -> int:
        """The number of parts of the model: one for each server, or with replicas for each pair of them."""
        return parts_of(self.servers, self.replicas)

    @property
    def payload_dtype(self) -> str:
        """The dtype that payloads are rounded to; shared memory is always float32."""
        return "float32" if self.transport == "shared-memory" else self.wire_dtype


class PolicyChange(Section):
    """[[policy.then]]: another policy, or other knobs of the one before, that takes over while the job runs."""

    model_config = ConfigDict(extra="allow")

    after: Annotated[str, Field(min_length=1), _interval(*CHANGES)]
    """when: a number of versions, as `500 versions`"""

    name: Annotated[str, Field(max_length=64)] = ""
    """a built-in policy, every other key being one of its knobs; empty: the policy before, with other knobs"""

    why: Annotated[str, Field(max_length=500)] = ""
    """a reason, for the log"""

    rate: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """factor of the job's learning rate from then on; 0: as it is"""

    @property
    def versions(self) -> int:
        """The number of versions after which the change is due."""
        return int(parse_interval(self.after, CHANGES).amount)

    @property
    def knobs(self) -> dict[str, Any]:
        """The knobs that are given."""
        return dict(self.model_extra or {})


class PolicySection(Section):
    """[policy]: a name and free knobs."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[Name, Flag((SERVER, RUN), name="policy", metavar="NAME")] = "sync"
    """a built-in policy, or `module:Class`; every other key is one of its knobs"""

    then: Annotated[list[PolicyChange], Field(max_length=64)] = []
    """changes while the job runs, in order"""

    @property
    def knobs(self) -> dict[str, Any]:
        """The policy's own keys, for `psserver.policies.build`."""
        return dict(self.model_extra or {})


class OptimizerSection(Section):
    """[optimizer]: a name, a learning rate (number or schedule table) and free knobs."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[Name, Flag((SERVER,), name="optimizer", metavar="NAME")] = "sgd"
    """the optimizer, or `from-job` to use the first worker's; every other key is one of its knobs, which
    `ps-lab list optimizers NAME` lists"""

    learning_rate: Annotated[Any, Flag((SERVER,))] = 0.01
    """a number; in a file also a table with a schedule"""

    @field_validator("learning_rate")
    @classmethod
    def _number_or_schedule(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | dict):
            raise PydanticCustomError("shape", "expected a number or a table with a schedule")
        return value

    @property
    def config(self) -> dict[str, Any]:
        """All keys, for `psserver.optimizers.build`."""
        return {"name": self.name, "learning_rate": self.learning_rate, **(self.model_extra or {})}


class JobSection(Section):
    """[job]: where the user's code is. Without `module` and `script` (a simulated problem) it has `epochs` only."""

    module: Annotated[str, Flag((WORKER,), name="job", metavar="MODULE:NAME")] = ""
    """what to train: `package.module:attribute` or `path/file.py:attribute`. Keras computes with what the environment
    variable KERAS_BACKEND names: tensorflow (the default), jax or torch"""

    epochs: Annotated[int, Field(ge=1, le=2**20), Flag((WORKER, RUN), metavar="N")] = 1
    """passes over the data"""

    evaluate_every: Annotated[str, _interval(*EVALUATES), Flag((WORKER,), metavar="N UNIT")] = ""
    """evaluate on held-out data while training: every `1 epoch`, `200 versions` or `30 s`; empty: at the end only.
    Worker 0 evaluates between two steps and writes to metrics.jsonl; under a barrier the others wait. Real runs only"""

    monitor: Annotated[
        str,
        Field(min_length=1),
        _like(r"((min|max) )?[^ ]+", "the name of a metric, after min or max if needed"),
    ] = "loss"
    """metric that determines the best evaluation; `max NAME` or `min NAME` if the name does not imply the direction"""

    patience: Annotated[int, Field(ge=0, le=10**6)] = 0
    """end the job after this many evaluations in a row without a better `monitor`; 0: never"""

    plateau: Annotated[int, Field(ge=0, le=10**6)] = 0
    """lower the servers' learning rate after this many evaluations in a row without a better `monitor`, then count
    anew; 0: never"""

    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """factor by which `plateau` multiplies the learning rate"""

    plateau_minimum: Annotated[float, Field(ge=0, le=1e30)] = 0.0
    """least learning rate to which `plateau` lowers it"""

    options: dict[str, Any] = Field(default_factory=dict)
    """the job's own options"""

    initial: Annotated[
        str,
        _like(r".+\.(keras|safetensors)", "a file .keras or .safetensors"),
        Flag((WORKER, RUN), metavar="FILE"),
    ] = ""
    """start from the weights in this `.keras` or `.safetensors` file, without optimizer state; empty: from the job's
    `model()`. Every worker reads it, and the first one sends them to the servers"""

    script: str = ""
    """instead of `module`: a program that calls `model.fit` with `psworker.keras.distribute`; every worker runs it"""

    arguments: list[str] = Field(default_factory=list)
    """the script's command line"""

    @property
    def evaluations(self) -> Interval | None:
        """The time between two evaluations; None if there is only one, at the end."""
        return parse_interval(self.evaluate_every, EVALUATES) if self.evaluate_every else None

    @field_validator("module")
    @classmethod
    def _names_an_attribute(cls, value: str) -> str:
        if value and not _MODULE.fullmatch(value):
            raise PydanticCustomError("shape", "expected package.module:attribute or path/file.py:attribute")
        return value


class SecuritySection(Section):
    """[security]: paths of files. Options (`--tls-ca`) and the environment (PS_TLS_CA) take precedence."""

    ca: Annotated[
        str,
        Flag(
            (CONNECTING,),
            "tls-ca",
            "FILE",
            "Trusted certificate authorities (PEM); enables TLS and refuses everything else. Also PS_TLS_CA, or "
            "[security] of the experiment file; likewise for the other options.",
        ),
    ] = ""
    """trusted certificate authorities (PEM); enables TLS and refuses everything else"""

    cert: Annotated[
        str,
        Flag(
            (CONNECTING,),
            "tls-cert",
            "FILE",
            "This process's certificate (PEM); its name ps://CLUSTER/ROLE/NAME determines its rights. Also "
            "PS_TLS_CERT.",
        ),
    ] = ""
    """the process's own certificate (PEM), with the name `ps://CLUSTER/ROLE/NAME`; `{name}` in a path stands for the
    process's name: `server-0`, `w0`, or `observer-0` for observers"""

    key: Annotated[
        str,
        Flag(
            (CONNECTING,),
            "tls-key",
            "FILE",
            "Its private key, which only the owner may read. Also PS_TLS_KEY.",
        ),
    ] = ""
    """its private key, which only the owner may read"""

    insecure: Annotated[
        bool,
        Flag(
            (LISTENING,),
            about="Let other machines reach this process without TLS. Anyone who reaches it may join, and read and "
            "change the model; use it on an isolated network only.",
        ),
    ] = False
    """let servers listen without TLS where other machines reach them"""


class WorkerSection(Section):
    """[workers.N]"""

    device: str = "auto"
    """`cpu`, `gpu:N`, or `auto`; real workers only"""

    delay: DelayText = "constant(0)"
    """a distribution of seconds to wait after every step, for real and simulated workers: makes a straggler"""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise PydanticCustomError("shape", "expected auto, cpu or gpu:N")
        return value
