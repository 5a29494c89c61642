"""One question for all viewers; nobody looks, nothing is asked; what waits for a viewer is bounded."""

import asyncio
import io
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from rich.console import Console

from pslab.dashboard import observer as observing
from pslab.dashboard.observer import Observer, TooMany
from pslab.display.status import status_json, status_line, status_view
from pslab.launch.status_client import StatusError, printable
from pslab.runs.folder import Run
from pswire.bounds import BoundError
from pswire.v1 import coordinator_pb2 as pb
from tests.patience import PATIENCE
from tests.probes import whole_page
from tests.replay.simulated import simulate


class Server:
    """Answers like server 0: `rate` new versions per question."""

    def __init__(self, rate: int = 2, job: str = "job") -> None:
        self.asked: list[int] = []
        self.rate, self.job = rate, job
        about = {"job": job, "policy": {"name": "async"}, "optimizer": {"name": "sgd"}}
        first = {"i": 0, "t": 0.0, "kind": "job", **about, "servers": 1, "workers": 1, "seed": 0, "format": 1}
        joined = {"i": 1, "t": 0.1, "kind": "join", "worker": "w0", "incarnation": 0, "rank": 0}
        self.lines = [json.dumps(first), json.dumps(joined)]
        self.version = 0
        self.gone = False
        self.called = asyncio.Event()

    def grow(self, count: int) -> None:
        for _ in range(count):
            ticket, t = self.version + 1, 0.2 + self.version * 0.1
            own = {"worker": "w0", "ticket": ticket}
            part = {**own, "base": self.version, "staleness": 0, "weight": 1.0, "factor": 1.0}
            for kind, more in (
                ("grant", {**own, "version": self.version}),
                ("commit", {**own, "batch": ticket, "samples": 4, "loss": 1.0, "norm": 1.0}),
                ("apply", {"version": self.version + 1, "scale": 1.0, "lr_scale": 1.0, "parts": [part]}),
            ):
                self.lines.append(json.dumps({"i": len(self.lines), "t": round(t, 6), "kind": kind, **more}))
            self.version += 1

    def ask(self, first: int, evaluation: int = 0) -> pb.StatusReply:
        self.asked.append(first)
        if self.gone:
            raise StatusError("nothing listens there")
        self.grow(self.rate)
        oldest = max(first, len(self.lines) - 5000)
        entries = self.lines[oldest : oldest + 1000]
        return pb.StatusReply(
            job=self.job, phase="training", version=self.version, seconds=len(self.asked) * 0.25,
            workers=[pb.WorkerStatus(name="w0", state="waiting", waiting_for="version 9", releasers=["w1"])],
            entries=entries, entries_from=oldest,
        )  # fmt: skip


