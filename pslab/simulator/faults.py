"""Faults on the event queue: crashes, leaves, late starts, broken connections."""

from functools import partial

from pslab.sections import Crash, Disconnect, FaultsSection
from pslab.simulator.cluster import Cluster
from pslab.simulator.worker import Worker


def schedule_faults(cluster: Cluster, faults: FaultsSection) -> None:
    """Schedule every fault, and the start of every worker."""
    late = {f"w{join.worker}": join.at for join in faults.joins}
    for worker in cluster.workers.values():
        cluster.queue.at(late.get(worker.name, 0.0), worker.start)
    for crash in faults.crashes:
        cluster.queue.at(crash.at, partial(_crash, cluster, crash))
    for leave in faults.leaves:
        cluster.queue.at(leave.at, _worker(cluster, leave.worker).leave, "it was told to leave")
    for disconnect in faults.disconnects:
        cluster.queue.at(disconnect.at, partial(_disconnect, cluster, disconnect))


def _worker(cluster: Cluster, number: int) -> Worker:
    return cluster.workers[f"w{number}"]


def _crash(cluster: Cluster, crash: Crash) -> None:
    worker = _worker(cluster, crash.worker)
    if not worker.alive:
        return
    worker.die()
    # A dead process closes its connection; a dead machine is noticed after two keep-alive intervals.
    noticed = 2 / 3 * cluster.terms.worker_timeout if crash.silent else 0.0
    cluster.queue.after(noticed, cluster.disconnect, worker, worker.incarnation)
    if crash.restart > 0:
        cluster.queue.after(crash.restart, worker.start)


def _disconnect(cluster: Cluster, disconnect: Disconnect) -> None:
    worker = _worker(cluster, disconnect.worker)
    if not worker.alive:
        return
    until = cluster.queue.now + disconnect.seconds
    worker.up.down_until = worker.down.down_until = until
    cluster.disconnect(worker, worker.incarnation)
    worker.up.send(cluster.connect, worker, worker.incarnation, worker.session)
