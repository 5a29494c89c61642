"""Sections of an experiment file that daemons and workers read: the run, its cluster, policy, optimizer and job.

Knobs of policies and optimizers are kept as they stand, because only their
builders know them.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from pswire.config.checkpoints import EveryError, parse_every
from pswire.config.flags import CONNECTING, LISTENING, RUN, SERVER, WORKER, Flag
from pswire.config.places import PlaceSection
from pswire.config.sections import DelayText, Section, Time
from pswire.model.plan import MAX_SERVERS

Name = Annotated[str, Field(min_length=1)]
# In milliseconds it fits the 32 bits of gRPC's options.
Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
# Seconds that a lost server has to come back: for as long workers look for one that does not answer.
RECOVER: Final = 60.0

_MODULE = re.compile(r".+:[A-Za-z_][A-Za-z0-9_]*")
_DEVICE = re.compile(r"auto|cpu|gpu:[0-9]{1,4}")


def _every(text: str) -> str:
    try:
        parse_every(text)
    except EveryError as error:
        raise PydanticCustomError("every", "{problem}", {"problem": str(error)}) from error
    return text


def _like(pattern: str, expected: str) -> AfterValidator:
    """A text that fits the pattern as a whole, or is empty."""

    def check(text: str) -> str:
        if text and not re.fullmatch(pattern, text):
            raise PydanticCustomError("shape", "expected {expected}", {"expected": expected})
        return text

    return AfterValidator(check)


def _folder_name(name: str) -> str:
    """It becomes a folder in `runs`, and nothing above or below that."""
    if name.startswith(".") or "/" in name or not name.isprintable() or len(name) > 100:
        expected = "at most 100 characters that can be printed, without /, and no . at the beginning"
        raise PydanticCustomError("shape", "expected {expected}", {"expected": expected})
    return name


# As pswire.config.checkpoints reads it.
EveryText = Annotated[str, AfterValidator(_every)]


class RunSection(Section):
    """[run]"""

    name: Annotated[Name, AfterValidator(_folder_name)] = "run"
    """of the run; its folder is `runs/NAME` unless `--out` names one"""

    engine: Annotated[Name, Flag((RUN,), metavar="NAME")] = "local"
    """where `ps-lab run` starts the processes"""

    seed: Annotated[int, Field(ge=0, lt=2**63), Flag((SERVER,))] = 0
    """the seed of the data's order, initial values, dropout, what other layers draw, and delays. A worker draws initial
    values before it joins: without a file, start every `ps-worker` with the same `--set run.seed=N`"""

    versions: Annotated[int, Field(ge=0), Flag((SERVER,))] = 0
    """stop at this version; 0: when the data ends"""

    deterministic: Annotated[bool, Flag((WORKER, RUN))] = False
    """each worker computes on one thread, with TensorFlow's deterministic operations: the run repeats (under a barrier)
    and replays to the bit, at the price of the other cores. A simulated run computes so always"""

    checkpoint_every: Annotated[EveryText, Flag((SERVER,), metavar="1000v|60s")] = ""
    """take a checkpoint into the run folder after so many versions (`"1000v"`) or seconds (`"60s"`), and at the end;
    `""`: none. It is the same for all servers"""

    keep: Annotated[int, Field(ge=1), Flag((SERVER,))] = 3
    """complete checkpoints that are kept, the newest ones; older ones are removed, and earlier where the disk has no
    room for another one"""

    rescue: Annotated[str, Flag((SERVER,), metavar="DIR")] = ""
    """a folder for the final weights if the run folder does not take them: the disk is full, say; `""`: the system's
    temporary folder"""


class ClusterSection(Section):
    """[cluster]"""

    servers: Annotated[int, Field(ge=1, le=MAX_SERVERS), Flag((RUN,), metavar="N")] = 1
    """server processes"""

    workers: Annotated[int, Field(ge=1, le=65536), Flag((SERVER, RUN), metavar="N")] = 1
    """workers that the data is divided among, and that the start waits for"""

    worker_timeout: Annotated[Seconds, Flag((SERVER,))] = 10.0
    """seconds that the others wait for a silent worker at most"""

    idle_timeout: Annotated[Seconds, Flag((SERVER,))] = 600.0
    """seconds that servers wait without any worker, and others than server 0 without that one (60 at least)"""

    ticket_timeout: Annotated[Literal["auto"] | Time, Flag((SERVER,), metavar="SECONDS")] = "auto"
    """seconds after which a worker that keeps a ticket is given up; 0: never; `auto`: twenty usual steps, at least six
    times `worker_timeout`, and only while another worker waits for it, which none does under `async`"""

    recover_timeout: Annotated[Literal["auto"] | Time, Flag((SERVER,), metavar="SECONDS")] = "auto"
    """seconds that a lost server has to come back, while the job goes back to its newest checkpoint; 0: its loss ends
    the job; `auto`: 60 where checkpoints are taken"""

    nonfinite_limit: Annotated[int, Field(ge=1, le=2**31), Flag((SERVER,))] = 10
    """updates in a row that are refused, because they would not be finite, after which the job ends (exit code 8)"""

    wire_dtype: Annotated[Name, Flag((WORKER,))] = "float32"
    """how numbers travel outside shared memory: `float32`, `bfloat16` or `float16`; for gradients alone `int8`, `int4`
    or `top-k`, with error feedback, and behind a slash how weights do: `int8/bfloat16`; servers add in float32"""

    transport: Annotated[Literal["auto", "grpc", "socket", "shared-memory"], Flag((SERVER, WORKER))] = "auto"
    """how payloads travel: `auto` is memory that server and worker share on one machine (numbers as float32 only), else
    a plain socket, else gRPC; any other: that, or an error"""

    metrics: bool = False
    """every server has `/metrics` for Prometheus, on a free port unless `--metrics-port` names one"""

    prefetch: Annotated[bool, Flag((WORKER,), name="prefetch/--no-prefetch")] = False
    """fetch the next weights while the gradient is computed, where the policy permits: hides the time of the transfer;
    costs a staleness of one more, and memory for one more version"""

    min_workers: Annotated[int, Field(ge=0, le=65536), Flag((SERVER,))] = 0
    """the start waits for so many workers only, and the others may come later; 0: for all `workers`"""

    allow_missing: Annotated[bool, Flag((SERVER, RUN))] = False
    """a job is a success although a worker has left for good before its data ended, or batches were lost with a server;
    otherwise the exit code is 13"""

    max_workers: Annotated[int, Field(ge=0, le=65536), Flag((SERVER,))] = 0
    """at most so many names of workers may ever join; 0: no limit"""

    allowed_workers: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]],
        Flag((SERVER,), name="allow-worker", metavar="NAME"),
    ] = Field(default_factory=list)
    """the only names of workers that may join; none: any may. With certificates or tokens a name is that of one of
    them; without, it is no proof of who uses it"""

    hosts: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """engine `ssh`: machines, each `NAME` for one worker or `NAME:N` for N; the servers are on the first"""

    place: PlaceSection = PlaceSection()
    """what each process is to have of its node"""

    @field_validator("wire_dtype")
    @classmethod
    def _known_codec(cls, name: str) -> str:
        # Imported on use: numpy and protobuf, which a file is read without.
        from pswire.transport.codecs import WireDtypeError
        from pswire.transport.wire import wire_named

        try:
            return wire_named(name).name
        except WireDtypeError as error:
            raise PydanticCustomError("wire_dtype", "{error}", {"error": str(error)}) from None

    @property
    def written(self) -> dict[str, Any]:
        """The keys of a resolved file: where processes are started stays out of one that does not say it."""
        unsaid = {
            name for name in ("hosts", "place") if getattr(self, name) == getattr(ClusterSection(), name)
        }
        return self.model_dump(exclude=unsaid)

    @property
    def payload_dtype(self) -> str:
        """What payloads are rounded to: nothing in shared memory, which is float32."""
        return "float32" if self.transport == "shared-memory" else self.wire_dtype


class PolicySection(Section):
    """[policy]: a name and free knobs."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[Name, Flag((SERVER, RUN), name="policy", metavar="NAME")] = "sync"
    """a built-in policy, or `module:Class`; every other key is one of its knobs"""

    @property
    def knobs(self) -> dict[str, Any]:
        """All keys but the name, for `psserver.policies.build`."""
        return dict(self.model_extra or {})


