"""What a worker computes with: told when it joins, shown in log, status and dashboard."""

import json
from pathlib import Path

import numpy as np
import pytest

from pslab.display.status import computing_sentences
from tests.links import connect_link
from tests.promises import promise
from tests.service.serving import serving

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
