"""The rules of the Trace Event Format that a viewer relies on, and a check of a file against them."""

import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

Event = dict[str, Any]

# Keys that every event of a phase must have, by the format's document.
REQUIRED = {
    "M": {"ph", "name", "pid", "args"},
    "X": {"ph", "name", "pid", "tid", "ts", "dur"},
    "i": {"ph", "name", "pid", "tid", "ts", "s"},
    "C": {"ph", "name", "pid", "ts", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
}


def events_of(file: Path) -> list[Event]:
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in document["otherData"].values())
    found: list[Event] = document["traceEvents"]
    return found


def check(events: list[Event]) -> None:
    """AssertionError names the first event that breaks a rule."""
    for event in events:
        assert event["ph"] in REQUIRED, event
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert all(isinstance(event[key], int) for key in ("pid", "tid") if key in event), event
        assert all(event[key] >= 0 for key in ("ts", "dur") if key in event), event
    check_names(events)
    check_nesting(events)
    check_flows(events)
    for event in events:
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(v, (int, float)) for v in event["args"].values()), event
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t"), event


def check_names(events: list[Event]) -> None:
    processes = [e["pid"] for e in events if e["name"] == "process_name"]
    threads = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    assert len(set(processes)) == len(processes) and len(set(threads)) == len(threads)
    for event in events:
        assert event["pid"] in processes, event
        assert event["ph"] == "M" or "tid" not in event or (event["pid"], event["tid"]) in threads, event


def begin(event: Event) -> Fraction:
    """Exact, in microseconds: sums of floats would find overlaps that are none."""
    return Fraction(str(event["ts"]))


def end(event: Event) -> Fraction:
    return begin(event) + Fraction(str(event["dur"]))


def slices(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """By thread, each before those that it holds."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    for lane in found.values():
        lane.sort(key=lambda e: (begin(e), -end(e)))
    return found


def check_nesting(events: list[Event]) -> None:
    """Complete events of a thread lie apart or within each other."""
    for lane in slices(events).values():
        stack: list[Event] = []
        for event in lane:
            while stack and end(stack[-1]) <= begin(event):
                stack.pop()
            assert not stack or end(event) <= end(stack[-1]), (stack[-1], event)
            stack.append(event)


def check_flows(events: list[Event]) -> None:
    """Each flow begins once and ends once, later, and both ends lie in a slice."""
    ends: dict[str, dict[tuple[str, int], Event]] = {"s": {}, "f": {}}
    for event in events:
        if event["ph"] in ends:
            key = event["cat"], event["id"]
            assert key not in ends[event["ph"]], event
            ends[event["ph"]][key] = event
    assert ends["s"].keys() == ends["f"].keys()
    lanes = slices(events)
    for key, source in ends["s"].items():
        assert begin(source) <= begin(ends["f"][key]), source
        for event in (source, ends["f"][key]):
            lane = lanes[event["pid"], event["tid"]]
            assert any(begin(one) <= begin(event) < end(one) for one in lane), event
