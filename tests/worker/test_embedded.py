"""`connect` without hosts: the servers of the environment, else one of its own, which ends with the session."""

from typing import Any

import numpy as np
import pytest

from psworker import servers as found
from psworker.link import Link
from tests.keras.in_process import servers
from tests.links import connect_link
from tests.service.serving import granted

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
Y = X @ np.array([1, -2, 3], np.float32)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Servers that this process starts for itself, and an environment that names none."""
    for name in ("PS_HOSTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    made: list[Any] = []
    begin = found.EmbeddedServer.__init__

    def kept(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(found.EmbeddedServer, "__init__", kept)
    return made


def train(session: Link, steps: int) -> None:
    for number in range(steps):
        grant = granted(session)
        error = X @ session.pull(grant)["w"] - Y
        session.push(grant, {"w": 2 * X.T @ error / len(X)})
        session.commit(grant, samples=len(X), loss=float(error @ error / len(X)), batch=number)


def test_a_server_of_ones_own_runs_the_optimizer_and_ends_with_the_session(started: list[Any]) -> None:
    first = {"w": np.zeros(3, np.float32)}
    with connect_link(
        variables=first, optimizer={"name": "momentum", "learning_rate": 0.02}, state=[]
    ) as session:
        train(session, 150)
        assert session.done().success
        np.testing.assert_allclose(session.pull_final()[0], [1, -2, 3], atol=1e-2)
    (server,) = started
    assert server.code == 0


def test_a_loop_that_raises_leaves_no_server_behind(started: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        with connect_link(variables={"w": np.zeros(3, np.float32)}) as session:
            train(session, 1)
            1 / 0  # noqa: B018
    (server,) = started
    assert server.code is not None


def test_the_environment_says_where_servers_are(monkeypatch: pytest.MonkeyPatch, started: list[Any]) -> None:
    with servers() as address:
        monkeypatch.setenv("PS_HOSTS", address)
        with connect_link(variables={"w": np.zeros(3, np.float32)}, optimizer={"name": "sgd"}) as session:
            train(session, 2)
            assert session.done().success
    assert not started
