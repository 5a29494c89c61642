"""One server's part in the logs of all parts of the model: promises by log, and messages that name theirs."""

from pathlib import Path
from unittest import mock

import pytest

from psserver.replication import Config, SyncMember
from psserver.replication import messages as m
from psserver.service.job.log_file import LogError
from psserver.service.replicas.bodies import Bodies
from psserver.service.replicas.disk import Promises
from psserver.service.replicas.links import Links
from psserver.service.replicas.logs import Logs
from psserver.service.replicas.shell import Machine


def made(out: Path, server: int, servers: int = 5, parts: int = 2, resume: str | None = None) -> Logs:
    logs = Logs(server, servers, parts, Promises(out, server), resume)
    logs.persist()
    others = [each for each in range(servers) if each != server]
    links = mock.create_autospec(Links, instance=True, links=dict.fromkeys(others), met=set(others))
    logs.open(links, Bodies(), 1 << 20)
    logs.own.machine = mock.create_autospec(Machine, instance=True)
    logs.vote(lambda error: None)
    return logs


@pytest.mark.parametrize(
    ("server", "holds", "leads"), [(0, [1, 0], [1, 0]), (3, [0, 1], [0, 0]), (4, [0, 0], [0, 0])]
)
def test_a_server_holds_one_part_at_most_and_votes_in_all(
    tmp_path: Path, server: int, holds: list[bool], leads: list[bool]
) -> None:
    logs = made(tmp_path, server)
    replicas = [shell.replica for shell in logs.shells]
    assert [each.holds for each in replicas] == holds and [each.leads for each in replicas] == leads
    assert [each.servers for each in replicas] == [5, 5]


def test_a_promise_in_one_log_binds_in_that_one_alone_also_after_a_restart(tmp_path: Path) -> None:
    logs = made(tmp_path, 4)
    logs.receive(3, 1, m.Prepare(8))
    assert [shell.replica.disk.promised for shell in logs.shells] == [0, 8]
    again = made(tmp_path, 4)
    assert [shell.replica.disk.promised for shell in again.shells] == [0, 8]
    assert all(shell.replica.incarnation == 1 for shell in again.shells)


def test_from_a_checkpoint_only_server_0_has_the_coordinator_and_both_copies_of_other_parts_begin(
    tmp_path: Path,
) -> None:
    config = [shell.replica.disk.config for shell in made(tmp_path, 1, resume="latest").shells]
    assert config == [Config(0, 0, (SyncMember(0, 0),)), Config(0, 2, (SyncMember(2, 0), SyncMember(3, 0)))]
    assert made(tmp_path, 1, resume="latest").generation == 1


def test_a_server_that_never_ran_begins_in_the_generation_of_the_others(tmp_path: Path) -> None:
    for generation, servers in enumerate((3, 5, 3, 5)):
        found = [Logs(n, servers, servers // 2, Promises(tmp_path, n), "latest") for n in range(servers)]
        assert {logs.generation for logs in found} == {generation}
        for logs in found:
            logs.persist()


def test_promises_in_another_number_of_logs_are_refused(tmp_path: Path) -> None:
    made(tmp_path, 1)
    with pytest.raises(LogError, match="has promised in 2 logs"):
        made(tmp_path, 1, servers=7, parts=3)
    assert made(tmp_path, 1, servers=7, parts=3, resume="latest").anew