async def until(stream: Any, fits: Callable[[str, Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE):
        async for kind, text in stream:
            if fits(kind, json.loads(text)):
                return json.loads(text)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "INTERVAL", 0.01)
    monkeypatch.setattr(observing, "PAUSE", 0.01)


def test_twenty_viewers_cost_one_question() -> None:
    async def watch() -> None:
        server = Server()
        observer = Observer(server.ask)
        assert server.asked == [], "nobody looks"
        streams = [observer.messages() for _ in range(20)]
        wholes = await asyncio.gather(*(until(stream, lambda kind, _: kind == "whole") for stream in streams))
        assert all(whole["workers"] == ["w0"] for whole in wholes)
        await asyncio.gather(
            *(until(stream, lambda kind, m: m["status"]["version"] >= 10) for stream in streams)
        )
        # None twice: each asks for what comes behind the one before.
        assert server.asked == sorted(set(server.asked)) and server.asked[:3] == [0, 8, 14]
        assert observer.viewers == 20
        for stream in streams:
            await stream.aclose()
        assert observer.viewers == 0
        count = len(server.asked)
        await asyncio.sleep(0.1)
        assert len(server.asked) <= count + 1, "nobody looks any more"

    asyncio.run(watch())


def test_frames_put_together_are_the_log() -> None:
    async def watch() -> None:
        server = Server()
        stream = Observer(server.ask).messages()
        versions: list[int] = []

        def take(kind: str, message: Any) -> bool:
            batches = message["recent"] if kind == "whole" else [message]
            versions.extend(row[0] for batch in batches for row in batch.get("updates", ()))
            return len(versions) >= 40

        await until(stream, take)
        await stream.aclose()
        assert versions == list(range(1, len(versions) + 1))

    asyncio.run(watch())


def test_a_viewer_that_does_not_read_gets_the_whole_anew() -> None:
    async def watch() -> None:
        server = Server()
        observer = Observer(server.ask)
        slow, quick = observer.messages(), observer.messages()
        await until(slow, lambda kind, _: kind == "whole")
        await until(quick, lambda kind, m: m.get("status", {}).get("version", 0) >= 60)
        whole = await until(slow, lambda kind, _: kind == "whole")
        assert whole["status"]["version"] >= 60
        assert sum(len(batch.get("updates", ())) for batch in whole["recent"]) == whole["status"]["version"]
        await slow.aclose()
        await quick.aclose()

    asyncio.run(watch())


def test_what_is_long_ago_is_kept_in_few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "SECONDS", 1.0)
    monkeypatch.setattr("pslab.dashboard.history.POINTS", 50)
    observer = Observer(Server().ask)
    server = Server(rate=20)
    for first in itertools.count(0, 0):
        observer.take(server.ask(len(server.lines) if server.asked else first))
        if server.version >= 400:
            break
    server.asked.clear()

    async def look() -> Any:
        stream = observer.messages()
        whole = await until(stream, lambda kind, _: kind == "whole")
        await stream.aclose()
        return whole

    whole = asyncio.run(look())
    recent = sum(len(batch.get("updates", ())) for batch in whole["recent"])
    assert recent <= 80 and len(whole["past"]["updates"]) <= 50
    counted = sum(count for _, _, count in whole["past"]["applied"])
    assert counted + sum(len(batch.get("fates", ())) for batch in whole["recent"]) == 400


def test_another_job_begins_anew_and_a_lost_server_is_said() -> None:
    async def watch() -> None:
        server = Server()
        stream = Observer(server.ask).messages()
        await until(stream, lambda kind, m: m.get("status", {}).get("version", 0) >= 6)
        server.gone = True
        gone = await until(stream, lambda kind, _: kind == "gone")
        assert gone["reason"] == "nothing listens there"
        fresh = Server(job="another")
        server.job, server.lines, server.version, server.gone = "another", fresh.lines, 0, False
        kinds: list[str] = []

        def of_the_other(kind: str, message: Any) -> bool:
            kinds.append(kind)
            return bool(message.get("status", {}).get("job") == "another")

        await until(stream, of_the_other)
        # All of it, not on top of what was shown of the job before.
        assert kinds[-1] == "whole"
        await stream.aclose()

    asyncio.run(watch())


def test_evaluations_come_while_the_job_goes_on_and_once_each() -> None:
    async def watch() -> None:
        server = Server()
        found = [
            pb.Evaluation(number=n, seconds=n, version=n, metrics={"accuracy": n / 10}) for n in range(5)
        ]
        asked: list[int] = []

        def ask(first: int, evaluation: int) -> pb.StatusReply:
            asked.append(evaluation)
            reply = server.ask(first)
            # One more at each question; the one before it comes twice.
            reply.evaluations.extend(found[max(0, len(asked) - 2) : len(asked)])
            return reply

        stream, rows = Observer(ask).messages(), []

        def take(kind: str, message: Any) -> bool:
            batches = message["recent"] if kind == "whole" else [message]
            rows.extend(row for batch in batches for row in batch.get("evals", ()))
            return len(rows) >= len(found)

        await until(stream, take)
        await stream.aclose()
        assert rows == [[n, n, {"accuracy": n / 10}] for n in range(5)]
        assert asked[:5] == [0, 1, 2, 3, 4]

    asyncio.run(watch())


