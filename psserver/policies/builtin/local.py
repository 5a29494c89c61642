"""Workers that do more between pull and push than compute one gradient."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from psserver.policies.builtin.spec import Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.declarations import BARE, LocalRule, TensorParts
from psserver.policies.parts.gates import Immediate, WaitForUpdate
from psserver.policies.parts.staleness_rules import DropStale, KeepAll
from psserver.policies.parts.triggers import Count, Everyone
from pswire.domains import named
from pswire.knobs import integer, number, word


@dataclass(frozen=True, slots=True)
class LocalSgd(PolicySpec):
    """Every worker takes `steps` steps of SGD on its own; an update is the mean of the resulting models.

    What travels is x_pulled - x_local, as a gradient of the servers' optimizer.
    With [optimizer] sgd at learning_rate = 1 the new version is the mean of the
    workers' models, which is local SGD and FedAvg; steps = 1 is then sync.
    Momentum on the servers is called slow or server momentum in the literature.
    """

    name: ClassVar[str] = "local-sgd"
    use_when: ClassVar[str] = (
        "messages take longer than steps, and every worker has the same kind of data: one message for "
        "`steps` batches."
    )
    guarantee: ClassVar[str] = (
        "staleness 0; a ticket has `steps` batches (the last one of a worker's data may have fewer); with data "
        "that differ between workers, more steps move the fixed point away from the optimum"
    )
    source: ClassVar[str] = (
        "Stich 2019, Local SGD Converges Fast and Communicates Little; FedAvg: McMahan et al. 2017, "
        "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum; each worker a second copy of the model",
        "one addition per `steps` batches",
        "a barrier every `steps` batches, so jitter is evened out; a slow worker still sets the pace",
    )
    optimizer: ClassVar[Mapping[str, object]] = {"name": "sgd", "learning_rate": 1.0}

    steps: int = integer(10, "batches of a ticket (H)", at_least=1)
    learning_rate: float = number(0.01, "of the workers' steps", above=0)

    def compose(self, workers: int) -> Composition:
        return _barrier(workers, _steps_of_sgd(self.steps, self.learning_rate))

    def facts(self, workers: int) -> Facts:
        return Facts(distinct=True, max_staleness=0, limit="0", batches=self.steps)


@dataclass(frozen=True, slots=True)
class DiLoCo(PolicySpec):
    """Every worker takes `steps` steps of AdamW; the mean of their moves is a gradient for Nesterov.

    With `fragments` = P an update changes one of P groups of rows, in turn, and
    only that group travels. With `overlap` a worker goes on for so many steps
    while it travels, then waits for the new version and mixes (both: Streaming
    DiLoCo, Douillard et al. 2025, whose `mixing` is 0.5). Each worker keeps its
    AdamW's moments from update to update. The paper's outer optimizer is
    nesterov with learning_rate = 0.7 and momentum = 0.9.
    """

    name: ClassVar[str] = "diloco"
    use_when: ClassVar[str] = (
        "links are very slow, between sites say, and AdamW trains your model well: one message for "
        "hundreds of batches."
    )
    guarantee: ClassVar[str] = (
        "staleness 0, but for the first `overlap` steps of a ticket, which come before its version; a ticket has "
        "`steps` batches (the last one of a worker's data may have fewer); one payload in `steps` batches"
    )
    source: ClassVar[str] = (
        "Douillard et al. 2023, DiLoCo: Distributed Low-Communication Training of Language Models; fragments and "
        "overlap: Douillard et al. 2025, Streaming DiLoCo with Overlapping Communication, algorithm 2"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum; each worker a second copy of the model and two of moments",
        "one addition per `steps` batches",
        "a barrier every `steps` batches; a worker that is lost loses its moments",
    )
    optimizer: ClassVar[Mapping[str, object]] = {"name": "nesterov", "learning_rate": 0.7, "momentum": 0.9}

    steps: int = integer(500, "batches of a ticket (H); fewer for data that are soon over", at_least=1)
    learning_rate: float = number(0.0004, "of the workers' AdamW", above=0)
    weight_decay: float = number(0.1, "part of each weight lost per step, times the rate", at_least=0)
    beta_1: float = number(0.9, "decay of the mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the mean of squared gradients", at_least=0, below=1)
    epsilon: float = number(1e-8, "added to the root of the mean square", above=0)
    fragments: int = integer(
        1,
        "groups of rows, of which each update changes the next one (P); 1: all at once",
        at_least=1,
        at_most=16,
        because="more would make rounds of the whole model too rare",
    )
    overlap: int = integer(
        0,
        "steps that a worker goes on while its payload and the new version travel (tau)",
        at_least=0,
        at_most=named("steps") - 1,
        because="a ticket ends behind the steps from its own version",
    )
    mixing: float = number(
        0.0,
        "part of its own weights that a worker keeps when it has the new version (alpha)",
        at_least=0,
        below=1,
    )

    def compose(self, workers: int) -> Composition:
        knobs = asdict(self)
        return _barrier(workers, _steps_of_adamw(**knobs), TensorParts(fragments=self.fragments))

    def facts(self, workers: int) -> Facts:
        return Facts(distinct=True, max_staleness=0, limit="0", batches=self.steps)


@dataclass(frozen=True, slots=True)
class LocalAsync(PolicySpec):
    """Like local-sgd or diloco, but no worker waits: every worker's steps are an update of their own.

    The paper's outer optimizer is delayed-nesterov, with period = workers:
    ordinary momentum amplifies stale steps and may diverge, sgd is slower.
    """

    name: ClassVar[str] = "local-async"
    use_when: ClassVar[str] = "local-sgd or diloco suits you, but workers differ in speed."
    guarantee: ClassVar[str] = (
        "no waiting; mean staleness n - 1 with n workers, no bound on the maximum; a ticket has `steps` batches"
    )
    source: ClassVar[str] = "Liu et al. 2024, Asynchronous Local-SGD Training for Language Modeling"
    cost: ClassVar[Cost] = Cost(
        "nothing; each worker a second copy of the model (adamw: and two of moments)",
        "one step of the optimizer per `steps` batches",
        "nothing",
    )
    optimizer: ClassVar[Mapping[str, object]] = {"name": "delayed-nesterov"}

    steps: int = integer(10, "batches of a ticket (H)", at_least=1)
    learning_rate: float = number(0.01, "of the workers' steps", above=0)
    inner: str = word("sgd", "the workers' optimizer; adamw has diloco's defaults", ("sgd", "adamw"))

    def compose(self, workers: int) -> Composition:
        if self.inner == "sgd":
            rule = _steps_of_sgd(self.steps, self.learning_rate)
        else:
            knobs = asdict(DiLoCo()) | {"steps": self.steps, "learning_rate": self.learning_rate}
            rule = _steps_of_adamw(**knobs)
        return _as_they_come(rule)

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, free=1, batches=self.steps)


@dataclass(frozen=True, slots=True)
class Easgd(PolicySpec):
    """Every worker trains a model of its own; every `steps` batches it and the servers' centre attract each other.

    e = alpha (x_i - centre); x_i -= e; centre += e. -e travels as a gradient, so
    the servers must run sgd at learning_rate = 1. Workers take their steps
    before they ask for a grant, so the centre is fresh. (The paper's
    algorithm takes e from where the last step began; its alpha has a lower limit
    of stability.) A worker that joins begins at the centre; the model of a lost worker is lost.
    The result is the centre.
    """

    name: ClassVar[str] = "easgd"
    use_when: ClassVar[str] = (
        "messages take longer than steps, workers differ in speed, and they may explore on their own."
    )
    guarantee: ClassVar[str] = (
        "no waiting; an exchange conserves centre + sum of all x_i, and with a fresh centre none ever takes workers "
        "and centre further from a common optimum, in whatever order they come"
    )
    source: ClassVar[str] = (
        "Zhang, Choromanska and LeCun 2015, Deep Learning with Elastic Averaging SGD, algorithm 1"
    )
    cost: ClassVar[Cost] = Cost(
        "nothing; each worker a model of its own",
        "one step of the optimizer per `steps` batches",
        "one more message per ticket: a worker does not ask together with its commit",
    )
    optimizer: ClassVar[Mapping[str, object]] = {"name": "sgd", "learning_rate": 1.0}

    alpha: float = number(
        0.0,
        "how far a worker and the centre move to each other; 0: 0.9 / workers",
        at_least=0,
        at_most=1,
        because="at 1 both change places",
    )
    steps: int = integer(10, "batches between exchanges (tau; the paper: 1 to 64)", at_least=1)
    learning_rate: float = number(0.01, "of the workers' SGD", above=0)

    def compose(self, workers: int) -> Composition:
        sgd = _steps_of_sgd(self.steps, self.learning_rate)
        knobs = {**sgd.knobs, "alpha": self.alpha or 0.9 / workers}
        rule = LocalRule("elastic", knobs, remembers=True)
        return _as_they_come(rule)

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, batches=self.steps)


@dataclass(frozen=True, slots=True)
class DanaSlim(PolicySpec):
    """Every gradient is applied as it comes; momentum is kept by each worker, and looks ahead for all of them.

    v = momentum v + g on the worker, which pushes momentum v + g; the servers
    must run sgd without momentum. With one worker it is Nesterov's method; with
    many, the version is where DANA-Zero would look ahead to.
    """

    name: ClassVar[str] = "dana-slim"
    use_when: ClassVar[str] = (
        "you want momentum and nobody to wait: one momentum for all diverges with many asynchronous workers."
    )
    guarantee: ClassVar[str] = (
        "no waiting; mean staleness n - 1; momentum stays stable where one shared momentum diverges"
    )
    source: ClassVar[str] = (
        "Hakimi, Barkai, Gabel and Schuster 2019, Taming Momentum in a Distributed Asynchronous Environment"
    )
    cost: ClassVar[Cost] = Cost(
        "nothing; each worker one velocity",
        "one step of the optimizer",
        "a worker that is lost loses its velocity",
    )
    optimizer: ClassVar[Mapping[str, object]] = {"name": "sgd"}

    momentum: float = number(0.9, "decay of each worker's velocity", at_least=0, below=1)

    def compose(self, workers: int) -> Composition:
        rule = LocalRule("dana-slim", {"momentum": self.momentum}, remembers=True)
        return _as_they_come(rule)

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, free=1)


def _barrier(workers: int, rule: LocalRule, tensors: TensorParts = BARE) -> Composition:
    """Return the composition of sync without backups, with a local rule."""
    everyone = Everyone(workers, 0)
    return Composition(WaitForUpdate(), everyone, DropStale(0), order="rank", local=rule, tensors=tensors)


def _as_they_come(rule: LocalRule) -> Composition:
    """Return the composition of async, with a local rule."""
    return Composition(Immediate(), Count(1), KeepAll(), local=rule)


def _steps_of_sgd(steps: int, learning_rate: float) -> LocalRule:
    return LocalRule("local-sgd", {"steps": steps, "learning_rate": learning_rate})


def _steps_of_adamw(
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    fragments: int,
    overlap: int,
    mixing: float,
) -> LocalRule:
    sgd = _steps_of_sgd(steps, learning_rate)
    moments = {"weight_decay": weight_decay, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
    if fragments == 1 and not overlap and not mixing:
        return LocalRule("local-adamw", {**sgd.knobs, **moments}, remembers=True)
    streaming = {"fragments": fragments, "overlap": overlap, "mixing": mixing}
    return LocalRule("streaming-adamw", {**sgd.knobs, **moments, **streaming}, remembers=True)
