"""The shell of replicas, part by part: bytes, files, and inputs that are taken again."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from pslab.experiment import Experiment
from psserver.coordinator import Record
from psserver.decisions.entries import Note
from psserver.options import Options
from psserver.replication import Config, StableMemory, SyncMember, begin, first_config
from psserver.replication import messages as m
from psserver.service.errors import RequestRefused
from psserver.service.job.log_file import LogError, TakenOverError
from psserver.service.job.run_log import RunLog
from psserver.service.life.settings import ServerSettings
from psserver.service.replicas import wire
from psserver.service.replicas.disk import Promises, Remembered
from psserver.service.replicas.holding import Holding
from psserver.service.replicas.links import Links
from psserver.service.replicas.log import FollowersLog, fence
from psserver.service.replicas.same import (
    OtherSettingsError,
    check_folder,
    check_same,
    described,
    mark_folder,
)
from psserver.service.replicas.shell import Machine, Shell
from psserver.settings import SettingsError, resolve
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode

CONFIG = Config(4, 1, (SyncMember(0, 2), SyncMember(1, 0)), 7)


@pytest.mark.parametrize(
    "message",
    [
        m.Prepare(3),
        m.Promise(3, CONFIG),
        m.Sync(4, 2, ((0, 1), (0, 2)), 3),
        m.Propose(CONFIG),
        m.Append(CONFIG, 9, ((4, 10),), 8),
        m.Append(CONFIG, 9, (), 8),
        m.Held(4, 1, 5, 3),
    ],
)
def test_messages_come_back_from_their_bytes(message: m.Message) -> None:
    assert wire.decode(wire.encode(message)) == (0, message)
    assert wire.decode(wire.encode(message, 2)) == (2, message)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[",
        b'["Prepare",3]',
        b"[0]",
        b'[-1,["Prepare",3]]',
        b'[["Member",1,2],["Prepare",3]]',
        b'[0,["Prepare"]]',
        b'[0,["Prepare",-1]]',
        b'[0,["Prepare",1.5]]',
        b'[0,["Prepare",true]]',
        b'[0,["Prepare",[]]]',
        b'[0,["Offer",1]]',
        b'[0,["Member",1,2]]',
        b'[0,["Propose",3]]',
        b'[0,["Append",["Config",0,0,[],0],0,0,0]]',
        b'[0,["Append","[4,0,[1],0]",0,[],0]]',
        b'[0,["Append","[4,0,[[0,-1]],0]",0,[],0]]',
        b'[0,["Append","[4,0,[[0,0]],0]",0,[5],5]]',
        b'[0,["Sync",3,0,[[[1],2]],0]]',
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RequestRefused):
        wire.decode(data)


def test_a_promise_is_read_again(tmp_path: Path) -> None:
    promises = Promises(tmp_path, 1)
    assert promises.read() is None
    promises.write(Remembered(1, 2, (StableMemory(9, CONFIG), StableMemory(0, first_config((2, 3))))))
    assert promises.read() == Remembered(
        1, 2, (StableMemory(9, CONFIG), StableMemory(0, first_config((2, 3))))
    )
    assert Promises(tmp_path, 0).read() is None


def test_one_process_at_a_time_promises_for_a_server(tmp_path: Path) -> None:
    first, second, another = Promises(tmp_path, 1), Promises(tmp_path, 1), Promises(tmp_path, 0)
    first.hold()
    another.hold()
    with pytest.raises(LogError, match="expected one process for server 1 of this run"):
        second.hold()
    first.close()
    second.hold()
    for each in (second, another):
        each.close()


def test_a_process_whose_lock_was_given_up_promises_nothing_more(tmp_path: Path) -> None:
    """As a file system may do with a node that it does not hear."""
    lost, later = Promises(tmp_path, 1), Promises(tmp_path, 1)
    disk = StableMemory(4, CONFIG)
    lost.write(Remembered(1, 2, (disk,)))
    later.write(Remembered(1, 3, (disk,)))
    with pytest.raises(LogError, match="a newer process is server 1") as refused:
        lost.write(Remembered(1, 2, (StableMemory(5, CONFIG),)))
    assert later.read() == Remembered(1, 3, (disk,)) and refused.value.code == ExitCode.REFUSED
    lost.write(Remembered(2, 0, (disk,)))


def test_a_promise_of_a_process_that_ends_meanwhile_is_not_missed(tmp_path: Path) -> None:
    first, second = Promises(tmp_path, 1), Promises(tmp_path, 1)
    first.hold()
    assert second.read() is None
    first.write(Remembered(0, 0, (StableMemory(4, CONFIG),)))
    first.close()
    for _ in range(2):
        with pytest.raises(LogError, match="another process was server 1 a moment ago") as refused:
            second.hold()
        assert refused.value.code.restart
        second = Promises(tmp_path, 1)
    assert second.read() == Remembered(0, 0, (StableMemory(4, CONFIG),))
    second.hold()
    second.close()


def test_a_damaged_promise_is_no_promise(tmp_path: Path) -> None:
    promises = Promises(tmp_path, 0)
    promises.write(Remembered(0, 0, (StableMemory(0, first_config((0, 1))),)))
    path = tmp_path / "replication" / "server-0.json"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LogError):
        promises.read()


def test_the_end_is_that_of_its_generation(tmp_path: Path) -> None:
    promises = Promises(tmp_path, 0)
    assert promises.read_end(3) is None
    promises.write(Remembered(3, 0, (StableMemory(0, first_config((0, 1))),)))
    promises.write_end(3, ExitCode.TERMINATED, "stopped by SIGTERM")
    other = Promises(tmp_path, 1)
    assert other.read_end(3) == (ExitCode.TERMINATED, "stopped by SIGTERM")
    assert other.read_end(4) is None and other.newest_generation() == 3
    path = tmp_path / "replication" / "ended.json"
    path.write_bytes(path.read_bytes()[:-5])
    assert other.read_end(3) is None


def _note(number: int) -> Record:
    return Record(number, float(number), Note(f"number {number}"))


def _numbers(path: Path) -> list[int]:
    return [json.loads(line)["i"] for line in path.read_text().splitlines()]


def test_a_new_primary_goes_on_where_the_file_of_its_predecessor_ends(tmp_path: Path) -> None:
    before, after = RunLog(tmp_path, check=fence(tmp_path)), FollowersLog(None)
    for number in range(5):
        after.append(_note(number))
        if number < 3:
            before.append(_note(number))
    before.flush()
    path = tmp_path / "decisions.jsonl"
    with path.open("ab") as file:
        # It died in the middle of a line.
        file.write(b'{"i":3,"t"')
    after.succeed(tmp_path, "epoch-4")
    after.append(_note(5))
    after.flush()
    assert _numbers(path) == list(range(6))
    # The predecessor was not dead: it notices before it writes anything.
    before.append(_note(3))
    with pytest.raises(TakenOverError):
        before.flush()
    with pytest.raises(TakenOverError):
        before.write_summary({})
    assert _numbers(path) == list(range(6)) and not (tmp_path / "summary.json").exists()


def test_what_a_former_primary_wrote_is_never_replaced(tmp_path: Path) -> None:
    """An epoch of another generation has the same name, if its promises were removed."""
    for number in range(3):
        for path in (tmp_path / "decisions.jsonl", tmp_path / "metrics.jsonl"):
            path.unlink(missing_ok=True)
        before, after = RunLog(tmp_path, check=fence(tmp_path)), FollowersLog(None)
        before.append(_note(0))
        before.flush()
        after.append(_note(0))
        after.succeed(tmp_path, "epoch-4")
        assert len(list(tmp_path.glob("decisions.before-epoch-4*.jsonl"))) == number + 1


@pytest.mark.parametrize("step", ["link", "replace"])
def test_a_server_that_is_killed_while_it_takes_over_leaves_a_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """With that a checkpoint goes on, if both copies are lost."""
    before, after = RunLog(tmp_path), FollowersLog(None)
    for number in range(3):
        after.append(_note(number))
        before.append(_note(number))
    before.flush()
    after.append(_note(3))

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "decisions.jsonl"
    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(os, step, killed)
        after.succeed(tmp_path, "epoch-4")
    assert _numbers(path) == [0, 1, 2]
    after.succeed(tmp_path, "epoch-6")
    assert _numbers(path) == [0, 1, 2, 3]


def test_a_log_is_taken_over_where_files_have_one_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = RunLog(tmp_path), FollowersLog(None)
    before.append(_note(0))
    before.flush()
    for number in range(2):
        after.append(_note(number))

    def refused(*given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    after.succeed(tmp_path, "epoch-4")
    assert _numbers(tmp_path / "decisions.jsonl") == [0, 1]
    assert _numbers(tmp_path / "decisions.before-epoch-4.jsonl") == [0]


def test_a_log_with_a_gap_is_not_taken_over(tmp_path: Path) -> None:
    before = RunLog(tmp_path)
    for number in range(3):
        before.append(_note(number))
    before.flush()
    after = FollowersLog(None)
    after.append(_note(0))
    with pytest.raises(LogError):
        after.succeed(tmp_path, "epoch-4")
    assert _numbers(tmp_path / "decisions.jsonl") == [0, 1, 2]


def test_without_its_promise_on_the_disk_a_server_takes_no_further_part() -> None:
    links = mock.create_autospec(Links, instance=True, links={0: None, 1: None}, met={0, 1})

    def full(disk: StableMemory) -> None:
        raise LogError("no space left")

    shell = Shell(begin(2, 3, first_config((0, 1))), links, full, formed=True)
    machine = shell.machine = mock.create_autospec(Machine, instance=True)
    shell.receive(1, m.Prepare(4))
    assert isinstance(machine.fail.call_args.args[0], LogError)
    shell.receive(1, m.Prepare(7))
    shell.tick()
    assert not links.send.called and machine.fail.call_count == 1


class _Leading(Holding):
    """A copy that leads, of which only the log matters."""

    _begun = True

    async def _take_again(self, body: object) -> None:
        raise AssertionError("a primary executes what it took")

    async def _take_up(self, whole: object) -> int:
        raise AssertionError("a primary takes no copy")

    def _to_give(self) -> None:
        return None

    def _succeed(self, config: Config) -> None:
        raise AssertionError("a primary leads already")


def test_a_replaced_primary_gives_no_answer_for_anothers_item_and_only_votes() -> None:
    """Its own item, which is not stable, has the place of the other primary's item in the log."""
    links = mock.create_autospec(Links, instance=True, links={1: mock.MagicMock()}, met={1})
    host, soon, answered = mock.MagicMock(), list[Callable[[], None]](), list[str]()
    host.runtime.loop.call_soon = lambda call, *given: soon.append(partial(call, *given))
    shell = Shell(begin(0, 2, first_config((0, 1))), links, lambda disk: None, formed=True)
    shell.machine = copy = _Leading(host, shell, lambda: None, "")
    copy._lead()
    copy._offer(b"own", lambda: answered.append("own"))
    config = Config(3, 1, (SyncMember(1, 0),), 0)
    shell.hold((3, 1), b"another's")
    shell.receive(1, m.Append(config, 0, ((3, 1),), 1))
    assert copy.deposed == 3 and answered == []
    while soon:
        soon.pop(0)()
    links.send.reset_mock()
    shell.receive(1, m.Append(config, 1, (), 1))
    shell.receive(1, m.Propose(config))
    assert [call.args[:2] for call in links.send.call_args_list] == [(1, m.Accepted(3))]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["cluster.servers=1"], "cluster.servers"),
        (["cluster.servers=8"], "cluster.servers"),
        (["cluster.replicas=3"], "cluster.replicas"),
        (["run.engine=simulated"], "run.engine"),
    ],
)
def test_an_experiment_that_replicas_do_not_do_is_refused(
    tmp_path: Path, overrides: list[str], key: str
) -> None:
    path = tmp_path / "e.toml"
    path.write_text("")
    with pytest.raises(ExperimentError) as refused:
        Experiment.load(path, ["cluster.replicas=2", "cluster.servers=3", *overrides])
    assert key in str(refused.value)
    for engine in ("local", "ssh", "slurm", "ray"):
        Experiment.load(path, ["cluster.replicas=2", "cluster.servers=3", f"run.engine={engine}"])