class OptimizerSection(Section):
    """[optimizer]: a name, a learning rate (number or schedule table) and free knobs."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[Name, Flag((SERVER,), name="optimizer", metavar="NAME")] = "sgd"
    """the optimizer, or `from-job`: that of the first worker, which names it; every other key is one of its knobs,
    which `ps-lab optimizers NAME` lists"""

    learning_rate: Annotated[Any, Flag((SERVER,))] = 0.01
    """a number, or in a file also a table with a schedule"""

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
    """what to train: `package.module:attribute` or `path/file.py:attribute`"""

    epochs: Annotated[int, Field(ge=1), Flag((WORKER, RUN), metavar="N")] = 1
    """passes over the data"""

    evaluate_every: Annotated[
        str,
        _like(r"[1-9][0-9]{0,8} ?(epochs?|versions?|s)", "1 epoch, 200 versions, 30 s or the like"),
        Flag((WORKER,), metavar="N UNIT"),
    ] = ""
    """measure the held-out data while training: `1 epoch`, `200 versions` or `30 s`; empty: at the end only. Worker 0
    does it between two steps, into metrics.jsonl; under a barrier the others wait meanwhile. Real runs only"""

    monitor: Annotated[
        str,
        Field(min_length=1),
        _like(r"((min|max) )?[^ ]+", "the name of a metric, behind min or max if need be"),
    ] = "loss"
    """the metric by which the best evaluation is known; `max NAME` or `min NAME` where the name does not say it"""

    patience: Annotated[int, Field(ge=0, le=10**6)] = 0
    """end the job when `monitor` was not better in so many evaluations in a row; 0: never"""

    plateau: Annotated[int, Field(ge=0, le=10**6)] = 0
    """lower the learning rate of the servers when `monitor` was not better in so many evaluations in a row, and count
    anew; 0: never"""

    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """what the learning rate is multiplied with then"""

    plateau_minimum: Annotated[float, Field(ge=0, le=1e30)] = 0.0
    """the learning rate is not lowered below this one"""

    options: dict[str, Any] = Field(default_factory=dict)
    """the job's own options"""

    initial: Annotated[
        str,
        _like(r".+\.(keras|safetensors)", "a file .keras or .safetensors"),
        Flag((WORKER, RUN), metavar="FILE"),
    ] = ""
    """begin with the weights in this `.keras` or `.safetensors` file, without an optimizer's state; empty: with those
    of the job's `model()`. Every worker reads it, and the first gives them to the servers"""

    script: str = ""
    """instead of `module`: a program that calls `model.fit` with `psworker.keras.distribute`; every worker runs it"""

    arguments: list[str] = Field(default_factory=list)
    """the script's command line"""

    @field_validator("module")
    @classmethod
    def _names_an_attribute(cls, value: str) -> str:
        if value and not _MODULE.fullmatch(value):
            raise PydanticCustomError("shape", "expected package.module:attribute or path/file.py:attribute")
        return value

    @property
    def named(self) -> dict[str, Any]:
        """The keys that say something: those of a module, those of a script, or the epochs of neither."""
        ours = {"script", "arguments"}
        if self.module:
            return self.model_dump(exclude=ours)
        return self.model_dump(include=ours if self.script else {"epochs"})


