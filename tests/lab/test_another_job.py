"""A status is that of the job that was asked: another one that has taken the port is named, and never shown."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslab.commands.live import job_in
from pslab.launch.status_client import AnotherJob, StatusClient
from pslab.runs.folder import ADDRESS, DECISIONS, address_of, job_of
from pswire.v1 import coordinator_pb2 as pb
from tests.lab.logs import async_log
from tests.sentences import Recorder

OURS = "1f0c9a2b7d3e4c55"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that answer, one after the other."""
    jobs: list[str] = []

    def call(self: StatusClient, method: str, request: object) -> pb.StatusReply:
        assert method == "Status"
        return pb.StatusReply(job=jobs.pop(0), phase="training")

    monkeypatch.setattr(StatusClient, "_call", call)
    return jobs


@pytest.fixture
def client() -> Iterator[StatusClient]:
    made = StatusClient("127.0.0.1:1", job=lambda: OURS)
    yield made
    made.close()


@pytest.mark.parametrize("other", ["2e0c9a2b7d3e4c55", "", "2e0c9a2b7d3e4c55.1", f"{OURS}x"])
def test_another_job_is_named(
    client: StatusClient, answers: list[str], other: str, sentences: Recorder
) -> None:
    answers += [OURS, other, f"{OURS}.1"]
    assert client.ask().job == OURS
    with pytest.raises(AnotherJob) as refused:
        client.ask()
    sentences.check(refused)
    assert client.ask().job == f"{OURS}.1"


def test_an_older_generation_is_not_the_job_any_more(
    client: StatusClient, answers: list[str], sentences: Recorder
) -> None:
    answers += [f"{OURS}.2", f"{OURS}.1"]
    client.ask()
    with pytest.raises(AnotherJob) as refused:
        client.ask()
    sentences.check(refused)


def test_nothing_is_changed_in_another_job(client: StatusClient, answers: list[str]) -> None:
    answers += ["other", "other"]
    with pytest.raises(AnotherJob):
        client.note("mine")
    with pytest.raises(AnotherJob):
        client.change_policy("async", {}, "faster")


def test_a_client_that_knows_no_job_takes_any(answers: list[str]) -> None:
    client = StatusClient("127.0.0.1:1")
    answers += ["a", "b"]
    assert [client.ask().job, client.ask().job] == ["a", "b"]
    client.close()


def test_a_run_folder_says_its_newest_job(tmp_path: Path) -> None:
    assert job_of(tmp_path) == ""
    for folder, job in ((tmp_path, "first"), (tmp_path / "job-2", "second")):
        folder.mkdir(exist_ok=True)
        (folder / DECISIONS).write_text(json.dumps({"i": 0, "t": 0.0, "kind": "note", "text": "x"}) + "\n")
        assert job_of(tmp_path) == ""
        (folder / DECISIONS).write_text(json.dumps(entry(job)) + "\n")
        assert job_of(tmp_path) == job


def test_a_copied_folder_without_a_log_shows_no_other_job(
    tmp_path: Path, answers: list[str], sentences: Recorder
) -> None:
    """The server of that run has ended before a worker came, and another job's has the port now."""
    (tmp_path / ADDRESS).write_text(f"127.0.0.1:1\n{OURS}\n")
    assert address_of(tmp_path) == "127.0.0.1:1" and job_of(tmp_path) == OURS
    client = StatusClient(address_of(tmp_path), job=job_in(tmp_path))
    answers += ["2e0c9a2b7d3e4c55", OURS]
    with pytest.raises(AnotherJob) as refused:
        client.ask()
    sentences.check(refused)
    assert client.ask().job == OURS
    client.close()


def entry(job: str) -> dict[str, object]:
    first = next(each for each in async_log() if each["kind"] == "job")
    return {**first, "job": job}