def resolved(tmp_path: Path, **more: object) -> None:
    hosts, name = ",".join(["127.0.0.1:0"] * 3), str(more.pop("policy", "sync"))
    given: dict[str, object] = {"ps_hosts": hosts, "task_index": 0, "out": tmp_path, **more}
    overrides = ("cluster.replicas=2", f"policy.name={name}", "optimizer.name=sgd")
    resolve(Options(**given, overrides=overrides), None)  # type: ignore[arg-type]


def test_replicas_need_a_run_folder(tmp_path: Path) -> None:
    resolved(tmp_path)
    with pytest.raises(SettingsError) as refused:
        resolved(tmp_path, out=None)
    assert "--replicas 2: expected" in str(refused.value)


def test_a_folder_that_is_not_the_leaders_is_refused(tmp_path: Path) -> None:
    mine, another = tmp_path / "mine", tmp_path / "another"
    mark_folder(mine, "job")
    check_folder(mine, "job")
    # Of a former job.
    mark_folder(another, "former")
    for folder in (another, tmp_path / "none"):
        with pytest.raises(OtherSettingsError, match="is not the run folder of the server that leads"):
            check_folder(folder, "job")


def test_a_server_with_other_options_hears_which(tmp_path: Path) -> None:
    def settings(*overrides: str) -> ServerSettings:
        chosen = ("cluster.workers=4", "policy.name=bounded", "policy.aggregate=2", "optimizer.name=adam")
        given = (*chosen, *overrides)
        return resolve(Options(ps_hosts="127.0.0.1:0", task_index=0, out=tmp_path, overrides=given), None)

    same, other = settings(), settings("policy.aggregate=3", "optimizer.name=sgd", "cluster.workers=5")
    check_same(same, described(settings()))
    with pytest.raises(OtherSettingsError) as refused:
        check_same(other, described(same))
    for words in ('optimizer.name = "adam", got "sgd"', "policy.aggregate = 2, got 3", "workers = 4, got 5"):
        assert words in str(refused.value)
    assert "seed" not in str(refused.value)
