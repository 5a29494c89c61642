"""Checks of changes of the policy: when they take effect and have settled; each decision of a controller follows from
its inputs by the rule that the log's first entry names.

Formulas are repeated here on purpose, as in `pslab.check.known`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pslab.check.log_check import LogCheck
from pslab.runs.fold import COMMITTED, OPEN, LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e

# A knob moves if the wanted value is at least so far from the present one, or at a limit.
LEAST, SHARE = 0.6, 0.2
# The greatest noise scale that inputs state.
MOST_NOISE = 1e9


class ChangesCheck(LogCheck):
    """A policy takes over while no contribution waits, and has settled once no ticket from before it is left."""

    name = "changes of the policy"

    def __init__(self) -> None:
        # Tickets without a fate from before the newest change; None: it has settled, or there was none.
        self._overlap: set[int] | None = None
        # The last of them was gone at the newest update: the end of its step must settle the policy.
        self._due = False

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Policy() as change:
                yield from self._changed(change, state)
                self._due = False
                self._overlap = {ticket.number for ticket in state.reading() if ticket.state == OPEN}
            case e.Settled(version):
                if self._overlap is None:
                    yield "the policy settles, and no change of it is under way"
                elif left := sorted(self._overlap & state.held.keys()):
                    yield f"the policy settles while ticket {left[0]} is left from before its change"
                if version != state.versions:
                    yield f"the policy settles at version {version}, but {state.versions} is current"
                self._overlap, self._due = None, False
            case e.Apply(version) if self._overlap is not None and not self._overlap & state.held.keys():
                if not self._due:
                    self._due = True
                    return
                yield f"version {version} is made before the policy settles, but no ticket is left from before it"

    def _changed(self, change: e.Policy, state: LogState) -> Iterator[str]:
        to = change.policy.get("name")
        if state.version is None or state.stop is not None:
            yield f"policy {to} takes over while no policy decides"
        if change.version != state.versions:
            yield f"policy {to} takes over at version {change.version}, but {state.versions} is current"
        if dict(change.former) != dict(state.policy):
            yield f"policy {to} takes over from {dict(change.former)}, but {dict(state.policy)} decides"
        for ticket in state.reading():
            if ticket.state == COMMITTED:
                yield f"policy {to} takes over while ticket {ticket.number} of {ticket.worker} waits for an update"


class Controllers(LogCheck):
    """A controller changes one knob, as its rule says, at most once in its number of updates, and never after a person
    has changed the policy."""

    name = "controller"

    def __init__(self) -> None:
        self._adapt: Mapping[str, Any] = {}
        self._policy: Mapping[str, Any] = {}
        self._workers = 1
        # The version of its newest decision, and who has changed the policy besides.
        self._decided = 0
        self._person = ""

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Job() as job:
                self._adapt, self._policy, self._workers = job.adapt or {}, job.policy, job.workers
            case e.Policy() as change if change.inputs is None:
                self._person = change.by
            case e.Policy() as change:
                yield from self._decision(change)
                self._decided = change.version

    def _decision(self, change: e.Policy) -> Iterator[str]:
        adapt = self._adapt
        if change.by != f"controller {adapt.get('name')}":
            yield f"{change.by} changes the policy; the job's controller is {adapt.get('name', 'none')}"
            return
        if self._person:
            yield f"{change.by} changes the policy after {self._person} has"
        if (passed := change.version - self._decided) < int(adapt.get("every", 20)):
            yield f"{change.by} changes the policy {passed} updates after its last decision"
        try:
            yield from self._follows(change)
        except (ValueError, TypeError, ArithmeticError, KeyError, AttributeError) as error:
            yield f"version {change.version}: {change.by} gives inputs that cannot be read: {error!r}"

    def _follows(self, change: e.Policy) -> Iterator[str]:
        former, policy, at = change.former, change.policy, f"version {change.version}: {change.by}"
        knob = "aggregate"
        others = {key for key in former.keys() | policy.keys() if former.get(key) != policy.get(key)} - {knob}
        if others:
            yield f"{at} changes {', '.join(sorted(others))}; it sets {knob}"
        wanted, low, high = self._wanted(change.inputs or {})
        if not math.isclose(wanted, float((change.inputs or {})["wanted"]), rel_tol=1e-9, abs_tol=1e-9):
            yield f"{at} wants {(change.inputs or {})['wanted']}; its inputs say {wanted:.6g}"
        value, present = min(max(wanted, low), high), int(former[knob])
        if low < value < high and abs(value - present) < max(LEAST, SHARE * present):
            yield f"{at} moves {knob} from {present}, which is near {value:.6g}"
        expected = math.floor(value + 0.5)
        if policy[knob] != expected:
            yield f"{at} sets {knob} to {policy[knob]}; expected {expected}"
        powers = {"keep": 0.0, "sqrt": 0.5, "linear": 1.0}
        began = int(self._policy[knob])
        rate = (policy[knob] / began) ** powers[self._adapt.get("rate", "keep")]
        if not math.isclose(1.0 if change.rate is None else change.rate, rate, rel_tol=1e-9):
            yield f"{at} sets the rate to {change.rate} times the job's; expected {rate:.6g}"

    def _wanted(self, inputs: Mapping[str, Any]) -> tuple[float, int, int]:
        """Return the value that the inputs lead to, and the limits of the knob."""
        adapt, workers = self._adapt, self._workers
        if adapt["name"] == "adasync":
            began = int(self._policy["aggregate"])
            above, now = inputs["first"] - adapt.get("floor", 0.0), inputs["loss"] - adapt.get("floor", 0.0)
            wanted = float(workers)
            if now > 0 and above > 0 and began < workers:
                # The root of K^2 + right K - right P, in the form without cancellation.
                right = began**2 / (workers - began) * above / now
                wanted = right * workers / (right / 2 + math.sqrt(right * right / 4 + right * workers))
            return wanted, int(adapt.get("least", 1)), int(adapt.get("most", 0)) or workers
        variance, square = inputs["variance"], inputs["square"]
        scale = MOST_NOISE if square <= 0 else min(max(variance, 0.0) / square, MOST_NOISE)
        return scale, max(2, int(adapt.get("least", 1))), int(adapt.get("most", 0)) or workers
