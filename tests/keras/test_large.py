"""`fit` of a model whose variables are large: gradients of each leave the graph apart, and join where they go."""

from typing import Any

import numpy as np
import pytest

from tests.keras.in_process import servers
from tests.probes import SessionProbe

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")

from psworker.backends import APART  # noqa: E402

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 64)
FIT: dict[str, Any] = {"x": X, "y": Y, "batch_size": 16, "shuffle": False, "verbose": 0}


def wide() -> Any:
    """The first kernel has large rows: half of it is large, too, and lies between small variables."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((8,)), dense(8), dense(APART // 4, "tanh"), dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


@pytest.mark.parametrize(
    ("transport", "count"), [("shared-memory", 2), pytest.param("grpc", 2, marks=pytest.mark.nightly)]
)
def test_large_variables_are_trained_as_by_plain_fit(transport: str, count: int) -> None:
    plain, ours = wide(), wide()
    plain.fit(**FIT)
    with servers(count) as hosts, pk.distribute(ours, hosts, transport=transport, stay=True) as job:
        ours.fit(**FIT)
        kinds = {each.kind for each in SessionProbe(job.session._link).carriers()}
        assert (job.version, kinds) == (4, {transport})
    for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_refused_by_the_servers_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batches around it count: a refusal costs its ticket alone."""
    bad = X.copy()
    bad[16:32] = np.nan
    model = wide()
    with servers(2) as hosts, pk.distribute(model, hosts, transport="socket", stay=True) as job:
        with caplog.at_level("WARNING", logger="ps-worker"):
            model.fit(**{**FIT, "x": bad})
        assert job.version == 3
    assert all(np.isfinite(each).all() for each in model.get_weights())
    (said,) = [each for each in caplog.records if getattr(each, "event", "") == "batch_skipped"]
    assert "batch 1 is skipped" in said.getMessage()
    assert "expected finite numbers, got nan at dense" in said.getMessage()
