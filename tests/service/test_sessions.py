"""Sessions of our own library against a real server: beginnings and ends."""

import numpy as np
import pytest

import psworker
from psworker.errors import Refused
from tests.service.serving import serving, wait_until


def test_a_session_that_closes_at_once_says_goodbye() -> None:
    """Even before its stream stands: nobody then waits for it as for one that was lost."""
    with serving(overrides=["cluster.worker_timeout=600.0"]) as cluster:
        for round in range(5):
            psworker.connect(cluster.hosts, {"w": np.zeros(3)}, name=f"brief{round}").close()
        wait_until(lambda: {w.state for w in cluster.status().workers} == {"left"}, "all to have left")


def test_another_model_is_refused_in_words() -> None:
    with serving() as cluster, psworker.connect(cluster.hosts, {"w": np.zeros(3)}):
        before = cluster.picture()
        with pytest.raises(
            Refused, match=r"trains another model: variable 0: expected 'w' float64\[3\].*got 'w'"
        ):
            psworker.connect(cluster.hosts, {"w": np.zeros(4)})
        with pytest.raises(Refused, match="another number of variables|expected 1 variables, got 2"):
            psworker.connect(cluster.hosts, {"w": np.zeros(3), "b": np.zeros(1)})
        assert [w[0] for w in cluster.picture().workers] == [w[0] for w in before.workers]
