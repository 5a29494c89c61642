"""A simulated cluster built from an experiment."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from typing import Any

from pslab.experiment import Experiment
from pslab.sections import Fault, Join
from pslab.simulator.cluster import Cluster
from pslab.simulator.faults import schedule_faults
from pslab.simulator.network import EventQueue, LinkFaults, Network
from pslab.simulator.problems import ProblemError, numpy_problem
from pslab.simulator.store import ShardStore, SimulatedStore
from pslab.simulator.worker import Worker
from pslab.simulator.worker_data import Dealing, dealing
from psserver.codec_rules import check_codec, check_rows
from psserver.coordinator import JobTerms
from psserver.coordinator.terms import Proposal
from psserver.optimizers import Optimizer
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy
from psserver.policies import build as build_policy
from psserver.policy_plan import plan_of
from psserver.records import to_plain
from pswire.config.distributions import LARGEST, Delay, DelayError, Draw, parse, stream
from pswire.model.plan import make_plan
from pswire.transport.wire import wire_named
from psworker.local import Trainer, tables_of
from psworker.local import build as build_local

TrainerFactory = Callable[[int], Trainer]
"""From a worker's index to its trainer. Workers may share a trainer without state."""


class SimulationError(ValueError):
    """An experiment that cannot be simulated. The text names the key and what was expected."""


def build(
    experiment: Experiment,
    trainers: Callable[[Experiment], TrainerFactory] | None = None,
) -> Cluster:
    """Build the cluster of `experiment`, ready to run. It writes nothing until it is given a `Folder`.

    `trainers` makes the trainers of a [job] that is really computed. Raises SimulationError, PolicyError,
    OptimizerError, and whatever a job's code raises.
    """
    _check(experiment)
    simulation, links, faults = experiment.simulation, experiment.links, experiment.faults
    factory = trainer_factory(experiment, trainers)
    chosen, size = experiment.policy, experiment.cluster
    policy = build_policy(chosen.name, chosen.knobs, size.workers, size.servers)
    optimizer = build_optimizer(experiment.optimizer.config)
    numbers = _numbers(experiment)
    made = {number: None if factory is None else factory(number) for number in numbers}
    queue = EventQueue()
    link_faults = LinkFaults(links.latency, faults.loss, faults.duplicate, faults.resend)
    store = _store(experiment, policy, optimizer, made)
    fingerprint = store.plan.fingerprint if isinstance(store, ShardStore) else ""
    cluster = Cluster(
        replace(_terms(experiment), plan=plan_of(experiment, policy, optimizer)),
        policy,
        Proposal(fingerprint, to_plain(optimizer.config)),
        store,
        batches=partial(_batches, experiment),
        dealing=_dealing(experiment, policy, made[numbers[0]]),
        network=Network(queue, experiment.cluster.servers, links.latency, links.bandwidth),
        queue=queue,
        link_faults=link_faults,
        batch_size=simulation.batch_size,
        interrupt=simulation.interrupt,
        evaluate=simulation.evaluate,
        until_accuracy=simulation.until_accuracy,
        # In a simulation of time only, every update is finite.
    )
    # Perfect links draw nothing, so ten thousand workers can share one generator.
    chance = stream(experiment.run.seed, 0, "messages")
    for number in numbers:
        if not link_faults.perfect:
            chance = stream(experiment.run.seed, number, "messages")
        worker = cluster.add_worker(number, step_times(experiment, number), chance, made[number])
        worker.own_batches = simulation.batches * experiment.job.epochs
    schedule_faults(cluster, faults)
    if simulation.seconds:
        queue.at(simulation.seconds, _time_is_up, cluster, simulation.seconds)
    return cluster


def _dealing(experiment: Experiment, policy: Policy, trainer: Trainer | None) -> Dealing | None:
    simulation, epochs = experiment.simulation, experiment.job.epochs
    found = dealing(simulation.units, simulation.batches, epochs, trainer, experiment.run.seed)
    rule = build_local(policy.local_rule.name, policy.local_rule.knobs, ())
    if found is not None and (rule.steps_before_pull or rule.overlap):
        raise SimulationError(
            f"policy {policy.name} has its workers take steps before they have a ticket, and work units are dealt "
            "with the tickets: expected another policy, or data of each worker's own"
        )
    return found


def _time_is_up(cluster: Cluster, seconds: float) -> None:
    cluster.stop(f"{seconds:g} s are over", success=True, cause="done")


