"""A slow link is not a dead one, and a server that stands still for a moment is not lost."""

import math

import numpy as np
import pytest

from psserver.service.guard.calls import SendingPace
from psserver.service.net import pulls
from pswire.model.plan import VariableSpec
from pswire.patience import silence
from tests.links import connect_link
from tests.patience import PATIENCE
from tests.relay import relayed
from tests.repetitions import SOAK
from tests.service.serving import serving

MODEL = VariableSpec("w", (1024 if SOAK else 512, 1024))  # 4 MB, or 2
RATE = 500e3  # bytes/s

pytestmark = pytest.mark.cluster


# worker_timeout, seconds. A busy machine answers late whatever is on its way: so there is time enough, and what is on
# its way is counted as if there were `HELD`.
TIMEOUTS = [10.0, 3.0] if SOAK else [8 * PATIENCE]
HELD = 6.0


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_large_model_trains_over_500_kb_per_second(timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload takes four seconds each way, in a soak eight; pings of the same connection wait behind it.

    At 6 s the server waits 1.8 s for the answer to a ping, at 3 s half of that: two pieces, which may be on their way
    before it, take no longer.
    """
    paces: list[SendingPace] = []
    pieces: list[int] = []
    sent = SendingPace.sent

    def pace(_: float) -> SendingPace:
        paces.append(SendingPace(timeout if SOAK else HELD))
        return paces[-1]

    def recorded(pace: SendingPace, seconds: float) -> None:
        pieces.append(pace.piece)
        sent(pace, seconds)

    monkeypatch.setattr(pulls, "SendingPace", pace)
    monkeypatch.setattr(SendingPace, "sent", recorded)
    initial = [(MODEL, np.zeros(MODEL.shape, np.float32))]
    steps = 2 if SOAK else 1
    nbytes = 4 * math.prod(MODEL.shape)
    overrides = [f"cluster.worker_timeout={timeout}"]
    with (
        serving(overrides=overrides, patience=30.0, read_limit=5.0) as cluster,
        relayed(("127.0.0.1", int(cluster.hosts.rpartition(":")[2])), rate=RATE) as relay,
        connect_link(f"127.0.0.1:{relay.port}", initial, transport="grpc") as session,
    ):
        for step in range(steps):
            grant = session.ready()
            assert grant is not None and grant.version == step
            (weights,) = session.pull_flat(grant)
            assert weights[0] == -step
            session.push_flat(grant, [np.ones(weights.size, np.float32)])
            session.commit(grant, samples=1)
        assert session.done().version == steps
        assert session.info.incarnation == 0
        # Nothing travelled twice: one initial push, then a pull and a push of each step.
        up, down = relay.passed
        assert up < 1.05 * nbytes * (1 + steps) + 1e6
        assert down < 1.05 * nbytes * steps + 1e6
    assert 2 * max(pieces) / RATE < silence(paces[0].worker_timeout)
