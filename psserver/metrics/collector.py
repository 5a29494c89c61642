"""A server's numbers as Prometheus metrics. Counters are read at the scrape; only updates are timed as they happen."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

import grpc
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector

from psserver.coordinator import Coordinator
from psserver.coordinator.status import holdup, phase
from psserver.metrics.counts import PREFIX, Counts, WorkerNumbers, worker_numbers
from psserver.service.guard.authorization import Authorizer
from psserver.service.job.agreement import FROM_JOB
from psserver.service.job.job import ServedJob
from psserver.service.store.host import ShardHost
from psserver.shard import Apply, Order
from pswire.security.credentials import NO_TLS, Credentials

if TYPE_CHECKING:
    from psserver.service.replicas.overview import ReplicaNumbers

# What a server of a job with replicas does for it.
ROLES = ("leads", "serves", "in sync", "learns", "votes")
PHASES = ("waiting for workers", "initialising", "training", "between phases", "stopping", "stopped")
STALENESS = (0, 1, 2, 4, 8, 16, 32, 64)
# Seconds of an update: from models of a few numbers to those of gigabytes.
UPDATE_SECONDS = (1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class ServerCollector(Collector):
    """The metrics of one server, and on the one that leads those of the job, if its run log counts. The loop's thread
    owns it.

    `job`: returns it where it is led; `copies`: returns a server's part, with replicas.
    """

    def __init__(
        self,
        host: ShardHost,
        job: Callable[[], ServedJob | None],
        copies: "Callable[[], ReplicaNumbers] | None",
        credentials: Credentials,
        authorizer: Authorizer,
    ) -> None:
        self._host, self._job, self._copies = host, job, copies
        self._credentials, self._authorizer = credentials, authorizer

    def collect(self) -> Iterator[Metric]:
        about = {"version": version("paramserver"), "grpc": grpc.__version__}
        yield InfoMetricFamily(f"{PREFIX}build", "Versions of this server.", about)
        yield from _shard(self._host)
        yield from security_families(self._credentials, self._authorizer)
        if self._copies is not None:
            yield from replica_families(self._copies())
        job = self._job()
        counts = job.routes.run_log.counts if job is not None else None
        if job is None or counts is None:
            return
        coordinator, optimizer = job.coordinator, job.agreement.optimizer
        about = {
            "job": job.terms.job,
            "policy": coordinator.policy.name,
            "optimizer": FROM_JOB if optimizer is None else optimizer.name,
        }
        yield InfoMetricFamily(f"{PREFIX}job", "What is trained, and how.", about)
        yield from job_families(coordinator, counts, job.decider.now())
        yield from worker_families(worker_numbers(coordinator, counts))
        yield _evaluation(dict(job.evaluations.final))
        executed = {f.name.removeprefix("server "): f.executed for f in job.routes.followers}
        lag = {str(server): max(coordinator.state.entries - at, 0) for server, at in executed.items()}
        yield _gauges("follower_lag_entries", "Entries that a server has not executed yet.", "server", lag)


def registry(
    host: ShardHost,
    job: Callable[[], ServedJob | None],
    copies: "Callable[[], ReplicaNumbers] | None" = None,
    credentials: Credentials = NO_TLS,
    authorizer: Authorizer | None = None,
) -> CollectorRegistry:
    """Return a registry with all metrics of this server, as `ServerCollector`. Times its updates from now on."""
    found = CollectorRegistry()
    found.register(ServerCollector(host, job, copies, credentials, authorizer or Authorizer()))
    ProcessCollector(registry=found)
    host.orders.timed = _timer(found)
    return found


def security_families(credentials: Credentials, authorizer: Authorizer) -> Iterator[Metric]:
    """Yield the metrics of certificates and refused calls, on a server with TLS."""
    if not credentials.encrypted:
        return
    facts = credentials.identity.facts
    ends = {"certificate": facts.certificate_ends, "authority": facts.authority_ends}
    text = "When the certificate, and the authority's, ends: seconds since 1970."
    yield _gauges("certificate_expiry_timestamp_seconds", text, "of", ends)
    refused = CounterMetricFamily(
        f"{PREFIX}authentication_failures", "Calls and connections that were refused.", labels=["reason"]
    )
    for reason in ("unknown", "role", "handshake"):
        refused.add_metric([reason], authorizer.refused[reason])
    yield refused


def replica_families(numbers: "ReplicaNumbers") -> Iterator[Metric]:
    """Yield the metrics of a server of a job with replicas."""
    roles = {role: role == numbers.role for role in ROLES}
    yield StateSetMetricFamily(f"{PREFIX}replica_role", "What this server does for the job.", roles)
    text = "The newest configuration of copies that this server knows."
    yield GaugeMetricFamily(f"{PREFIX}replica_epoch", text, value=numbers.epoch)
    text = "How often this process took the place of a server that led."
    yield CounterMetricFamily(f"{PREFIX}replica_takeovers", text, value=numbers.takeovers)
    if numbers.in_sync is not None:
        text = "Copies of the job that count; with one, its loss goes back to a checkpoint."
        yield GaugeMetricFamily(f"{PREFIX}replicas_in_sync", text, value=numbers.in_sync)
    if numbers.lag is not None:
        lag = GaugeMetricFamily(
            f"{PREFIX}replica_lag_items",
            "Items of the log that a copy has not executed yet.",
            labels=["server"],
        )
        for server, items in sorted(numbers.lag.items()):
            lag.add_metric([str(server)], items)
        yield lag


def _timer(found: CollectorRegistry) -> Callable[[Order, float], None]:
    names = {True: "apply_seconds", False: "fold_seconds"}
    help_of = {True: "Time of an update's arithmetic.", False: "Time to add a payload to the coming update."}
    timers = {
        is_apply: Histogram(PREFIX + name, help_of[is_apply], buckets=UPDATE_SECONDS, registry=found)
        for is_apply, name in names.items()
    }
    return lambda order, seconds: timers[isinstance(order, Apply)].observe(seconds)


def _shard(host: ShardHost) -> Iterator[Metric]:
    state, size = host.state, host.nbytes
    staged = state.shard.staging.held if state.shard else 0
    buffers = state.shard.arena.buffers if state.shard else 0
    yield _counter("executed_entries", "Entries of the decision log executed here.", state.executed)
    yield _counter("received_payloads", "Complete payloads staged here.", state.received)
    yield _counter("received_bytes", "Their bytes, as float32 in memory.", state.received * size)
    yield _counter("sent_versions", "Versions given to readers, copied or in place.", state.served)
    yield _counter("sent_bytes", "Their bytes, as float32 in memory.", state.served * size)
    yield _gauge("staging_payloads", "Payload buffers in use.", staged)
    yield _gauge("staging_bytes", "Their bytes.", staged * size)
    yield _gauge("arena_versions", "Buffers for versions of the model.", buffers)
    yield _gauge("arena_bytes", "Their bytes.", buffers * size)


def job_families(coordinator: Coordinator, counts: Counts, now: float) -> Iterator[Metric]:
    """Yield the metrics of the job at the job's time `now`."""
    state, held, present = coordinator.state, holdup(coordinator, now), phase(coordinator)
    yield StateSetMetricFamily(
        f"{PREFIX}job_phase", "What the job is doing.", {p: p == present for p in PHASES}
    )
    yield _counter("versions", "Updates made: the number of the newest version.", state.version)
    yield _counter("sessions_lost", "Connections of workers that broke.", counts.lost)
    yield _counter("rejoins", "Workers that came back, with the same process or another.", counts.rejoined)
    yield _gauge("held_up_seconds", "The longest present wait of a worker.", held[0] if held else 0.0)
    if state.loss is not None:
        yield _gauge("loss", "Smoothed training loss of recent commits.", state.loss)
    found = Counter("lost" if m.absent_since is not None else m.state for m in state.roster.by_rank())
    states = {each: found[each] for each in ("joined", "waiting", "computing", "done", "lost")}
    yield _gauges("workers", "Present workers.", "state", states)
    kinds = CounterMetricFamily(f"{PREFIX}decisions", "Entries of the decision log.", labels=["kind"])
    for kind, count in sorted(counts.kinds.items()):
        kinds.add_metric([kind], count)
    yield kinds


