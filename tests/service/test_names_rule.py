"""The rule of who has a worker's name, on times of the test's own."""

from typing import Any

import pytest

from psserver.service.job.names_in_use import TAKE, Joiner, NamesInUse, Ruling

REFUSE = Ruling("refuse")


def process(session: str, token: str = "", since: float = 0.0) -> Joiner:
    return Joiner(session, token, f"process {token} on host h", since)


OWNER = process("s-owner", "owner")


class Names:
    """NamesInUse of the name "w", which the owner has since 0."""

    def __init__(self, owner: Joiner | None = OWNER) -> None:
        self.names, self.session = NamesInUse(10.0), OWNER.session
        if owner is not None:
            self.names.admitted("w", owner)
            self.session = owner.session

    def ask(self, now: float, newcomer: str = "new", lost: bool = False, **given: Any) -> Ruling:
        found, linked = process(f"s-{newcomer}", newcomer), given.pop("linked", True)
        return self.names.ask_for("w", self.session, found, now, lost=lost, linked=linked, **given)


def test_an_owner_that_is_alive_keeps_its_name() -> None:
    names = Names()
    assert names.ask(1.0) == Ruling("wait", 10.0)
    assert names.ask(3.0) == Ruling("wait", 8.0)
    assert names.ask(11.0) == REFUSE
    # The next one waits for its own time.
    assert names.ask(12.0) == Ruling("wait", 10.0)


def test_an_owner_without_a_connection_loses_its_name() -> None:
    names = Names()
    assert names.ask(1.0).outcome == "wait"
    assert names.ask(10.9, linked=False).outcome == "wait"
    assert names.ask(11.0, linked=False) == TAKE


def test_a_wait_of_long_ago_says_nothing_about_the_owner_now() -> None:
    names = Names()
    assert names.ask(0.0, "a").outcome == "wait"
    assert names.ask(21.0, "b") == Ruling("wait", 10.0)


@pytest.mark.parametrize("lost", [False, True])
def test_another_session_of_the_same_process_takes_the_name_at_once(lost: bool) -> None:
    assert Names().ask(0.0, "owner", lost) == TAKE


def test_an_owner_that_says_no_process_or_is_lost_gives_the_name_up_at_once() -> None:
    assert Names(process("s-plain")).ask(0.0) == TAKE
    assert Names(process("s-plain")).ask(0.0, "") == TAKE
    assert Names().ask(0.0, lost=True) == TAKE
    # A newcomer without a value of its own is another process all the same.
    assert Names().ask(0.0, "").outcome == "wait"


def test_an_owner_that_has_not_come_to_a_server_that_took_over_has_time_to_come() -> None:
    for comes, ruling in ((False, TAKE), (True, REFUSE)):
        names = Names(None)
        assert names.ask(0.0, linked=False) == Ruling("wait", 10.0)
        if comes:
            names.names.admitted("w", OWNER)
        assert names.ask(10.0, linked=comes) == ruling


def test_who_had_the_name_before_waits_until_the_present_owner_is_alive_or_gone() -> None:
    for lost, ruling in ((False, REFUSE), (True, TAKE)):
        names = Names()
        assert names.ask(0.0, lost=True, older=True).outcome == "wait"
        assert names.ask(10.0, lost=lost, older=True) == ruling


def test_an_owner_that_joins_again_has_had_the_name_all_the_time() -> None:
    names = Names()
    names.names.admitted("w", process(OWNER.session, "owner", since=50.0))
    assert names.names.owner("w", OWNER.session) == OWNER
    assert names.ask(60.0).outcome == "wait"
    # The next owner is another one.
    names.session = "s-next"
    names.names.admitted("w", process("s-next", "next", since=61.0))
    assert names.ask(69.0) == Ruling("wait", 10.0)
    names.names.keep(())
    assert names.names.owner("w", "s-next") is None