def _numbers(experiment: Experiment) -> list[int]:
    """Return the numbers of the initial workers and of those that join later."""
    more = {join.worker for join in experiment.faults.joins}
    return sorted({*range(experiment.cluster.workers), *more})


def _terms(experiment: Experiment) -> JobTerms:
    cluster, run = experiment.cluster, experiment.run
    # Without arrays there is nothing to save.
    saves = run.checkpoints if _problem(experiment) != "none" else None
    return JobTerms(
        job=f"simulated-{run.name}",
        servers=cluster.servers,
        workers=cluster.workers,
        min_workers=cluster.min_workers,
        seed=run.seed,
        worker_timeout=cluster.worker_timeout,
        idle_timeout=cluster.idle_timeout,
        versions=run.versions,
        checkpoint_versions=int(saves.of("versions")) if saves else 0,
        checkpoint_seconds=saves.of("s") if saves else 0.0,
        nonfinite_limit=cluster.nonfinite_limit,
        # Virtual time advances in leaps, so only an explicit limit is used.
        ticket_timeout=0.0 if cluster.ticket_timeout == "auto" else cluster.ticket_timeout,
    )


# Learning or timing only


def trainer_factory(
    experiment: Experiment, trainers: Callable[[Experiment], TrainerFactory] | None
) -> TrainerFactory | None:
    """Return a factory of what workers compute; None in a simulation of time only. Raises SimulationError."""
    simulation, problem = experiment.simulation, _problem(experiment)
    if problem == "none":
        return None
    if problem == "job":
        if trainers is None or not experiment.job.module:
            raise SimulationError('simulation.problem is "job", but there is no [job] to compute')
        return trainers(experiment)
    try:
        shared = numpy_problem(problem, simulation.options, simulation.units)
    except ProblemError as error:
        raise SimulationError(str(error)) from error
    if simulation.until_accuracy and "accuracy" not in getattr(shared.problem, "metrics", ("accuracy",)):
        raise SimulationError(
            f"simulation.until_accuracy is given, but evaluate() of {problem} gives no accuracy"
        )
    return lambda number: shared


def _problem(experiment: Experiment) -> str:
    problem = experiment.simulation.problem
    if problem == "auto":
        return "job" if experiment.job.module else "none"
    return problem


def _store(
    experiment: Experiment,
    policy: Policy,
    optimizer: Optimizer,
    trainers: dict[int, Trainer | None],
) -> SimulatedStore:
    servers, wire_dtype = experiment.cluster.servers, experiment.cluster.payload_dtype
    check_codec(wire_named(wire_dtype).up, policy, optimizer)
    given = [trainer for trainer in trainers.values() if trainer is not None]
    if not given:
        return SimulatedStore(servers, experiment.simulation.payload_bytes, policy.tensors.fragments)
    plan = make_plan([spec for spec, _ in given[0].specs], servers, tables_of(given[0]))
    if plan.tables:
        check_rows(policy, optimizer)
    for trainer in {id(trainer): trainer for trainer in given}.values():
        trainer.attach(plan)
    return ShardStore(plan, optimizer, policy.tensors, workers=len(trainers), wire_dtype=wire_dtype)


def _batches(experiment: Experiment, worker: Worker, first: int) -> Iterator[tuple[int, Any]]:
    """Iterate over (number, batch) from `first` on; the batches are None in a simulation of time only."""
    epochs = experiment.job.epochs
    if worker.trainer is not None:
        workers, seed = experiment.cluster.workers, experiment.run.seed
        return worker.trainer.batches(worker.index, workers, seed, epochs, first)
    total = experiment.simulation.batches * epochs
    numbers = range(first, total) if total else count(first)
    return zip(numbers, repeat(None))


# Time


def step_times(experiment: Experiment, number: int) -> Draw:
    """Return a generator of the seconds of each step of worker `number`: compute time plus injected delay.

    The delay is drawn from the stream that a real worker draws from. Raises SimulationError for an unreadable trace.
    """
    seed, simulation = experiment.run.seed, experiment.simulation
    compute, delay = _times(experiment, number)
    try:
        own = compute.draws(stream(seed, number, "compute"))
    except DelayError as error:
        raise SimulationError(f"simulation.compute: {error}") from error
    if delay.never:
        return own
    try:
        injected = delay.draws(stream(seed, number, "delay"))
    except DelayError as error:
        raise SimulationError(f"workers.{number}.delay: {error}") from error
    if parse(simulation.compute).never:
        return injected
    return lambda: own() + injected()


