"""Golden traces: readable texts of what happened, replayed through the real coordinator.

A file has a head ("policy: sync backup=1", "workers: 3", further job terms) and then acts, one per line. The indented
lines below an act are its consequences: numbered log entries, and "-> w0: ..." for messages to a worker. "#" begins a
comment. A replay reads only the head and the acts:

    w0 asks-ahead           for the ticket after the newest that it holds
    all begin               all join, w0 installs its values, all ask; what follows from that is not written
    w0 joins B              in this session; "joins-to-stay" of a worker that trains again later, "knocks" without one
    w0 commits              its ticket, and asks for more; "commits-its-last" does not ask
    w0 commits 7 loss=nan   this ticket, with this loss; also norm, samples, batch
    w0 commits ends         and "w0 abandons ends": the work unit has no more parts; the head then has
                            "work: units=3 epochs=2 batches=4"
    policy becomes async    or "policy becomes bounded max_staleness=2": an operator changes it while the job runs
    shards make 3           version 3; "kept=2 elements=100 of w": of its 100 elements two keep their old values, most
                            of them of w, also "whole"
    servers crash           all restart from the newest checkpoint; the log after it is void, and workers join again;
                            "servers crash w0 w1": these only are waited for
    checkpoint fails 3      that of version 3 could not be written
    operator saves          a checkpoint, outside of the usual interval
    servers restart 3       the same from a checkpoint of this moment, as three servers
    w0 done enough is known a reason ends the job for all; "w0 leaves killed": with this reason
    signal stops the job    as SIGTERM does
    job is how?             its phase and note, why it stopped, and the state of each worker
    copy takes over         another server, which has a copy of what was decided, decides from now on
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pslab.verify.harness import CoordinatorHarness, JoinError
from pslab.verify.invariants import InvariantViolation
from psserver.coordinator import Record, Send, inputs
from psserver.coordinator.status import explain, report
from psserver.coordinator.units import WorkTerms
from psserver.decisions.entries import Entry, Part
from psserver.policies import PolicyError
from pswire import protocol
from pswire.config.toml import read_toml

INDENT = "    "


def write_trace(head: list[str], acts: Iterable[str], harness: CoordinatorHarness) -> str:
    """Return the golden trace of these acts, up to a violation; `harness` is new, and made as `head` says."""
    text = [*head, ""]
    for line in acts:
        text.append(line)
        try:
            text += [INDENT + consequence for consequence in act(harness, line)]
        except InvariantViolation as breach:
            text.append(f"{INDENT}{breach}")
            break
    return "\n".join(text) + "\n"


def replay(path: Path) -> tuple[str, CoordinatorHarness]:
    """Return the trace as it replays now, and the harness that played it."""
    lines = path.read_text().splitlines()
    acts = [line for line in lines if not line.startswith(INDENT)]
    harness = _harness([line for line in acts if re.match(r"\w+: ", line)])
    text = []
    for line in acts:
        text.append(line)
        if line and line[0] != "#" and not re.match(r"\w+: ", line):
            text += [INDENT + consequence for consequence in act(harness, line)]
    return "\n".join(text) + "\n", harness


def _harness(head: list[str]) -> CoordinatorHarness:
    terms: dict[str, Any] = dict(line.split(": ", 1) for line in head)
    name, *knobs = terms.pop("policy").split()
    workers = int(terms.pop("workers"))
    units = _knobs(terms.pop("work", "").split())
    work = WorkTerms(**units) if units else None
    optimizer = _value(terms.pop("optimizer", '{name = "sgd"}'))
    settings = {key: _value(text) for key, text in terms.items()}
    return CoordinatorHarness(name, _knobs(knobs), workers, settings, now=0.0, work=work, optimizer=optimizer)


def _knobs(words: Iterable[str]) -> dict[str, Any]:
    return {key: _value(text) for key, text in (word.split("=") for word in words)}


def _value(text: str) -> Any:
    try:
        return read_toml(f"x = {text}")["x"]
    except ValueError:
        return text


def act(harness: CoordinatorHarness, line: str) -> Iterator[str]:
    """Play one act, and yield its consequences as texts."""
    if line == "all begin":
        harness.starts()
        return
    before = len(harness.outputs)
    yield from do(harness, line)
    for output in harness.outputs[before:]:
        if isinstance(output, Record | Send):
            yield _written(output)


def do(harness: CoordinatorHarness, line: str) -> Iterator[str]:
    """Play one act, and yield refusals and answers, but no outputs."""
    who, verb, *rest = line.split()
    match verb, rest:
        case "joins" | "joins-to-stay", [*session]:
            try:
                harness.joins(who, session[-1] if session else "A", stays=verb == "joins-to-stay")
            except JoinError as refusal:
                yield f"{'too late' if refusal.answer.kind == 'over' else 'refused'}: {refusal}"
        case "knocks", []:
            harness.gives(inputs.JoinAsked(who, who))
        case "ready", []:
            harness.ready(who)
        case "asks-ahead", []:
            newest = harness.coordinator.state.tickets.open_of(who)[-1].number
            harness.asks(who, protocol.Ready(newest))
        case "commits" | "commits-its-last", [*facts]:
            ticket = next((int(fact) for fact in facts if fact.isdigit()), None)
            about = {"unit_ends": "ends" in facts}
            numbers = _knobs(fact for fact in facts if "=" in fact)
            harness.commits(who, ticket, ready=verb == "commits", **about, **numbers)
        case "abandons", ["ends"]:
            harness.abandons(who, unit_ends=True)
        case "abandons", [*ticket]:
            harness.abandons(who, int(ticket[0]) if ticket else None)
        case "done", [*reason]:
            harness.done(who, " ".join(reason))
        case "leaves", [*reason]:
            harness.leaves(who, " ".join(reason) or "finished")
        case "stops", ["the", "job"]:
            harness.gives(inputs.Stopping("stopped by SIGTERM", False, "SIGTERM"))
        case "disconnects", []:
            harness.disconnects(who)
        case "reconnects", []:
            harness.connects(who, harness.member(who).session)
        case "seconds", ["pass"]:
            harness.passes(float(who))
        case "becomes", [name, *knobs]:
            try:
                harness.changes_policy(name, _knobs(knobs))
            except PolicyError as refusal:
                yield f"refused: {refusal}"
        case "make", [version, *facts]:
            numbers = _knobs(fact for fact in facts if "=" in fact)
            variable = facts[facts.index("of") + 1] if "of" in facts else ""
            harness.shards_make(int(version), variable=variable, whole="whole" in facts, **numbers)
        case "crash", [*expected]:
            harness.servers_crash(expected)
        case "fails", [version]:
            harness.gives(inputs.SaveFailed(int(version), "the disk is full"))
        case "saves", []:
            harness.gives(inputs.SaveAsked())
        case "restart", [servers]:
            harness.servers_restart(int(servers))
        case "takes", ["over"]:
            harness.copy_takes_over()
        case "waits", ["why?"]:
            yield explain(harness.coordinator, harness.member(who), harness.now)[0]
        case "is", ["how?"]:
            yield from _status(harness)
        case _:
            raise ValueError(f"expected an act of a golden trace, got {line!r}")


def _status(harness: CoordinatorHarness) -> Iterator[str]:
    found = report(harness.coordinator, harness.now)
    yield ": ".join(filter(None, (found.phase, found.note)))
    if harness.stopped:
        yield f"ended by {harness.stopped}" + (", and over" if harness.coordinator.state.over else "")
    for worker in found.workers:
        state = f"{worker.name} {worker.state} for {worker.seconds:.1f} s"
        yield f"{state}: {worker.waiting_for}" if worker.waiting_for else state


def _written(output: Record | Send) -> str:
    match output:
        case Record(index, t, entry):
            return f"{index:3} {t:g}s {_entry(entry)}"
        case Send(worker, _, notice):
            return f"-> {worker}: {_notice(notice)}"


def _entry(entry: Entry) -> str:
    fields = entry.to_json()
    parts = fields.pop("parts", None)
    kind, worker = fields.pop("kind"), fields.pop("worker", None)
    words = [kind, *([worker] if isinstance(worker, str) else [])]
    words += [
        f"{key}={value if not isinstance(value, float) else f'{value:g}'}" for key, value in fields.items()
    ]
    if parts is not None:
        words += ["of", " + ".join(_part(Part(**part)) for part in parts)]
    return " ".join(words)


def _part(part: Part) -> str:
    correction = f", compensation {part.compensation:g}" if part.compensation else ""
    return f"{part.weight:.3g} * {part.ticket} ({part.worker}, staleness {part.staleness}{correction})"


def _notice(notice: protocol.Event) -> str:
    match notice:
        case protocol.Grant(ticket, version, _, initialise, part):
            what = "" if part is None else f": epoch {part.epoch}, unit {part.unit}, part {part.part}"
            return f"grant of {ticket}" + (", initialise" if initialise else f" from version {version}{what}")
        case protocol.Cancel(ticket, reason):
            return f"cancel of {ticket}: {reason}"
        case protocol.Disposition(ticket, "applied", version, staleness, weight):
            return f"{ticket} is applied in version {version}, staleness {staleness}, weight {weight:.3g}"
        case protocol.Disposition(ticket, "dropped", _, staleness, _, reason):
            return f"{ticket} is dropped ({reason}), staleness {staleness}"
        case protocol.Disposition(ticket, fate):
            return f"{ticket} is {fate}"
        case protocol.Stop(reason, version, success, _, evaluate):
            return f"stop at version {version}: {reason}{'' if success else ', in failure'}" + (
                "; evaluate" if evaluate else ""
            )
        case protocol.Refusal(message, fatal):
            return f"{'fatal ' if fatal else ''}refusal: {message}"
