"""What must hold of a job of the World that is over, whatever has happened to it."""

from collections import Counter

import numpy as np

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver import weights_file
from psserver.decisions import entries as e
from pswire.exits import ExitCode
from tests.world.job import BATCHES, WORKERS, Cluster


def judge(cluster: Cluster) -> None:
    """The log passes `ps-lab check`; each batch counts once; the weights are what the log makes of the gradients."""
    assert not any(worker.error for worker in cluster.workers), [worker.error for worker in cluster.workers]
    assert all(worker.stop is not None and worker.stop.success for worker in cluster.workers)
    codes = [server.code for server in cluster.servers]
    # A server that does not hear of the end, or comes back behind it, gives up in time.
    assert set(codes) <= {ExitCode.OK, ExitCode.UNREACHABLE, ExitCode.REFUSED}, codes
    assert ExitCode.OK in codes if cluster.replicas > 1 else codes[0] is ExitCode.OK, codes
    run = Run(cluster.folder)
    verdict = check_run(run)
    assert verdict.ok, [str(each) for each in verdict.violations]
    facts = [entry.fact for entry in run.decisions()]
    commits = {
        fact.ticket: (fact.worker, fact.batch)
        for fact in facts
        if isinstance(fact, e.Commit) and fact.samples
    }
    counted = Counter(commits.values())
    expected = {(worker.name, batch) for worker in cluster.workers for batch in range(cluster.batches)}
    assert set(counted) == expected, f"not counted: {expected - set(counted)}"
    assert set(counted.values()) == {1}, f"counted twice: {counted - Counter(expected)}"
    weights = np.zeros((WORKERS, BATCHES), np.float32)
    for fact in facts:
        if isinstance(fact, e.Apply):
            for part in fact.parts:
                worker, batch = commits[part.ticket]
                weights[int(worker[1:]), batch] -= np.float32(fact.scale * fact.lr_scale * part.factor)
    saved = weights_file.load(cluster.folder / "weights.safetensors")
    found, (ids, rows) = saved.arrays["w"], saved.tables["rows"]
    np.testing.assert_allclose(found, weights, rtol=1e-6, err_msg="the weights are not those of the log")
    np.testing.assert_array_equal(
        rows[:, 0], found.reshape(-1)[ids], err_msg="the rows are not those of the log"
    )
    for each in cluster.workers:
        np.testing.assert_array_equal(each.weights, found, err_msg=f"{each.name} has read other weights")
