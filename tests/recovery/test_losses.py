"""Any server or worker of a job with replicas dies, stands still or is cut off, at any step: nobody goes back.

Few here; `scripts/soak crashes --replicas` takes many.
"""

import pytest

from psserver.service.replicas.inputs import NotedCoordinator
from tests.recovery import losses
from tests.recovery.copies import Copies, Server
from tests.repetitions import repetitions, seeds


@pytest.mark.timeout(3600)
def test_nothing_is_undone_while_a_copy_is_in_sync() -> None:
    tally = losses.play_all(seeds(60, soak=5_000))
    assert tally.failed is None, tally.failed
    if repetitions(60, soak=5_000) >= 60:
        assert set(tally.servers) == {3, 4, 5}
        assert tally.happened.keys() >= {
            "takeover",
            "worker killed",
            "link cut",
            "clock jumps",
            "kill leader",
        }


def faults(monkeypatch: pytest.MonkeyPatch, kind: object, name: str, instead: object) -> bool:
    """Whether histories find that something is done in another way."""
    monkeypatch.setattr(kind, name, instead)
    return losses.play_all(range(300)).failed is not None


def test_a_receipt_that_only_one_copy_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def push(server: Server, ticket: int, then: object = lambda: None) -> None:
        if not server.shard.refuses(ticket):
            server.shard.push(ticket)
            assert callable(then)
            then()

    assert faults(monkeypatch, Server, "push", push)


def test_outputs_that_leave_before_all_copies_hold_their_input_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer = Server.offer

    def hasty(server: Server, body: bytes, release: object) -> None:
        assert callable(release)
        release()
        offer(server, body, lambda: None)

    assert faults(monkeypatch, Server, "offer", hasty)


def test_inputs_that_a_copy_does_not_take_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = NotedCoordinator.taken

    def forgetful(coordinator: NotedCoordinator) -> object:
        return [call for call in taken(coordinator) if call.name != "disconnect"]

    assert faults(monkeypatch, NotedCoordinator, "taken", forgetful)


def test_a_promise_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts again takes part under its former name."""

    def begin_again(server: Server) -> None:
        server.incarnation -= 1
        begin(server)

    begin = Server.begin_again
    assert faults(monkeypatch, Server, "begin_again", begin_again)


def test_copies_that_differ_are_found_without_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copies, "compared", 10**6, raising=False)
    assert faults(monkeypatch, Server, "differ", lambda server, found: None)


def test_a_shell_that_forgets_to_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(server: Server, disk: object) -> None:
        """The promise is made, and is not on the disk."""

    assert faults(monkeypatch, Server, "keep", kept)
