"""How far a job is, as its status says it: of data that workers know, of work units, of a limit of versions."""

import math

import numpy as np

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import inputs
from psserver.coordinator.terms import Extent
from psserver.coordinator.units import WorkTerms
from psserver.service.job.reports import ProgressReports
from pswire.v1 import coordinator_pb2 as pb
from tests.links import connect_link
from tests.service.serving import serving, wait_until


def harness(workers: int, **terms: object) -> CoordinatorHarness:
    return CoordinatorHarness(workers=workers, terms=terms).starts()


def test_nothing_is_said_while_one_worker_has_not_said_how_much_data_it_has() -> None:
    job, progress = harness(2), ProgressReports()
    assert progress.measure(job.coordinator, 0.0) is None
    job.coordinator.take(inputs.DataSized("w0", Extent(2, 10)), job.now)
    assert progress.measure(job.coordinator, 0.0) is None
    job.coordinator.take(inputs.DataSized("w1", Extent(2, 6)), job.now)
    found = progress.measure(job.coordinator, 0.0)
    assert found is not None and (found.epoch, found.epochs, found.done, found.total) == (1, 2, 0, 16)
    assert found.unit == "batches" and math.isnan(found.seconds_left)


def test_the_time_that_is_left_follows_from_the_pace() -> None:
    job, progress = harness(1), ProgressReports()
    job.coordinator.take(inputs.DataSized("w0", Extent(2, 10)), job.now)
    for second in range(4):
        progress.look(job.coordinator, float(second))
        job.commits("w0", batch=second)
    found = progress.measure(job.coordinator, 3.0)
    assert found is not None and (found.done, found.epoch) == (4, 1)
    # Four batches in three seconds: six more of them.
    assert found.seconds_left == 4.5
    for batch in range(4, 10):
        job.commits("w0", batch=batch)
    found = progress.measure(job.coordinator, 4.0)
    assert found is not None and (found.done, found.epoch, found.seconds_left) == (10, 2, 0.0)


def test_the_job_takes_as_long_as_its_slowest_worker() -> None:
    job, progress = harness(2), ProgressReports()
    for worker in ("w0", "w1"):
        job.coordinator.take(inputs.DataSized(worker, Extent(1, 20)), job.now)
    progress.look(job.coordinator, 0.0)
    for second in range(1, 9):
        # w0 has ten batches in the time of one of w1's.
        for batch in range(2 * second - 2, 2 * second):
            job.coordinator.state.roster.tally("w0").next_batch = batch + 1
        job.coordinator.state.roster.tally("w1").next_batch = second // 4
        progress.look(job.coordinator, float(second))
    found = progress.measure(job.coordinator, 8.0)
    assert found is not None and (found.done, found.total) == (18, 40)
    # w1 needs four seconds for each of its 18 batches, whatever the others do; a mean pace says 9.8 s.
    assert found.seconds_left == 72.0
    job.coordinator.state.roster.present["w0"].enter("done", 8.0)
    assert progress.measure(job.coordinator, 8.0) == found, "one that is done has no say"


def test_nobody_waits_for_the_data_of_one_that_is_lost() -> None:
    job, progress = harness(2), ProgressReports()
    for worker, batches in (("w0", 10), ("w1", 1000)):
        job.coordinator.take(inputs.DataSized(worker, Extent(1, batches)), job.now)
    for second in range(6):
        for worker in ("w0", "w1"):
            job.coordinator.state.roster.tally(worker).next_batch = second
        progress.look(job.coordinator, float(second))
    found = progress.measure(job.coordinator, 5.0)
    assert found is not None and found.seconds_left == 995.0
    job.coordinator.take(inputs.Disconnected("w1", 0), 5.0)
    found = progress.measure(job.coordinator, 5.0)
    assert found is not None and found.seconds_left == 5.0


def test_a_limit_of_versions_counts_where_it_comes_first() -> None:
    job, progress = harness(1, versions=4), ProgressReports()
    job.commits("w0", batch=0)
    found = progress.measure(job.coordinator, 1.0)
    assert found is not None and (found.done, found.total, found.unit, found.epochs) == (1, 4, "versions", 0)
    job.coordinator.take(inputs.DataSized("w0", Extent(1, 100)), job.now)
    found = progress.measure(job.coordinator, 1.0)
    assert found is not None and found.unit == "versions"
    job.coordinator.take(inputs.DataSized("w0", Extent(1, 2)), job.now)
    found = progress.measure(job.coordinator, 1.0)
    assert found is not None and (found.done, found.total, found.unit) == (1, 2, "batches")


def test_work_units_are_known_to_the_coordinator() -> None:
    job = CoordinatorHarness(workers=1, work=WorkTerms(units=3, epochs=2, batches=2)).starts()
    found = ProgressReports().measure(job.coordinator, 0.0)
    assert found is not None and (found.epoch, found.epochs, found.total, found.unit) == (1, 2, 12, "parts")


def test_what_a_worker_says_is_in_the_status() -> None:
    with serving() as cluster, connect_link(cluster.hosts, {"x": np.zeros(2, np.float32)}) as session:
        session.tell_extent(3, 30)

        def known() -> pb.StatusReply | None:
            status = cluster.status()
            return status if status.HasField("progress") else None

        status = wait_until(known, "the worker's extent")
        assert (status.progress.epochs, status.progress.total) == (3, 30)
