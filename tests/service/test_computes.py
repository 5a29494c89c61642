"""What a worker computes with: told when it joins, shown in log, status and dashboard."""

import json
from pathlib import Path

import grpc
import numpy as np
import pytest

from pslab.display.status import computing_sentences
from pswire.model.plan import make_plan
from tests.links import connect_link
from tests.promises import promise
from tests.service.peer import join_request
from tests.service.serving import PATIENCE, VARIABLES, refused, serving

pytestmark = pytest.mark.cluster


@promise("Log and status say what each worker computes with.")
def test_log_and_status_have_what_each_worker_told(tmp_path: Path) -> None:
    with serving(workers=3, out=tmp_path / "run") as cluster:
        sessions = [
            connect_link(cluster.hosts, {"w": np.zeros(3, np.float32)}, task_index=index, computes=computes)
            for index, computes in enumerate(("jax on cuda:0", "", "jax on cuda:0"))
        ]
        status = cluster.status()
        assert {each.name: each.computes for each in status.workers} == {
            "w0": "jax on cuda:0",
            "w1": "",
            "w2": "jax on cuda:0",
        }
        assert computing_sentences(status) == ["w0, w2 compute with jax on cuda:0"]
        for session in sessions:
            session.close()
    lines = (tmp_path / "run" / "decisions.jsonl").read_text(encoding="utf-8").splitlines()
    joins = [entry for entry in map(json.loads, lines) if entry["kind"] == "join"]
    # What was not told is not in the log.
    assert [entry.get("computes") for entry in joins] == ["jax on cuda:0", None, "jax on cuda:0"]


def test_a_long_text_or_one_that_cannot_be_printed_is_refused() -> None:
    with serving() as cluster:
        for computes in ("x" * 129, "jax\non cpu"):
            request = join_request(make_plan(VARIABLES, 1), computes=computes)
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "computes"):
                cluster.coordinator.Join(request, timeout=PATIENCE)
