"""An operator's remark: from `ps-lab note` to the log and whoever reads it."""

import json
from pathlib import Path

import grpc
import numpy as np
import pytest

from pslab.runs.folder import Run
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.dashboard.test_recording import recorded
from tests.lab.test_cli import ps_lab
from tests.links import connect_link
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, Cluster, granted, refused, serving

START = {"w": np.ones(4, np.float32)}


def write(cluster: Cluster, text: str) -> None:
    cluster.coordinator.Note(pb.NoteRequest(text=text), timeout=PATIENCE)


def test_a_note_stands_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Recorder
) -> None:
    with serving(servers=2, out=tmp_path / "run") as cluster:
        with connect_link(cluster.hosts, START) as session:
            grant = granted(session)
            session.pull(grant)
            write(cluster, "the rate looks too large")
            assert ps_lab(monkeypatch, "note", cluster.hosts.split(",")[0], "said twice") == 0
            # Both servers execute it, and nothing follows from it.
            assert len(set(cluster.picture().executed)) == 1
            session.push(grant, {"w": np.zeros(4, np.float32)})
            session.commit(grant, samples=1, loss=1.0)
            session.done()
        assert [served.ended() for served in cluster.servers] == [ExitCode.OK, ExitCode.OK]
    lines = [json.loads(line) for line in (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()]
    sentences.check(*[line["text"] for line in lines if line["kind"] == "note"])
    page = recorded(Run(tmp_path / "run"))
    sentences.check(*[row[4] for row in page["log"] if row[2] == "note"])
    assert ps_lab(monkeypatch, "check", tmp_path / "run") == 0
    picture = tmp_path / "loss.svg"
    assert ps_lab(monkeypatch, "compare", tmp_path / "run", "--chart", f"training_loss={picture}") == 0
    assert "the rate looks too large" in picture.read_text()


def test_what_is_no_note_is_refused() -> None:
    with serving() as cluster:
        with connect_link(cluster.hosts, START):
            for text in ("", "  ", "x" * 501, "\x1b[2J"):
                with refused(grpc.StatusCode.INVALID_ARGUMENT):
                    write(cluster, text)
