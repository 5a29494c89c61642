"""The local rules beside the plain one, and the rule that a name and numbers in the answer to Join stand for."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from pswire.domains import Domain
from pswire.knobs import Knob, KnobError
from pswire.model.groups import Groups
from pswire.model.plan import Plan, PlanError
from psworker.local.inner import Inner, InnerAdamW, InnerSteps, Sgd, Slots, fresh, inner_steps, norm_of
from psworker.local.rule import Flats, Gradient, Plain, Result, RuleResult, WorkerRule


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """Local SGD and DiLoCo: pull, take `steps` steps, and push x_pulled - x_local.

    That is a gradient for the servers' (outer) optimizer. With outer SGD at learning rate 1 the mean of payloads makes
    the model the mean of the workers' models: local SGD (Stich 2019), FedAvg (McMahan et al. 2017). DiLoCo (Douillard
    et al. 2023) has AdamW inside and Nesterov outside, and each worker keeps its AdamW's moments from round to round.
    """

    trainable: tuple[int, ...]
    steps: int
    inner: Inner
    steps_before_pull: ClassVar[bool] = False
    overlap: ClassVar[int] = 0

    @property
    def remembers(self) -> bool:
        return bool(self.inner.slots)

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        raise TypeError("local steps begin at pulled weights only")

    def payload(
        self,
        memory: Slots | None,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
        version: int,
    ) -> tuple[Result, Slots]:
        slots = memory if memory is not None else fresh(self.inner, self.trainable)
        made = inner_steps(weights, slots, self.inner, self.trainable, gradient, batches)
        if not made.finite:
            return RuleResult(made.x, made.loss, made.norm, made.samples), slots
        for local, pulled, size in zip(made.x, weights, self.trainable, strict=True):
            # The steps' own arrays become the payload: nothing else refers to them.
            np.subtract(pulled[:size], local[:size], out=local[:size])
            np.subtract(local[size:], pulled[size:], out=local[size:])
        norm = norm_of(made.x, self.trainable)
        return RuleResult(made.x, made.loss, norm, made.samples), made.slots


@dataclass(frozen=True, slots=True)
class Streamed:
    """The memory of a worker of `StreamingSteps`: the `version` that its last payload started from, its weights after
    the steps, and its optimizer's state."""

    version: int
    x: Flats
    slots: Slots