class SecuritySection(Section):
    """[security]: paths of files. Options (`--tls-ca`) and the environment (PS_TLS_CA) count before it."""

    ca: Annotated[
        str,
        Flag(
            (CONNECTING,),
            "tls-ca",
            "FILE",
            "Authorities whose certificates are believed (PEM); TLS is spoken from then on, and nothing else. Or "
            "PS_TLS_CA, or [security] of the experiment file; so are the others.",
        ),
    ] = ""
    """authorities whose certificates are believed (PEM); from then on TLS is spoken, and nothing else"""

    cert: Annotated[
        str,
        Flag(
            (CONNECTING,),
            "tls-cert",
            "FILE",
            "This process's certificate (PEM), whose name ps://CLUSTER/ROLE/NAME says what it may do. Or PS_TLS_CERT.",
        ),
    ] = ""
    """the process's own certificate (PEM), with the name `ps://CLUSTER/ROLE/NAME`; `{name}` in a path is the process's
    name: `server-0`, `w0`, and `observer-0` for who looks"""

    key: Annotated[
        str,
        Flag((CONNECTING,), "tls-key", "FILE", "Its private key, which nobody else may read. Or PS_TLS_KEY."),
    ] = ""
    """its private key, which nobody else may read"""

    token_file: Annotated[
        str,
        Flag(
            (CONNECTING,),
            "token-file",
            "FILE",
            "Instead of certificates of clients: a file (mode 0600) with lines such as 'worker/w0 SECRET', a client's "
            "with its own line only. Or the lines themselves in PS_TOKEN.",
        ),
    ] = ""
    """tokens instead of certificates of clients, over TLS; a file of mode 0600"""

    insecure: Annotated[
        bool,
        Flag(
            (LISTENING,),
            about="Let other machines reach this process without TLS. Whoever reaches it may join, read the model and "
            "change it; on a network of its own that may be right.",
        ),
    ] = False
    """servers may listen where other machines reach them, without TLS"""


class WorkerSection(Section):
    """[workers.N]"""

    device: str = "auto"
    """`cpu`, `gpu:N`, or `auto`; real workers only"""

    delay: DelayText = "constant(0)"
    """a distribution of seconds, waited after every step by real and simulated workers alike: a straggler on purpose"""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise PydanticCustomError("shape", "expected auto, cpu or gpu:N")
        return value
