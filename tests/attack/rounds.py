"""One round: honest workers train while others attack; then what must hold."""

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pslab.display.status import status_line, waiting_sentences
from pslab.runs.folder import Run
from pswire.model.plan import make_plan
from pswire.v1.coordinator_pb2 import StatusReply
from tests.attack import invariants
from tests.attack.doors import Refusal, WireDoor
from tests.attack.honest import Gate, Honest, problems, trainer
from tests.attack.lines import SocketStranger
from tests.attack.members import Liar
from tests.attack.scenarios import Scenario
from tests.attack.stages import AMONG_MEMBERS, Stage, inside
from tests.attack.strangers import Stranger, WireStranger
from tests.attack.target import Attacker, Tally, Target
from tests.patience import PATIENCE, at_most

# Seconds in which a round must end after its last message.
ENDING = at_most(30.0)
# The norm of a gradient that spoils a model: honest ones, and what liars draw, are far below.
LARGE = 1e3
# One round's model has a hundred bytes: what stays is not its arrays.
MEMORY = 256 * 2**20


@dataclass
class Result:
    """`faults`: sentences of what did not hold; none is what one hopes for. `waits`: of who waited in vain, or was
    given up; `stood_still`: seconds that a thread of this process was not woken up for, which explains such a thing."""

    tally: Tally
    seconds: float = 0.0
    stood_still: float = 0.0
    diverged: bool = False
    waits: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return self.waits + self.faults

    @property
    def judged(self) -> bool:
        """The machine gave this process the time that servers and workers give each other."""
        return self.stood_still < AMONG_MEMBERS / 3


def play(scenario: Scenario, messages: int) -> Result:
    """Attack with so many messages. Never raises for what the servers do."""
    result = Result(Tally(messages))
    before, began = invariants.Resources.now(), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        invariants.listening() as heard,
        invariants.standing_still() as still,
    ):
        out = Path(folder) / "run"
        result.waits += _staged(scenario, out, result)
        result.seconds, result.stood_still = time.monotonic() - began, still[0]
        result.waits += heard.deaths
        result.faults += heard.problems + result.tally.wrongs
        if not result.problems:
            _verify(scenario, out, result)
    # Who still waits holds what it waits with.
    (result.waits if result.waits else result.faults).extend(invariants.left_behind(before, MEMORY))
    return result


def _staged(scenario: Scenario, out: Path, result: Result) -> list[str]:
    # A function of its own: nothing holds the servers when it has returned.
    with inside(scenario, out) as stage:
        return _attack(scenario, stage, result)


def _verify(scenario: Scenario, out: Path, result: Result) -> None:
    """Add what the run folder proves."""
    result.faults += invariants.checked(out)
    if result.diverged:
        # Honest workers gave up.
        result.faults += invariants.spoilt_by(out, scenario.honest, LARGE)
    if scenario.company == "strangers":
        result.faults += invariants.replayed(out, trainer(scenario.batches, tables=scenario.tables))
    if not scenario.repeats:
        return
    lost = invariants.lost(out, scenario.honest)
    result.waits += lost
    # Updates without a worker that was given up are others.
    if not lost and (attacked := _sha256(out)) != (alone := _alone(scenario)):
        result.faults.append(f"the final weights are {attacked}, without the attack {alone}")


def _attack(scenario: Scenario, stage: Stage, result: Result) -> list[str]:
    tally = result.tally
    gate = Gate(scenario.batches)
    honest = _honest(scenario, stage, gate)
    model = trainer(1, tables=scenario.tables)
    plan = make_plan([spec for spec, _ in model.specs], scenario.servers, model.tables)
    names = [worker.worker for worker in honest]
    target = Target(stage.doors, stage.hosts, stage.lines, names, plan)
    wired = replace(target, doors=[WireDoor.to(host) for host in target.hosts])
    attackers = _attackers(scenario, target, wired, tally)
    threads = [threading.Thread(target=_run, args=(each, gate), daemon=True) for each in attackers]
    found = _kept_waiting(threads, attackers, tally)
    gate.move(1.0)
    found += problems(honest, ENDING, spoilt=scenario.spoils)
    for door in wired.doors:
        door.close()
    if found:
        return [*found, *_explained(target)]
    result.diverged = any(worker.diverged for worker in honest)
    # A job whose workers gave up waits for others; who is to blame for it, the log must say.
    return [] if result.diverged else stage.end()


def _explained(target: Target) -> list[str]:
    """What the servers say themselves about why somebody waits."""
    try:
        (reply,) = target.doors[0].call("/pswire.v1.Coordinator/Status", [b""], PATIENCE)
    except (Refusal, RuntimeError) as refusal:
        # The latter where the server's loop has ended.
        return [f"no status: {refusal}"]
    status = StatusReply.FromString(reply)
    return [status_line(status, 0.0), *waiting_sentences(status)]


def _honest(scenario: Scenario, stage: Stage, gate: Gate) -> list[Honest]:
    """All have joined: the job's model is theirs."""
    hosts, transport = ",".join(stage.hosts), scenario.transport
    workers = [
        Honest(hosts, index, scenario.batches, transport, gate, tables=scenario.tables)
        for index in range(scenario.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.joined.wait(ENDING)
    return workers


def _attackers(scenario: Scenario, target: Target, wired: Target, tally: Tally) -> list[Attacker]:
    """Some call the methods themselves, some over the wire (`wired`), and one speaks on sockets."""
    seed = scenario.seed
    attackers: list[Attacker] = [
        Stranger(target, tally, f"{seed}/stranger"),
        SocketStranger(wired, tally, f"{seed}/socket"),
    ]
    if scenario.company == "members":
        return [*attackers, *(Liar(target, tally, f"{seed}/liar {number}") for number in range(2))]
    return [*attackers, WireStranger(wired, tally, f"{seed}/wire")]


def _run(attacker: Attacker, gate: Gate) -> None:
    while not attacker.tally.enough:
        attacker.act()
        # The last batch waits until all attackers have ended: the servers would end with it.
        gate.move(0.99 * attacker.tally.share)
    attacker.close()


def _kept_waiting(
    threads: Sequence[threading.Thread], attackers: Sequence[Attacker], tally: Tally
) -> list[str]:
    """Run them until they have sent enough. One that waits for ever is kept by a server."""
    for thread in threads:
        thread.start()
    sent, since = -1, time.monotonic()
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(0.2)
        if tally.messages.total() != sent:
            sent, since = tally.messages.total(), time.monotonic()
        elif time.monotonic() - since > ENDING:
            kept = [type(a).__name__ for a, t in zip(attackers, threads, strict=True) if t.is_alive()]
            return [f"no message was taken for {ENDING:g} s: {', '.join(kept)} are kept waiting"]
    return []


def _sha256(out: Path) -> str | None:
    return Run(out).summary.weights_sha256


_fingerprints: dict[tuple[str, int, bool], str | None] = {}


def _alone(scenario: Scenario) -> str | None:
    """The fingerprint of the final weights of the same run without an attack."""
    key = scenario.policy, scenario.servers, scenario.tables
    if key not in _fingerprints:
        with tempfile.TemporaryDirectory() as folder:
            out, gate = Path(folder) / "run", Gate(scenario.batches)
            gate.move(1.0)
            with inside(scenario, out) as stage:
                found = problems(_honest(scenario, stage, gate), ENDING) + stage.end()
                assert not found, found
            _fingerprints[key] = _sha256(out)
    return _fingerprints[key]