def _times(experiment: Experiment, number: int) -> tuple[Delay, Delay]:
    compute = parse(experiment.simulation.compute)
    section = experiment.workers.get(number)
    delay = parse(section.delay) if section is not None else parse("constant(0)")
    return compute.scaled(experiment.simulation.factors.get(number, 1.0)), delay


def _check_times(experiment: Experiment, numbers: Sequence[int]) -> None:
    """Refuse steps so long that the clock loses what is shorter: a factor may be the reason."""
    for number in numbers:
        for key, time in zip(("simulation.compute", "delay"), _times(experiment, number), strict=True):
            if LARGEST < _mean(time) < math.inf:
                factor = f", with factor {time.factor:g}" if time.factor != 1 else ""
                raise SimulationError(
                    f"worker {number}: {key} = {time.text}{factor} takes {_mean(time):g} s on average; "
                    f"expected at most {LARGEST:.0f}"
                )


# Invalid experiments


def _check(experiment: Experiment) -> None:
    simulation, numbers = experiment.simulation, _numbers(experiment)
    faults = experiment.faults
    if experiment.cluster.prefetch:
        raise SimulationError(
            "cluster.prefetch: simulated workers do not fetch ahead; expected false (--set cluster.prefetch=false)"
        )
    if experiment.job.evaluate_every:
        raise SimulationError(
            "job.evaluate_every: is for real workers; a simulated run has simulation.evaluate, in versions"
        )
    lists: dict[str, Sequence[Fault]] = {
        "crashes": faults.crashes,
        "leaves": faults.leaves,
        "disconnects": faults.disconnects,
    }
    for key, entries in lists.items():
        for place, entry in enumerate(entries):
            if entry.worker not in numbers:
                raise SimulationError(
                    f"faults.{key}.{place}.worker: there is no worker {entry.worker}; expected one below "
                    f"cluster.workers, which is {experiment.cluster.workers}, or one of faults.joins"
                )
    _check_joins(faults.joins)
    _check_times(experiment, numbers)
    _check_learning(experiment)
    for number in simulation.factors:
        if number not in numbers:
            raise SimulationError(f"simulation.factors.{number}: there is no worker {number}")
    endless = not (simulation.units or simulation.batches or experiment.run.versions)
    if simulation.units and _problem(experiment) == "job":
        raise SimulationError(
            "simulation.units is for simulations of time or of a problem; a [job] declares its own work units (`work`)"
        )
    if _problem(experiment) == "none" and endless:
        _check_seconds(experiment, numbers)


def _check_joins(joins: Sequence[Join]) -> None:
    first: dict[int, float] = {}
    for place, join in enumerate(joins):
        if join.worker in first:
            raise SimulationError(
                f"faults.joins.{place}.worker: worker {join.worker} joins at {first[join.worker]:g} s already; "
                "expected each worker once (one that comes back is restart in faults.crashes)"
            )
        first[join.worker] = join.at


def _check_learning(experiment: Experiment) -> None:
    """Raise SimulationError for options that need another problem."""
    simulation, problem = experiment.simulation, _problem(experiment)
    if simulation.options and simulation.problem == "auto":
        raise SimulationError(
            "simulation.options are those of a problem, but none is named; "
            "expected simulation.problem = quadratic, logistic, mlp or module:Class of your own"
        )
    if not simulation.until_accuracy:
        return
    if not simulation.evaluate:
        raise SimulationError(
            "simulation.until_accuracy is given, but nothing is evaluated before the end: give simulation.evaluate, too"
        )
    if problem in ("none", "quadratic"):
        raise SimulationError(
            f"simulation.until_accuracy is given, but problem {problem} has no accuracy; "
            "expected logistic, mlp, a [job] or a problem of your own that measures it"
        )


def _check_seconds(experiment: Experiment, numbers: Sequence[int]) -> None:
    """Check a run that only time can end: the limit must be given, and time must pass."""
    seconds, links = experiment.simulation.seconds, experiment.links
    if not seconds:
        raise SimulationError(
            "the run would never end: give run.versions, simulation.batches (per worker), simulation.units or "
            "simulation.seconds"
        )
    if links.latency or (links.bandwidth and experiment.simulation.payload_bytes):
        return
    if all(_mean(time) + seconds == seconds for number in numbers for time in _times(experiment, number)):
        raise SimulationError(
            "time would stand still: no worker's step takes any; give simulation.compute or workers.N.delay"
        )


def _mean(time: Delay) -> float:
    try:
        return 0.0 if time.never else time.mean
    except DelayError:
        # `step_times` reports it with its key.
        return math.inf
