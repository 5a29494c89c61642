"""A controller in a real job: each server measures its part of every update, and the decision is in the log."""

from pathlib import Path

import numpy as np
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.policies.evidence import WINDOW
from pswire.exits import ExitCode
from tests.links import connect_link
from tests.promises import promise
from tests.service.serving import granted, serving

SIZE = 500
START = {"a": np.zeros(SIZE // 2, np.float32), "b": np.zeros(SIZE // 2, np.float32)}
ADAPT = (
    "policy.aggregate=2",
    "policy.adapt.name=noise-scale",
    "policy.adapt.most=16",
    "policy.adapt.rate=sqrt",
)


@promise("The gradient noise scale that servers measure is that of the gradients.")
def test_the_noise_scale_of_a_real_job_is_that_of_its_gradients(tmp_path: Path) -> None:
    random, contributions = np.random.default_rng(1), list[np.ndarray]()
    with (
        serving(servers=2, policy="fedbuff", overrides=ADAPT, out=tmp_path / "run") as cluster,
        connect_link(cluster.hosts, START) as session,
    ):
        status = cluster.status()
        assert "noise-scale" in status.change
        for _ in range(2 * WINDOW + 45):
            gradient = (1 + 2 * random.standard_normal(SIZE)).astype(np.float32)
            contributions.append(gradient)
            grant = granted(session)
            session.pull(grant)
            session.push(grant, {"a": gradient[: SIZE // 2], "b": gradient[SIZE // 2 :]})
            session.commit(grant, samples=8, loss=0.5)
        session.done()
    assert [served.ended() for served in cluster.servers] == [ExitCode.OK, ExitCode.OK]
    run = Run(tmp_path / "run")
    assert check_run(run).ok
    (change,) = [change for _, change in run.fold().changes]
    assert change.inputs is not None and change.by == "controller noise-scale"
    # What a server has executed may be measured after the commit that follows: the window may be some updates older.
    found = []
    for last in range(WINDOW, change.version + 1):
        pairs = [contributions[2 * n : 2 * n + 2] for n in range(last - WINDOW, last)]
        squares = [sum(float(g @ g) for g in pair) / 2 for pair in pairs]
        of_means = [float(np.square(sum(pair) / 2).sum()) for pair in pairs]
        found.append(2 * (sum(squares) - sum(of_means)) / WINDOW)
    assert min(abs(each / change.inputs["variance"] - 1) for each in found) < 1e-4
    assert change.policy["aggregate"] == pytest.approx(4, abs=1)
    assert change.rate == pytest.approx((change.policy["aggregate"] / 2) ** 0.5)
