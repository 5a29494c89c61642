"""The agreement of a job's members: terms, policy, model, codec, and whose optimizer it is.

A worker with a compiled Keras model names its optimizer at Join. A server that was started with an optimizer
refuses any other; one that was started with `optimizer = "from-job"` takes that of the first worker.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from psserver.codec_rules import check_codec
from psserver.coordinator import JobTerms
from psserver.coordinator.units import WorkTerms
from psserver.optimizers import Optimizer, OptimizerError, build
from psserver.policies import Policy, PolicyError, advice
from psserver.service.errors import precondition
from pswire.config.experiment import FROM_JOB
from pswire.logs.events import event
from pswire.model.plan import Plan, VariableSpec, make_plan
from pswire.model.tables import TableSpec
from pswire.transport.blocks import BlockCodec
from pswire.transport.codecs import Codec

__all__ = [
    "FROM_JOB",
    "Agreement",
    "AgreedModel",
    "Named",
    "NextJob",
    "agree_on_codec",
    "agreed",
    "explain_difference",
    "explain_other_deltas",
    "explain_other_work",
    "planned",
]


log = logging.getLogger("ps-server")


class AgreedModel(NamedTuple):
    """The variables and sparse tables of a model."""

    variables: tuple[VariableSpec, ...]
    tables: tuple[TableSpec, ...] = ()


Named = Callable[[], AgreedModel]
"""Reads the model that a worker names, which takes time; raises PlanError."""


@dataclass(frozen=True, slots=True)
class NextJob:
    """`predecessors`: only workers of these may join; empty: anybody. `workers`: how many its start waits for; 0: as
    many as the server was started for. `folder`: the number of its folder."""

    predecessors: tuple[str, ...] = ()
    workers: int = 0
    folder: int = 0


@dataclass(slots=True)
class Agreement:
    """The agreement on what the job trains and how, as far as it is known. The loop's thread owns it."""

    terms: JobTerms
    policy: Policy
    # None until a worker names it.
    optimizer: Optimizer | None
    # The optimizer that the server was started with; None if the first worker names it.
    configured: Optimizer | None = field(init=False)
    # The plan of the model, once a worker has named it.
    plan: Plan | None = None
    # The codec of gradients, as named by the last worker that joined.
    codec: Codec | None = None
    # The codec of changes by which weights travel, once there is a plan; None: they travel whole.
    deltas: BlockCodec | None = None
    # The job that follows on these servers, once this one has made room for it (`psserver.service.job.next_job`).
    following: NextJob | None = None

    def __post_init__(self) -> None:
        self.configured = self.optimizer

    def advise(self) -> None:
        """Warn if the policy is meant for another optimizer."""
        advised = None if self.optimizer is None else advice(self.policy.name, self.optimizer.config)
        if advised is not None:
            log.warning("%s", advised, extra=event("advice"))


def planned(agreement: Agreement, model: Named, fingerprint: str) -> Plan:
    """Return the plan of a worker's model. Nothing is computed if its fingerprint is the job's and `model`
    gives no variables, because they were found to be the job's.

    Raises Refused if the fingerprint does not fit the variables, PlanError if they cannot be planned.
    """
    given = model()
    if agreement.plan is not None and agreement.plan.fingerprint == fingerprint and not given.variables:
        return agreement.plan
    servers = agreement.terms.servers
    proposed = make_plan(given.variables, servers, given.tables)
    if fingerprint != proposed.fingerprint:
        raise precondition(
            f"plan fingerprint: expected {proposed.fingerprint} for these variables on {servers} "
            f"servers, got {fingerprint!r}: have all processes the same servers, and the same version of the software?"
        )
    return proposed


def agreed(configured: Optimizer | None, requested: str, *, rate_was_set: bool = False) -> Optimizer:
    """Return the job's optimizer. `configured`: None under "from-job"; `requested`: JSON, or "" from a worker that
    names none.

    `rate_was_set`: a worker has set another learning rate since the job began, so rates are not compared. Raises
    Refused, naming both where they differ.
    """
    if not requested:
        if configured is None:
            raise precondition(
                f'this server was started with optimizer = "{FROM_JOB}" and waits for a worker that names one '
                "(model.fit with psworker.keras.distribute does): for workers that name none start it with --optimizer "
                "adam, say"
            )
        return configured
    try:
        wanted = build(_table(json.loads(requested)))
    except (ValueError, RecursionError) as error:
        raise precondition(f"the worker's optimizer: {error}") from error
    if configured is None:
        return wanted
    ours, theirs = dict(configured.config), dict(wanted.config)
    if rate_was_set and isinstance(theirs["learning_rate"], float):
        del ours["learning_rate"], theirs["learning_rate"]
    difference = explain_difference(ours, theirs)
    if difference is not None:
        raise precondition(
            f"this server runs {_described(configured)}, and the worker's model was compiled for {_described(wanted)}: "
            f"{difference}; start the server with the same one, or with --optimizer {FROM_JOB}, which takes "
            "that of the first worker"
        )
    return configured


def agree_on_codec(agreement: Agreement, codec: Codec, optimizer: Optimizer) -> None:
    """Raise Refused if a worker's gradients cannot travel by `codec`."""
    other = agreement.codec
    if other is not None and other is not codec and (other.scaled or codec.scaled):
        raise precondition(
            f"this job's workers send gradients as {other.name}: expected wire_dtype {other.name}, got {codec.name}"
        )
    try:
        check_codec(codec, agreement.policy, optimizer)
    except PolicyError as error:
        raise precondition(str(error)) from error


def explain_other_deltas(ours: BlockCodec | None, theirs: BlockCodec | None) -> str:
    """Explain why a worker that reads weights in another way than the job's cannot take part."""
    here, there = ("whole" if codec is None else f"as changes in {codec.name}" for codec in (ours, theirs))
    return f"this job's weights travel {here}, this worker expects them {there}: start all workers with one wire_dtype"


def explain_difference(configured: Mapping[str, object], wanted: Mapping[str, object]) -> str | None:
    """Return the first difference between two resolved configurations; None if they compute the same."""
    for key in dict.fromkeys([*configured, *wanted]):
        ours, theirs = configured.get(key), wanted.get(key)
        if not _same(ours, theirs):
            return f"{key} is {json.dumps(ours)} here and {json.dumps(theirs)} there"
    return None


def explain_other_work(ours: WorkTerms | None, theirs: WorkTerms | None) -> str:
    """Explain why a worker whose data is dealt in another way than the job's cannot take part."""
    here = f"deals {ours}" if ours is not None else "deals no work units: each worker brings data of its own"
    there = f"expects {theirs}" if theirs is not None else "expects none"
    return (
        f"this job {here}; this worker {there}: start all workers with the same script and the same --epochs"
    )


def _same(one: object, other: object) -> bool:
    """Compare values; numbers are compared as float32, in which updates compute."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.float32(one) == np.float32(other))
    return one == other


def _described(optimizer: Optimizer) -> str:
    rate = optimizer.config["learning_rate"]
    return f"{optimizer.name} with learning_rate = {json.dumps(rate)}"


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise OptimizerError(f"expected an object, got {json.dumps(value)[:80]}")
    return value
