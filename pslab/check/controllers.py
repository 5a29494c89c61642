"""Checks of the decisions of a controller: each follows from its inputs by the rule that the log's first entry names.

Formulas are repeated here on purpose, as in `pslab.check.known`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pslab.check.log_check import LogCheck
from pslab.runs.fold import Fold
from pslab.runs.log import Line
from pswire.decisions import entries as e

# A knob moves if the wanted value is at least so far from the present one, or at a limit.
LEAST, SHARE = 0.6, 0.2
# The greatest noise scale that inputs state.
MOST_NOISE = 1e9


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

    def see(self, entry: Line, state: Fold) -> Iterator[str]:
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
        knob = "max_staleness" if self._adapt["name"] == "noise-bound" else "aggregate"
        others = {key for key in former.keys() | policy.keys() if former.get(key) != policy.get(key)} - {knob}
        if others:
            yield f"{at} changes {', '.join(sorted(others))}; it sets {knob}"
        wanted, low, high = self._wanted(change.inputs or {}, int(former.get("aggregate", 1)))
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
        rate = (
            1.0 if knob != "aggregate" else (policy[knob] / began) ** powers[self._adapt.get("rate", "keep")]
        )
        if not math.isclose(1.0 if change.rate is None else change.rate, rate, rel_tol=1e-9):
            yield f"{at} sets the rate to {change.rate} times the job's; expected {rate:.6g}"

    def _wanted(self, inputs: Mapping[str, Any], aggregate: int) -> tuple[float, int, int]:
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
        if adapt["name"] == "noise-scale":
            return scale, max(2, int(adapt.get("least", 1))), int(adapt.get("most", 0)) or workers
        return max(1.0, scale / aggregate) - 1, int(adapt.get("least", 0)), int(adapt.get("most", 64))
