"""A session's loop of turns: which batches it yields, and what each wrong call is told."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import psworker
from pswire.model.tables import TableSpec
from psworker.errors import RolledBack, Voided
from tests.sentences import Recorder
from tests.service.serving import ONES, PATIENCE, Cluster, serving

TRAINED = "dense/bias"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with serving() as cluster:
        yield cluster


def connected(cluster: Cluster, **options: Any) -> psworker.Session:
    return psworker.connect(cluster.hosts, ONES, name="w", server_timeout=PATIENCE, **options)


def send(turn: psworker.LoopTurn, **options: Any) -> bool:
    return turn.send({TRAINED: np.ones(4, np.float32)}, **{"samples": 2, **options})


def test_each_batch_has_a_turn_and_the_loop_ends_with_the_job(cluster: Cluster) -> None:
    with connected(cluster) as session:
        seen = [(turn.batch, turn.version) for turn in session.turns("abc", epochs=2) if send(turn)]
        assert seen == list(zip("abcabc", range(6), strict=True))
        assert session.over is not None and session.over.success and session.fates == {"applied": 6}
        assert session.weights()[TRAINED].shape == (4,)
        session.report({"loss": 0.5})


def test_fates_are_counted_however_many_there_are(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a loop that asks for them once, at its end."""
    monkeypatch.setattr("psworker.engine.client.KEPT_DISPOSITIONS", 2)
    with connected(cluster) as session:
        assert all(send(turn) for turn in session.turns("abc", epochs=4))
        assert session.fates == {"applied": 12}


def test_a_restarted_worker_goes_on_where_it_was(cluster: Cluster) -> None:
    with connected(cluster) as session:
        for turn in session.turns("abcd"):
            if turn.batch == "c":
                break
            send(turn)
    with connected(cluster) as session:
        assert (session.info.next_batch, session.info.incarnation) == (2, 1)
        assert [turn.batch for turn in session.turns("abcd") if send(turn)] == ["c", "d"]


def test_a_batch_comes_again_if_its_turn_was_cancelled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(cluster) as session:
        contribute = session._link.contribute
        mishaps = iter([None, Voided("overtaken")])

        def mishap(*arguments: Any, **said: Any) -> None:
            if (error := next(mishaps, None)) is not None:
                raise error
            contribute(*arguments, **said)

        monkeypatch.setattr(session._link, "contribute", mishap)
        assert [(turn.batch, send(turn)) for turn in session.turns("abc")][:3] == [
            ("a", True),
            ("b", False),
            ("b", True),
        ]


def test_batches_that_the_servers_lost_come_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(cluster) as session:
        ready, seen = session._link.ready, []

        def went_back() -> Any:
            monkeypatch.setattr(session._link, "ready", ready)
            raise RolledBack("the servers went back to version 0")

        for turn in session.turns(["a", "b"]):
            seen.append(turn.batch)
            send(turn)
            if len(seen) == 1:
                monkeypatch.setattr(session._link, "ready", went_back)
        assert seen == ["a", "a", "b"]


def test_a_turn_in_which_nothing_is_sent_gives_its_batch_up(cluster: Cluster) -> None:
    with connected(cluster) as session:
        for turn in session.turns("abc"):
            if turn.batch != "b":
                send(turn)
        assert session.fates == {"applied": 2}


def test_turns_without_data_go_on_until_a_worker_stops_the_job(cluster: Cluster) -> None:
    with connected(cluster) as session:
        for turn in session.turns():
            if turn.version == 3:
                session.stop("good enough")
            else:
                send(turn)
        assert session.over is not None and session.over.version == 3 and "good enough" in session.over.reason


def test_units_are_dealt_to_the_loop(cluster: Cluster) -> None:
    work = psworker.WorkUnits(samples=10, batch_size=4)
    with connected(cluster, work=work, epochs=2) as session:
        seen = [turn.batch for turn in session.turns() if send(turn, samples=len(turn.batch))]
        assert sorted(np.concatenate(seen)) == sorted([*range(10), *range(10)])


def test_rows_of_tables_come_with_the_turn(cluster: Cluster) -> None:
    items = TableSpec("items", dim=2, initializer="zeros", numbers=())
    with connected(cluster, tables=[items]) as session:
        for turn in session.turns([[7, 3, 7]], epochs=2, rows=lambda batch: {"items": batch}):
            assert turn.rows["items"].shape == (3, 2)
            send(turn, rows={"items": np.ones((3, 2), np.float32)})
        rows, version = session.lookup("items", [3, 7])
        assert version == 2 and rows[1, 0] == pytest.approx(2 * rows[0, 0]) and rows[0, 0]


def twice(session: psworker.Session) -> None:
    for turn in session.turns("a"):
        send(turn)
        send(turn)


def late(session: psworker.Session) -> None:
    turns = session.turns("ab")
    first = next(turns)
    next(turns)
    send(first)


def again(session: psworker.Session) -> None:
    session.turns("a")
    session.turns("a")


def first_turn(wrong: Callable[[psworker.LoopTurn], object]) -> Callable[[psworker.Session], object]:
    return lambda session: wrong(next(session.turns("a")))


WRONG: dict[str, tuple[type[Exception], Callable[[psworker.Session], object]]] = {
    "two sends": (RuntimeError, twice),
    "a send after its turn": (RuntimeError, late),
    "no samples": (ValueError, first_turn(lambda turn: send(turn, samples=0))),
    "another name": (ValueError, first_turn(lambda turn: turn.send({"bias": 1.0}, samples=1))),
    "another shape": (ValueError, first_turn(lambda turn: turn.send({TRAINED: np.ones(3)}, samples=1))),
    "rows that were not read": (ValueError, first_turn(lambda turn: send(turn, rows={"items": 1.0}))),
    "two loops": (RuntimeError, again),
    "epochs of a generator": (ValueError, lambda session: session.turns(iter("ab"), epochs=2)),
    "no batches": (ValueError, lambda session: session.turns(3)),
    "weights before the end": (RuntimeError, lambda session: session.weights()),
    "metrics before the end": (RuntimeError, lambda session: session.report({"loss": 1.0})),
    "no reason": (ValueError, lambda session: session.stop("")),
    "no such table": (ValueError, lambda session: session.lookup("items", [1])),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_told_what_to_do(cluster: Cluster, sentences: Recorder, case: str) -> None:
    error, call = WRONG[case]
    with connected(cluster) as session, sentences.raises(error):
        call(session)


def test_a_connection_needs_variables_and_dealt_data_a_function(
    cluster: Cluster, sentences: Recorder
) -> None:
    with sentences.raises(ValueError):
        psworker.connect(cluster.hosts)
    with connected(cluster, work=psworker.WorkUnits(units=3)) as session:
        with sentences.raises(ValueError):
            session.turns("abc")
        with sentences.raises(ValueError):
            session.turns()
