"""The metrics of a server of a job with replicas."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily

from psserver.metrics.counts import PREFIX
from psserver.service.replicas.overview import ReplicaNumbers

ROLES = ("leads", "serves", "in sync", "learns", "votes")


def replica_families(numbers: ReplicaNumbers) -> Iterator[Metric]:
    """Yield the metrics of `numbers`."""
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
