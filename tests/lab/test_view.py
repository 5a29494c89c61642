"""A status for people and for programs."""

import io
import json
import math
from pathlib import Path

from rich.console import Console

from pslab.display.progress import Lines
from pslab.display.progress import TableDisplay as LiveTable
from pslab.display.status import (
    SampleRate,
    duration,
    progress_sentence,
    status_json,
    status_line,
    status_view,
    waiting_sentences,
)
from pswire.v1 import coordinator_pb2 as pb
from tests.probes import print_into
from tests.sentences import Recorder


def a_status(**fields: object) -> pb.StatusReply:
    reply = pb.StatusReply(
        job="j",
        phase="training",
        version=7,
        seconds=12.5,
        policy="sync",
        optimizer="sgd",
        committed=20,
        applied=18,
        dropped=1,
        pending=1,
        samples=640,
        loss=0.25,
        mean_staleness=0.5,
        max_staleness=2,
    )
    reply.workers.add(name="w0", state="computing", seconds=0.2, ticket=21, base_version=7, committed=10)
    reply.workers.add(
        name="w1",
        incarnation=1,
        state="waiting",
        seconds=3.25,
        waiting_for="version 8, which needs a commit of w0 (w0 has been computing ticket 21 for 0.2 s)",
        releasers=["w0"],
    )
    reply.servers.add(task_index=0, address="127.0.0.1:7070", state="ready", bytes=2**20, executed=61)
    reply.servers.add(task_index=1, address="127.0.0.1:7071", state="lost")
    for name, value in fields.items():
        setattr(reply, name, value)
    return reply


def shown(reply: pb.StatusReply) -> str:
    console = Console(width=160, file=io.StringIO())
    console.print(status_view(reply))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view_says_who_waits_for_whom_and_since_when() -> None:
    text = shown(a_status())
    assert "w1 has waited 3.2 s for version 8, which needs a commit of w0" in text
    for words in ("sync, sgd: training", "version 7", "w1 #1", "127.0.0.1:7071", "lost", "1.00"):
        assert words in text


def test_a_view_that_renews_itself_leaves_out_short_waits() -> None:
    reply = a_status()
    assert len(waiting_sentences(reply, least=1.0)) == 1
    reply.workers[1].seconds = 0.1
    assert waiting_sentences(reply, least=1.0) == []
    assert len(waiting_sentences(reply)) == 1


def test_names_are_not_taken_for_markup() -> None:
    reply = a_status(note="[red]careful[/red]")
    reply.workers[0].name = "[bold]w"
    assert "[red]careful[/red]" in shown(reply)
    assert "[bold]w" in shown(reply)


def test_a_line_has_all_of_it() -> None:
    line = status_line(a_status(note="w1 is late"), 512.0)
    assert "version 7  512 samples/s  loss 0.250" in line
    assert "1 computing, 1 waiting" in line
    assert line.endswith("(w1 is late)")


def test_before_the_first_commit_there_is_no_loss() -> None:
    reply = pb.StatusReply(phase="waiting for workers", loss=math.nan)
    assert "loss -" in status_line(reply, 0.0)
    assert "workers: none yet" in status_line(reply, 0.0)
    assert waiting_sentences(reply) == []


def test_json_has_every_field_and_null_for_nan() -> None:
    record = json.loads(json.dumps(status_json(a_status(loss=math.nan)), allow_nan=False))
    assert record["loss"] is None
    assert record["samples"] == 640
    assert record["workers"][1]["releasers"] == ["w0"]
    assert set(record) == {field.name for field in pb.StatusReply.DESCRIPTOR.fields}


def test_the_pace_is_that_of_the_last_seconds() -> None:
    rate = SampleRate(window=3.0)
    rate.add(0.0, 0)
    assert rate.rate == 0.0
    for second in range(1, 11):
        rate.add(float(second), second * 100 if second <= 5 else 500 + (second - 5) * 10)
    assert rate.rate == 10.0


def test_plain_lines_come_every_two_seconds_and_at_a_change_of_phase() -> None:
    display = Lines()
    console = Console(file=io.StringIO(), width=200)
    print_into(display, console)
    for quarter in range(17):
        display.status(a_status(), quarter / 4)
    display.status(a_status(phase="stopping"), 4.1)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("\n") == 4


def test_a_wait_is_told_when_it_changes_and_every_thirty_seconds() -> None:
    display = Lines()
    console = Console(file=io.StringIO(), width=200)
    print_into(display, console)
    for quarter in range(4 * 35):
        to_join = 3 if quarter < 4 * 32 else 2
        display.status(
            a_status(phase="waiting", note=f"waiting for {to_join} of 3 workers to join"), quarter / 4
        )
    display.status(a_status(), 35.0)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split("waiting for ")[1][0] for line in lines[:-1]] == ["3", "3", "2"]
    assert "training" in lines[-1]


def test_lines_say_where_to_ask_and_what_was_measured(sentences: Recorder) -> None:
    display = Lines()
    console = Console(file=io.StringIO(), width=200)
    print_into(display, console)
    display.event("server-1", {"event": "ready", "task_index": 1, "address": "127.0.0.1:1"})
    for run in (Path("runs/a b").absolute(), Path("/elsewhere")):
        ready = {"event": "ready", "task_index": 0, "address": "127.0.0.1:2", "run": str(run)}
        display.event("server-0", ready)
    display.event("worker-0", {"event": "evaluated", "version": 40, "metrics": {"loss": 0.5, "f1": 0.25}})
    assert isinstance(console.file, io.StringIO)
    sentences.check(console.file.getvalue())


def test_the_live_table_shows_the_last_status_and_warnings_above_it() -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    with LiveTable(console) as display:
        display.status(a_status(), 0.0)
        display.warning("worker-1 exited with code 6", "ValueError: no data")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "version 7" in text
    assert "ValueError: no data" in text


def test_how_far_the_job_is_and_how_long_it_will_take() -> None:
    status = a_status()
    assert progress_sentence(status) == "" and status_json(status)["progress"] is None
    far = pb.Progress(epoch=2, epochs=10, done=340, total=2000, unit="batches", seconds_left=81.0)
    status.progress.CopyFrom(far)
    sentence = "epoch 2 of 10, 340 of 2000 batches, about 1 min 21 s left"
    assert progress_sentence(status) == sentence and sentence in shown(status)
    assert sentence in status_line(status, 0.0)
    assert status_json(status)["progress"]["seconds_left"] == 81.0
    status.progress.CopyFrom(pb.Progress(done=3, total=9, unit="versions", seconds_left=math.nan))
    assert progress_sentence(status) == "3 of 9 versions"
    assert status_json(status)["progress"]["seconds_left"] is None


def test_durations_have_two_units_at_most() -> None:
    assert [duration(s) for s in (0.4, 59.6, 3599, 3600, 90061)] == [
        "0 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "1 d 1 h",
    ]


def test_a_server_that_nothing_protects_says_so() -> None:
    assert "not protected (--insecure)" in shown(a_status(security="insecure"))
    for security in ("loopback", "tls", "tokens", ""):
        assert "not protected" not in shown(a_status(security=security))


def test_a_job_behind_others_of_the_same_servers_is_named() -> None:
    assert "in /runs/mine/job-2" in shown(a_status(folder="/runs/mine/job-2"))
    assert "after earlier jobs" not in shown(a_status(folder="/runs/mine"))
