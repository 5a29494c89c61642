"""One copy of a part saves it: the one that the primary chose when it offered the item."""

from types import SimpleNamespace
from typing import Any

from psserver.replication import Config, SyncMember
from psserver.service.replicas.saving import GONE, Saving, named, saver_of
from psserver.service.store.shard_part import Part
from pswire.v1 import shard_pb2
from tests.promises import promise

OWN, OTHER = SyncMember(0, 0), SyncMember(1, 3)


class Server:
    """Server 0, which notes what it saves, and what it knows of parts that others save."""

    def __init__(self, *members: SyncMember) -> None:
        self.saved: list[int] = []
        self.known: list[Part] = []
        self.orders: Any = SimpleNamespace()
        saver = SimpleNamespace(save=self._save, note=self.known.append)
        host = SimpleNamespace(orders=self.orders, saver=saver, job="j")
        replica = SimpleNamespace(member=OWN, server=OWN.server)
        self.shell: Any = SimpleNamespace(replica=replica, active=Config(2, 0, members))
        self.saving = Saving(host, self.shell)  # type: ignore[arg-type]

    def _save(self, entry: int, job: str, shard: object) -> bool:
        self.saved.append(entry)
        return False

    def executes(self, entry: int) -> None:
        self.orders.save(entry, None)


def test_a_primary_has_its_follower_save_and_hears_of_it() -> None:
    server = Server(OWN, OTHER)
    saver = server.saving.choose()
    assert saver == OTHER and saver_of(memoryview(named(saver) + b"rest")) == (1, b"rest")
    server.saving.lead(saver, [7])
    server.executes(7)
    assert server.saved == []
    server.saving.hear(2, shard_pb2.Saved(entry=7))
    assert server.known == []
    server.saving.hear(1, shard_pb2.Saved(entry=7))
    server.saving.hear(1, shard_pb2.Saved(entry=7))
    assert server.known == [Part(7)]


def test_a_primary_that_is_alone_saves_also_while_another_server_learns() -> None:
    server = Server(OWN)
    server.saving.lead(server.saving.choose(), [7])
    server.shell.active = Config(3, 0, (OWN, OTHER))
    server.executes(7)
    assert server.saved == [7]


@promise("A part of a checkpoint whose saver is lost counts as failed; nobody waits for it.")
def test_what_a_follower_was_to_save_has_failed_once_that_is_left_out() -> None:
    server = Server(OWN, OTHER)
    server.saving.lead(server.saving.choose(), [7])
    # Offered before the loss, and taken after it.
    saver = server.saving.choose()
    server.shell.active = Config(3, 0, (OWN, SyncMember(1, 4)))
    server.saving.activated()
    server.saving.lead(saver, [9])
    assert server.known == [Part(7, error=GONE), Part(9, error=GONE)]
    server.executes(7)
    server.executes(9)
    assert server.saved == []


def test_a_follower_saves_what_names_it_and_nothing_else() -> None:
    server = Server(OTHER, OWN)
    server.saving.follow(0, [7])
    server.saving.follow(1, [9])
    server.executes(7)
    server.executes(9)
    assert server.saved == [7]
    # It leads now, and nobody tells of what the former primary was to save.
    server.saving.succeed()
    assert server.known == [Part(9, error=GONE)]
