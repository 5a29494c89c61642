"""A policy's promise holds after a worker's restart, a server's loss, a takeover and a change; `ps-lab check` sees
where it does not."""

from pathlib import Path

import pytest

from tests.policies.events import EVENTS, PROMISES, Job, Promise, Recount, play, recount

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
BEGIN, END = "<!-- what each policy promises, by event -->\n", "<!-- end of what is recounted -->\n"
KINDS = ("gap", "age", "misses", "workers")


def broken(promise: Promise, found: Recount) -> list[str]:
    """Return the kinds of promises that the recount finds broken."""
    wrong = []
    for kind in KINDS:
        limit, value = getattr(promise, kind), getattr(found, kind)
        if limit is not None and (value < limit if kind == "workers" else value > limit):
            wrong.append(f"{kind}: {value}, promised {limit}")
    return wrong


@pytest.fixture(scope="module")
def counted() -> dict[Promise, dict[str, tuple[Recount, Job]]]:
    found: dict[Promise, dict[str, tuple[Recount, Job]]] = {}
    for promise in PROMISES:
        jobs = {name: play(promise, event) for name, event in EVENTS.items()}
        found[promise] = {name: (recount(job), job) for name, job in jobs.items()}
    return found


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_every_promise_holds_after_every_event(
    promise: Promise, counted: dict[Promise, dict[str, tuple[Recount, Job]]]
) -> None:
    for event, (found, job) in counted[promise].items():
        assert job.coordinator.stopped is None and job.version > 5, f"{event}: {job.stopped}"
        assert not broken(promise, found), event
        assert job.verdict().ok, f"{event}: {job.verdict().violations[:2]}"


def test_the_page_has_what_was_counted(
    counted: dict[Promise, dict[str, tuple[Recount, Job]]], regenerate: bool
) -> None:
    table = ["| policy | promise | " + " | ".join(EVENTS) + " |\n", "|---|---|" + "---|" * len(EVENTS) + "\n"]
    for promise, events in counted.items():
        for kind in KINDS:
            if (limit := getattr(promise, kind)) is not None:
                row = " | ".join(str(getattr(found, kind)) for found, _ in events.values())
                sign = ">=" if kind == "workers" else "<="
                table.append(f"| `{promise.name}` | {kind} {sign} {limit} | {row} |\n")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page = head + BEGIN + "".join(table) + END + tail
    if regenerate:
        PAGE.write_text(page)
    assert PAGE.read_text() == page, (
        "pytest tests/policies/test_events.py -n 0 --regenerate writes the table anew"
    )