def test_the_end_is_told_with_the_last_evaluation_and_the_folder() -> None:
    observer, server = Observer(Server().ask), Server()
    observer.take(server.ask(0))
    stop = {"version": server.version, "reason": "all workers are done", "success": True}
    server.lines.append(json.dumps({"i": len(server.lines), "t": 9.0, "kind": "stop", **stop}))
    server.rate, known = 0, len(server.lines) - 1
    stopping = server.ask(known)
    stopping.phase = "stopping"
    stopping.evaluations.add(number=0, seconds=9.5, version=server.version, metrics={"accuracy": 0.5})
    observer.take(stopping)
    assert json.loads(whole_page(observer))["ended"] is None, "the last version is being evaluated"
    stopped = server.ask(len(server.lines))
    stopped.phase, stopped.folder = "stopped", "/runs/x"
    observer.take(stopped)
    ended = json.loads(whole_page(observer))["ended"]
    assert ended == {**stop, "metrics": {"accuracy": 0.5}, "folder": "/runs/x"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("finished") / "run"
    return simulate(folder, "sync", run={"versions": 12}, simulation={"evaluate": 4})


@pytest.mark.parametrize(("local", "job"), [(True, ""), (False, ""), (True, "another")])
def test_what_a_server_could_not_tell_stands_in_its_folder(
    finished: Run, local: bool, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the folder is on this machine, and has that job."""
    lines = finished.log.read_text().splitlines()

    async def watch() -> None:
        gone = False

        def ask(first: int, evaluation: int) -> pb.StatusReply:
            if gone:
                raise StatusError("nothing listens there")
            reply = pb.StatusReply(
                job=job or finished.summary.job, phase="training", folder=str(finished.path)
            )
            reply.entries.extend(lines[first:20])
            reply.entries_from = first
            return reply

        stream = Observer(ask, local=local).messages()
        await until(stream, lambda kind, _: kind == "whole")
        gone = True
        if not local or job:
            await until(stream, lambda kind, _: kind == "gone")
            kind, _ = await anext(stream)
            assert kind == "gone", "nothing else is known"
        else:
            whole = await until(stream, lambda kind, m: kind == "whole" and m["ended"] is not None)
            ended, summary = whole["ended"], finished.summary
            assert (ended["success"], ended["version"], ended["reason"]) == (True, 12, summary.reason)
            assert ended["metrics"].keys() == summary.metrics.keys()
            entries = [row[0] for batch in whole["recent"] for row in batch.get("log", ())]
            assert entries == sorted(set(entries)) and entries[-1] == len(lines) - 1
            evaluated = [row[1] for batch in whole["recent"] for row in batch.get("evals", ())]
            assert evaluated[-1] == 12
            # Once it was read, only the server is asked.
            monkeypatch.setattr(observing.RunPage, "of_job", lambda *_: pytest.fail("read again"))
            for _ in range(3):
                assert (await anext(stream))[0] == "gone"
        await stream.aclose()

    asyncio.run(watch())


NUMBERS = [
    (kind, field.name)
    for kind in (pb.StatusReply, pb.WorkerStatus)
    for field in kind.DESCRIPTOR.fields
    if field.type == field.TYPE_DOUBLE
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7e308])
@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_no_number_of_a_status_breaks_a_page_or_a_line(kind: type[Message], name: str, value: float) -> None:
    """A server that says it is refused with the field's name, or what is shown is JSON, and short."""
    reply = Server().ask(0)
    setattr(reply if kind is pb.StatusReply else reply.workers[0], name, value)
    try:
        printable(reply)
    except BoundError as error:
        assert f"{kind.DESCRIPTOR.name}.{name}" in str(error)
        return
    observer = Observer(lambda *_: reply)
    observer.take(reply)
    json.dumps(status_json(reply), allow_nan=False)
    assert len(status_line(reply, 0.0)) < 400
    console = Console(file=io.StringIO(), width=200)
    console.print(status_view(reply))


def test_viewers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "VIEWERS", 2)

    async def crowd() -> None:
        observer = Observer(Server().ask)
        streams = [observer.messages() for _ in range(2)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        with pytest.raises(TooMany, match="2 pages show this cluster already"):
            await anext(observer.messages())
        for stream in streams:
            await stream.aclose()

    asyncio.run(crowd())
