"""The rule of who has a worker's name, on times of the test's own."""

from typing import Any

import pytest

from psserver.service.job.names_in_use import TAKE, Joiner, NamesInUse, Ruling

LINK = object()
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

    def ask(self, now: float, newcomer: str = "new", link: object | None = LINK, **given: Any) -> Ruling:
        found = process(f"s-{newcomer}", newcomer)
        return self.names.ask_for(
            "w", self.session, found, now, lost=given.pop("lost", False), link=link, **given
        )


def test_an_owner_that_answers_keeps_its_name() -> None:
    names = Names()
    asked = names.ask(1.0)
    assert (asked.outcome, asked.seconds) == ("wait", 10.0) and asked.ask is not None
    assert names.ask(3.0) == Ruling("wait", 8.0)
    names.names.answered(OWNER.session, asked.ask)
    assert names.ask(4.0) == REFUSE
    # The answer to the next one, also if it is the same again, is another one.
    assert names.ask(5.0).ask not in (None, asked.ask)


def test_an_owner_that_does_not_answer_loses_its_name() -> None:
    names = Names()
    asked = names.ask(1.0)
    assert asked.ask is not None
    # None of these is an answer of the owner to this question.
    names.names.answered(OWNER.session, asked.ask + 1)
    names.names.answered("s-new", asked.ask)
    assert names.ask(10.9).outcome == "wait"
    assert names.ask(11.0) == TAKE


def test_a_question_of_long_ago_says_nothing_about_the_owner_now() -> None:
    names = Names()
    first = names.ask(0.0, "a").ask
    assert first is not None
    again = names.ask(21.0, "b")
    assert again.outcome == "wait" and again.ask not in (None, first)
    names.names.answered(OWNER.session, first)
    assert names.ask(22.0, "b").outcome == "wait"


def test_a_new_connection_carries_the_question_again() -> None:
    names = Names()
    number = names.ask(0.0).ask
    assert names.ask(1.0, link=None).ask is None
    assert names.ask(2.0, link=object()).ask == number


@pytest.mark.parametrize("lost", [False, True])
def test_another_session_of_the_same_process_takes_the_name_at_once(lost: bool) -> None:
    assert Names().ask(0.0, "owner", lost=lost) == TAKE


def test_an_owner_that_cannot_answer_or_is_lost_gives_the_name_up_at_once() -> None:
    assert Names(process("s-plain")).ask(0.0) == TAKE
    assert Names(process("s-plain")).ask(0.0, "") == TAKE
    assert Names().ask(0.0, lost=True) == TAKE
    # A newcomer without a value of its own is another process all the same.
    assert Names().ask(0.0, "").outcome == "wait"


def test_an_owner_that_has_not_come_to_a_server_that_took_over_has_time_to_come() -> None:
    names = Names(None)
    assert names.ask(0.0, link=None) == Ruling("wait", 10.0)
    names.names.admitted("w", OWNER)
    assert names.ask(1.0).ask is not None
    assert names.ask(10.0) == TAKE


def test_who_had_the_name_before_waits_until_the_present_owner_is_alive_or_gone() -> None:
    names = Names()
    assert names.ask(0.0, lost=True, older=True).outcome == "wait"
    number = names.ask(1.0, link=object(), older=True).ask
    assert number is not None
    names.names.answered(OWNER.session, number)
    assert names.ask(2.0, older=True) == REFUSE


def test_an_owner_that_joins_again_has_had_the_name_all_the_time() -> None:
    names = Names()
    names.names.admitted("w", process(OWNER.session, "owner", since=50.0))
    assert names.names.owner("w", OWNER.session) == OWNER
    # The next owner is another one, to whom nobody's claim has been told.
    first = names.ask(60.0).ask
    names.session = "s-next"
    names.names.admitted("w", process("s-next", "next", since=61.0))
    assert names.ask(69.0).ask not in (None, first)
    assert names.ask(70.5).outcome == "wait"


def test_newcomers_without_end_wait_for_one_question_and_are_refused_by_its_answer() -> None:
    names = Names()
    number = names.ask(0.0, "n0").ask
    assert number is not None
    for each in range(1, 1000):
        assert names.ask(0.0, f"n{each}").ask is None
    names.names.answered(OWNER.session, number)
    assert names.ask(0.1, "n0") == REFUSE
    # Its answer was for that newcomer: the next one asks for its own.
    assert names.ask(0.2, "n1").ask not in (None, number)
    names.names.keep(())
    assert names.names.owner("w", OWNER.session) is None
