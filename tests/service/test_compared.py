"""A worker whose model nothing can compare with the others' says so when it joins."""

import logging

import numpy as np
import pytest

from psworker.backends.numpy import Arrays
from psworker.remote import Remote
from tests.promises import promise
from tests.service.serving import serving


@promise("A loop in PyTorch, JAX or NumPy says that its model is not compared with the other workers'.")
def test_a_model_that_is_not_of_keras(caplog: pytest.LogCaptureFixture) -> None:
    model = Arrays({"w": np.zeros(3, np.float32)})
    with caplog.at_level(logging.WARNING), serving() as cluster:
        optimizer = {"name": "sgd", "learning_rate": 1.0}
        with Remote(model, lambda _: optimizer, lambda _: None, cluster.hosts, task_index=0) as remote:
            assert remote.load() is not None
            remote.contribute([np.ones(3, np.float32)])
    (said,) = [each for each in caplog.records if getattr(each, "event", "") == "function_undecided"]
    assert "no Keras model" in said.getMessage()