def worker_families(workers: Mapping[str, WorkerNumbers]) -> Iterator[Metric]:
    def family(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(PREFIX + name, text, labels=["worker", *labels])

    grants = family("grants", "Tickets granted.")
    samples = family("samples", "Samples of committed contributions.")
    fates = family("contributions", "Contributions whose fate is known.", "fate", "reason")
    closed = family("closed_tickets", "Tickets that came to no contribution.", "by")
    losses = family("nonfinite_losses", "Commits with a loss that is not finite.")
    seconds = family("worker_seconds", "Where workers' time went, up to their last ticket.", "activity")
    pending = GaugeMetricFamily(
        f"{PREFIX}contributions_pending", "Committed, and neither applied nor dropped.", labels=["worker"]
    )
    ages = HistogramMetricFamily(
        f"{PREFIX}staleness_versions", "Staleness of applied contributions.", labels=["worker"]
    )
    for name, of in workers.items():
        grants.add_metric([name], of.grants)
        samples.add_metric([name], of.samples)
        fates.add_metric([name, "applied", ""], of.applied)
        for reason, count in sorted(of.dropped.items()):
            fates.add_metric([name, "dropped", reason], count)
        closed.add_metric([name, "coordinator"], of.cancelled)
        closed.add_metric([name, "worker"], of.abandoned)
        losses.add_metric([name], of.nonfinite_losses)
        for activity, spent in sorted(of.seconds.items()):
            seconds.add_metric([name, activity], spent)
        pending.add_metric([name], of.pending)
        total = float(sum(age * count for age, count in of.staleness.items()))
        ages.add_metric([name], _buckets(of.staleness), total)
    yield from (grants, samples, fates, closed, losses, seconds, pending, ages)


def _buckets(staleness: Mapping[int, int]) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound."""
    below = [
        (f"{bound}.0", float(sum(count for age, count in staleness.items() if age <= bound)))
        for bound in STALENESS
    ]
    return [*below, ("+Inf", float(sum(staleness.values())))]


def _evaluation(metrics: Mapping[str, float]) -> Metric:
    return _gauges("evaluation", "The last evaluation.", "metric", metrics)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for of, value in sorted(values.items()):
        family.add_metric([of], value)
    return family
