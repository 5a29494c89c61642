"""What some jobs have besides: planned changes of the policy, a controller, elements that are kept back, an operator.

A copy of the coordinator has to know all of it, and to decide the same.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from psserver.coordinator import Coordinator, Output, inputs
from psserver.coordinator.terms import Planned
from psserver.policies import Policy, PolicyError, build
from psserver.policies.controllers import Controller
from psserver.policies.succession import successors
from pswire import protocol
from pswire.records import to_plain
from tests.coordinator.settings import Setting

if TYPE_CHECKING:
    from tests.recovery.copies import Server

# One job in so many has each of these; and a policy whose controller needs no other knobs, with that.
ONE_IN = 4
CONTROLLERS: Mapping[str, Mapping[str, object]] = {
    "k-async": {"name": "adasync", "rate": "sqrt"},
    "k-sync": {"name": "adasync", "rate": "linear"},
    "fedbuff": {"name": "noise-scale", "rate": "sqrt"},
}
# What shards tell a controller.
SQUARES = (0.5, 1.0, 2.0, 0.125)


@dataclass(frozen=True)
class Extras:
    """`keeps`: shards keep elements back now and then. `operated`: somebody notes, removes workers, and changes the
    policy."""

    plan: tuple[Planned, ...] = ()
    adapt: Mapping[str, object] = field(default_factory=dict)
    keeps: bool = False
    operated: bool = False


NOTHING = Extras()


@cache
def _policy(name: str, knobs: str, workers: int, parts: int) -> Policy:
    return build(name, dict(json.loads(knobs)), workers, parts)


@cache
def _others(name: str, knobs: str, workers: int, parts: int) -> list[str]:
    """The policies that can take over from one."""
    return successors(_policy(name, knobs, workers, parts), workers, parts)


def others(policy: Policy, workers: int, parts: int) -> list[str]:
    return _others(policy.name, json.dumps(to_plain(policy.knobs)), workers, parts)


def extras_of(setting: Setting, parts: int, seed: int) -> Extras:
    dice = random.Random(f"extras {seed}")
    policy, plan = build(setting.policy, setting.knobs, setting.workers, parts), list[Planned]()
    able = others(policy, setting.workers, parts)
    if able and not dice.randrange(ONE_IN):
        where = {"versions": dice.randint(1, 4)} if dice.random() < 0.5 else {"percent": dice.uniform(5, 90)}
        plan.append(Planned(dice.choice(able), {}, **where))  # type: ignore[arg-type]
    controller = CONTROLLERS.get(setting.policy, {}) if dice.random() < 0.5 else {}
    try:
        if controller:
            Controller(controller, policy, setting.workers, parts)
    except PolicyError:
        controller = {}
    return Extras(tuple(plan), controller, not dice.randrange(ONE_IN), not dice.randrange(ONE_IN))


def intervene(server: "Server", extras: Extras) -> None:
    """Give the coordinator an input that no worker's message brings."""
    coordinator, pick = server.coordinator, server.cluster.choices.pick
    if coordinator is None or not coordinator.state.entries or coordinator.state.stopped is not None:
        return
    told = coordinator.state.kept_back.told + 1
    if (coordinator.measures or extras.keeps) and told <= coordinator.state.version and pick(2):
        square = SQUARES[pick(len(SQUARES))] if coordinator.measures else None
        kept = 1 if extras.keeps and told % 4 == 3 else 0
        fact = inputs.Executed(told, kept, 100_000, "w" if kept else "", square=square)
        if fact.told:
            # It goes to the other copy with the next input.
            server.give(fact)
        else:
            server.step(lambda: server.give(fact))
    elif extras.operated:
        server.step(lambda: _operate(server, coordinator))


def _operate(server: "Server", coordinator: Coordinator) -> list[Output]:
    pick, terms = server.cluster.choices.pick, coordinator.terms
    match pick(8):
        case 0 | 1:
            return server.give(inputs.NoteAdded("somebody was here"))
        case 2:
            member = coordinator.state.roster.present.get(f"w{pick(terms.workers)}")
            if member is None:
                return []
            leave = protocol.Leave("somebody said so")
            return server.give(inputs.Requested(member.worker, member.incarnation, leave))
        case 3:
            return server.give(inputs.SaveAsked())
        case _:
            able = others(coordinator.policy, terms.workers, terms.servers)
            if not able:
                return []
            return server.give(inputs.ChangeAsked(able[pick(len(able))], {}, "somebody"))
