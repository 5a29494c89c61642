"""Peers that have proven nothing: only so many are kept, and the oldest goes first."""

import pytest

from psserver.service.guard.calls import Caller, Watch
from psserver.service.guard.limits import Unproven, address_of
from tests.promises import promise


@promise("Of too many calls and connections that have proven nothing the oldest is cut; no other call is.")
def test_of_too_many_the_oldest_goes() -> None:
    strangers: Unproven[str] = Unproven(2)
    assert [strangers.admit(peer) for peer in "abc"] == [[], [], ["a"]]
    assert list(strangers) == ["b", "c"] and "a" not in strangers
    strangers.discard("b")
    strangers.discard("b")
    assert strangers.admit("d") == [] and len(strangers) == 2


def test_calls_that_have_spoken_are_not_cut() -> None:
    cut: list[str] = []
    watch = Watch(most_unproven=1)
    with watch.first_message(Caller(lambda: cut.append("spoken"))):
        pass
    silent, next_one = (Caller(lambda name=name: cut.append(name)) for name in ("silent", "next"))  # type: ignore[misc]
    with watch.first_message(silent), watch.unproven(next_one):
        assert cut == ["silent"]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:4321", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4321", "%5B2001:db8::1%5D"),
        ("ipv6:[::1]:4321", "[::1]"),
        ("unix:", ""),
        ("unix:/tmp/socket", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address
