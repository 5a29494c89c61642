"""Variables that only some workers reach are named by the worker, and at the end by the servers and by the summary."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pswire.model.plan import VariableSpec, make_plan
from pswire.unreached import unreached
from psworker.data.payloads import Pieces, array_of
from psworker.data.reach import FEWEST, WATCHED, Reach
from tests.links import connect_link
from tests.promises import promise
from tests.sentences import Recorder
from tests.service.serving import granted, serving

NAMES = ("body", "a", "b")
VARIABLES = [(VariableSpec(name, (3,)), np.ones(3, np.float32)) for name in NAMES]
PLAN = make_plan([spec for spec, _ in VARIABLES], 2)


def said_by(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    found = [each for each in caplog.records if getattr(each, "event", "") == "unreached"]
    return [record.getMessage() for record in found if record.name == logger]


@promise(
    "Variables that some or all workers do not reach are named, by the worker and in a run's last lines."
)
@pytest.mark.parametrize("batches", [WATCHED + 3, FEWEST])
def test_the_worker_the_server_and_the_summary_name_them(
    batches: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, sentences: Recorder
) -> None:
    caplog.set_level(logging.WARNING)

    def train(index: int) -> None:
        with connect_link(cluster.hosts, VARIABLES, name=f"w{index}", task_index=index) as session:
            for batch in range(batches):
                grant = granted(session)
                session.pull(grant)
                # Nobody reaches "b"; and "a" is the head of worker 0 alone.
                reached = NAMES[: 2 - index]
                session.push(grant, {name: np.full(3, 0.125, np.float32) for name in reached})
                session.commit(grant, samples=1, batch=batch)
            session.done()

    with serving(2, workers=2, policy="sync", out=tmp_path) as cluster, ThreadPoolExecutor(2) as pool:
        list(pool.map(train, (0, 1)))
    said = said_by(caplog, "ps-worker")
    # Where contributions followed, once more at the end.
    assert len(said) == (4 if batches > WATCHED else 2)
    sentences.check(*sorted(set(said)))
    (last,) = said_by(caplog, "ps-server")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert last == f"not reached by all: {summary['unreached']}"
    sentences.check(last)


def test_nobody_is_named_who_reaches_all_in_time() -> None:
    reach = Reach(PLAN)
    for number in range(WATCHED):
        reached = "a" if number % 2 else "b"
        reach.watched(PLAN.scatter_by_name({"body": np.ones(3), reached: np.ones(3)}))
        assert reach.counts() == []
    assert reach.numbers == [] and not reach.earlier and reach.counts(ends=True) == []


def test_too_few_contributions_say_nothing() -> None:
    reach = Reach(PLAN)
    for _ in range(FEWEST - 1):
        reach.watched(PLAN.scatter_by_name({}))
        reach.counts()
    assert reach.counts(ends=True) == []


def test_groups_that_take_turns_are_awaited() -> None:
    reach = Reach(PLAN, turns=3)
    for number in range(3 * WATCHED):
        reach.watched(PLAN.scatter_by_name({NAMES[number % 3]: np.ones(3)} if number > WATCHED else {}))
        assert reach.counts() == []
    assert reach.numbers == []


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_payloads_in_pieces_and_those_that_are_made_later_are_looked_at_when_they_are_sent(
    dtype: type[np.generic],
) -> None:
    plan = make_plan([spec for spec, _ in VARIABLES], 1)
    flat = plan.scatter_by_name({"a": np.array([0.0, 0.0, -1.0])})[0].astype(dtype)
    made = (lambda: flat, Pieces([lambda: flat[:5], lambda: flat[5:]], 9, dtype), flat)
    for payload in made:
        reach = Reach(plan)
        (watched,) = reach.watched([payload])
        # Sent twice, as after a lost answer.
        for _ in range(2):
            assert np.array_equal(array_of(watched), flat)
        assert [NAMES[number] for number in reach.numbers] == ["body", "b"]


def test_the_end_names_groups_of_workers(sentences: Recorder) -> None:
    many = [f"v{number}" for number in range(20)]
    workers = [f"w{number}" for number in range(6)]
    assert unreached(many, {}, workers) == ""
    sentences.check(
        unreached(many, {"w1": {3}}, workers),
        unreached(many, {worker: {3, *range(10, 20)} for worker in workers}, workers),
        unreached(many, {worker: set(range(number)) for number, worker in enumerate(workers)}, workers),
    )