@dataclass(frozen=True, slots=True)
class StreamingSteps:
    """Streaming DiLoCo (Douillard et al. 2025, algorithm 2): as `LocalSteps`, but a worker goes on from its own weights
    while its payload and the new version travel, and a round exchanges one group of rows, that of its version
    (`pswire.model.groups`).

    Of its steps the worker takes the first `overlap` from its own weights x. Then it waits for the pulled weights y,
    and mixes: x = `mixing` x + (1 - mixing) y, in the group that it pushed last and in those that the servers have
    changed since. If y is the version of its last payload, which was dropped then, or if it cannot tell, it takes y
    over. So y is where each group of its own began, and what it pushes after its last step is y - x, of the round's
    group.
    """

    whole: LocalSteps
    # None where only time is simulated.
    groups: Groups | None
    overlap: int = 0
    mixing: float = 0.0
    steps_before_pull: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    @property
    def steps(self) -> int:
        return self.whole.steps

    def take_steps(self, memory: Streamed, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        whole = self.whole
        first = islice(batches, self.overlap)
        return inner_steps(memory.x, memory.slots, whole.inner, whole.trainable, gradient, first)

    def payload(
        self,
        memory: Streamed | None,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
        version: int,
    ) -> tuple[Result, Streamed | None]:
        whole, batches = self.whole, iter(batches)
        if memory is None:
            first = InnerSteps.none(weights, fresh(whole.inner, whole.trainable))
        else:
            first = taken if taken is not None else self.take_steps(memory, gradient, batches)
            if not first.finite:
                return RuleResult(first.x, first.loss, first.norm, first.samples), memory
            first = replace(first, x=self._mixed(memory.version, first.x, weights, version))
        rest = inner_steps(first.x, first.slots, whole.inner, whole.trainable, gradient, batches)
        made = rest.after(first)
        if not made.finite:
            return RuleResult(made.x, made.loss, made.norm, made.samples), memory
        payload = self._moved(weights, made.x, version)
        norm = norm_of(payload, whole.trainable)
        return RuleResult(payload, made.loss, norm, made.samples), Streamed(version, made.x, made.slots)

    def _mixed(self, since: int, own: Flats, pulled: Flats, version: int) -> Flats:
        """Return the weights after mixing. `since`: the version that the worker's last payload started from."""
        assert self.groups is not None
        if not since <= version <= since + self.groups.count:
            return pulled
        mixed = [x.copy() for x in own]
        alpha, rest = np.float32(self.mixing), np.float32(1 - self.mixing)
        for turn in range(since, max(since + 1, version)):
            for server, (out, x, y) in enumerate(zip(mixed, own, pulled, strict=True)):
                # State is a part of every group, so it may be mixed again: from the worker's own, with the same result.
                part = self.groups.of(turn, server)
                arrived = part.take(y)
                if self.mixing and version > since:
                    arrived = alpha * part.take(x) + rest * arrived
                part.put(out, arrived)
        return mixed

    def _moved(self, pulled: Flats, own: Flats, version: int) -> Flats:
        """Return what to push: pulled - own of the round's group, and own - pulled of state."""
        assert self.groups is not None
        payload = [np.zeros_like(y) for y in pulled]
        for server, (out, y, x) in enumerate(zip(payload, pulled, own, strict=True)):
            part, size = self.groups.of(version, server), self.whole.trainable[server]
            part.put(out, part.take(y) - part.take(x))
            np.subtract(x[size:], y[size:], out=out[size:])
        return payload


@dataclass(frozen=True, slots=True)
class Elastic:
    """EASGD (Zhang, Choromanska and LeCun 2015, algorithm 1): a spring ties each worker's weights x_i to a centre c.

    Take `steps` steps of SGD on x_i, then e = alpha (x_i - c), x_i -= e, c += e. -e travels as a gradient for servers
    that run SGD at learning rate 1. The exchange conserves c + the sum of all x_i. The steps come before the grant, so
    that c is fresh when it is pulled. A worker begins at the centre, so only its first steps come after a pull.
    """

    trainable: tuple[int, ...]
    steps: int
    alpha: float
    inner: Sgd
    remembers: ClassVar[bool] = True
    steps_before_pull: ClassVar[bool] = True
    overlap: ClassVar[int] = 0

    def take_steps(self, memory: Flats, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        return inner_steps(memory, Slots(), self.inner, self.trainable, gradient, batches)

    def payload(
        self,
        memory: Flats | None,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
        version: int,
    ) -> tuple[Result, Flats]:
        start = memory if memory is not None else weights
        made = taken if taken is not None else self.take_steps(start, gradient, batches)
        if not made.finite:
            return RuleResult(made.x, made.loss, made.norm, made.samples), start
        alpha, own, payload = np.float32(self.alpha), [], []
        for local, centre, size in zip(made.x, weights, self.trainable, strict=True):
            pulled = alpha * (local - centre)
            # State stays between the two, whatever alpha is.
            pulled[size:] = min(alpha, np.float32(1)) * (local[size:] - centre[size:])
            own.append(local - pulled)
            # Servers add what is pushed to state, and subtract it from weights.
            np.negative(pulled[:size], out=pulled[:size])
            payload.append(pulled)
        norm = norm_of(payload, self.trainable)
        return RuleResult(payload, made.loss, norm, made.samples), own


@dataclass(frozen=True, slots=True)
class DanaSlimRule:
    """DANA-Slim (Hakimi, Barkai, Gabel and Schuster 2019): each worker's own momentum, which asynchrony does not
    amplify.

    v' = momentum v + g; the payload is momentum v' + g, for servers that run SGD. The servers then hold the point to
    which DANA-Zero would look ahead for all workers together. With one worker it is Nesterov's method.
    """

    trainable: tuple[int, ...]
    momentum: float
    steps: ClassVar[int] = 1
    remembers: ClassVar[bool] = True
    steps_before_pull: ClassVar[bool] = False
    overlap: ClassVar[int] = 0

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        raise TypeError("a gradient is computed from pulled weights only")

    def payload(
        self,
        memory: Flats | None,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
        version: int,
    ) -> tuple[Result, Flats | None]:
        (batch,) = batches
        result = gradient(weights, batch)
        if not math.isfinite(result.norm):
            return result, memory
        gamma, velocities, payload = np.float32(self.momentum), [], []
        for number, (flat, size) in enumerate(zip(result.flats, self.trainable, strict=True)):
            g = flat[:size]
            velocity = g.copy() if memory is None else gamma * memory[number] + g
            out = np.empty_like(flat)
            np.add(gamma * velocity, g, out=out[:size])
            out[size:] = flat[size:]
            velocities.append(velocity)
            payload.append(out)
        norm = norm_of(payload, self.trainable)
        return RuleResult(payload, result.loss, norm, result.samples), velocities


PLAIN = "gradient"
"""The name of the plain rule, the default: one gradient per ticket."""

Knobs = Mapping[str, float]
Trainable = tuple[int, ...]


class LocalRuleError(ValueError):
    """The servers named a rule or a number that this worker does not know or cannot use."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A local rule by name: its knobs, all of which a policy sets, and its constructor."""

    meaning: str
    knobs: tuple[Knob, ...]
    make: Callable[[Trainable, Knobs, Plan | None], WorkerRule]


def _local_sgd(trainable: Trainable, knobs: Knobs, plan: Plan | None) -> WorkerRule:
    return LocalSteps(trainable, int(knobs["steps"]), Sgd(knobs["learning_rate"]))


def _local_adamw(trainable: Trainable, knobs: Knobs, plan: Plan | None) -> LocalSteps:
    inner = {knob.name: knobs[knob.name] for knob in _ADAMW if knob.name != "steps"}
    return LocalSteps(trainable, int(knobs["steps"]), InnerAdamW(**inner))


def _streaming_adamw(trainable: Trainable, knobs: Knobs, plan: Plan | None) -> WorkerRule:
    groups = None if plan is None else Groups(plan, int(knobs["fragments"]))
    whole = _local_adamw(trainable, knobs, plan)
    return StreamingSteps(whole, groups, int(knobs["overlap"]), knobs["mixing"])


def _elastic(trainable: Trainable, knobs: Knobs, plan: Plan | None) -> WorkerRule:
    return Elastic(trainable, int(knobs["steps"]), knobs["alpha"], Sgd(knobs["learning_rate"]))


def _decay(name: str, meaning: str) -> Knob:
    return Knob(name, Domain("number", at_least=0, below=1), meaning)


_SGD = (
    Knob("steps", Domain("integer", at_least=1), "batches of a ticket"),
    Knob("learning_rate", Domain("number", above=0), "of the worker's steps"),
)
_ADAMW = (
    *_SGD,
    Knob("weight_decay", Domain("number", at_least=0), "part of each weight lost per step, times the rate"),
    _decay("beta_1", "decay of the mean of gradients"),
    _decay("beta_2", "decay of the mean of squared gradients"),
    Knob("epsilon", Domain("number", above=0), "added to the root of the mean square"),
)
_STREAMING = (
    *_ADAMW,
    Knob("fragments", Domain("integer", at_least=1), "groups of rows that take turns"),
    Knob(
        "overlap",
        Domain("integer", at_least=0),
        "steps of a ticket that are taken before its version is used",
    ),
    Knob(
        "mixing", Domain("number", at_least=0, below=1), "part of its own weights that the worker keeps then"
    ),
)
_ALPHA = Knob("alpha", Domain("number", above=0), "how far worker and centre move to each other")

KINDS: Mapping[str, Kind] = {
    PLAIN: Kind("one batch, one gradient", (), lambda trainable, knobs, plan: Plain(trainable)),
    "local-sgd": Kind("steps of SGD; pushes how far they led", _SGD, _local_sgd),
    "local-adamw": Kind("steps of AdamW, whose moments stay; pushes how far they led", _ADAMW, _local_adamw),
    "streaming-adamw": Kind(
        "as local-adamw, on weights that stay, mixed with new versions; pushes how far they led one group of rows",
        _STREAMING,
        _streaming_adamw,
    ),
    "elastic": Kind("steps of SGD on weights of its own, tied to the centre", (*_SGD, _ALPHA), _elastic),
    "dana-slim": Kind(
        "one gradient with momentum of its own",
        (_decay("momentum", "decay of the worker's velocity"),),
        lambda trainable, knobs, plan: DanaSlimRule(trainable, knobs["momentum"]),
    ),
}


def build(name: str, knobs: Knobs, trainable: Sequence[int], plan: Plan | None = None) -> WorkerRule:
    """Return the rule `name`; an empty name is the plain rule. `trainable`: trained elements of each server's payload.
    `plan`: needed by rules that exchange groups of rows, unless nothing is computed.

    Raises LocalRuleError for an unknown name, missing or unknown knobs, and numbers out of range.
    """
    kind = KINDS.get(name or PLAIN)
    if kind is None:
        raise LocalRuleError(
            f"expected a local rule that this worker knows ({', '.join(KINDS)}), got {name!r}: "
            "are servers and workers of the same release?"
        )
    known = [knob.name for knob in kind.knobs]
    if set(knobs) != set(known):
        raise LocalRuleError(
            f"local rule {name}: expected the knobs {', '.join(known) or 'none'}, "
            f"got {', '.join(sorted(knobs)) or 'none'}: are servers and workers of the same release?"
        )
    try:
        values = {
            knob.name: knob.check(f"local rule {name}", _number(knobs[knob.name])) for knob in kind.knobs
        }
    except KnobError as error:
        raise LocalRuleError(str(error)) from error
    try:
        return kind.make(tuple(trainable), values, plan)
    except PlanError as error:
        raise LocalRuleError(f"local rule {name}: {error}") from error


def _number(value: float) -> float:
    """Return a whole number as int again: all numbers travel as floats."""
    return int(value) if math.isfinite(value) and value == int(value) else value
