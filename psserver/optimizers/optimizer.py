"""An optimizer: a rule and a schedule as a pair of functions (init, update) on flat arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Final

import numpy as np

from psserver.fast import ALONE, SWEEP_EVERY, Backend, Variant
from psserver.optimizers import blocks
from psserver.optimizers.blocks import Array
from psserver.optimizers.clipping import Clip
from psserver.optimizers.reading import OptimizerError, unknown
from psserver.optimizers.rule import Rule, VariablePart, WholeRule
from psserver.optimizers.schedules import Schedule, schedule_config
from pswire.domains import LARGEST_SINGLE
from pswire.knobs import settings

# Knobs for the formulas of PyTorch and Optax, with the values that give Keras' formulas.
NOT_KERAS: Final[Mapping[str, object]] = {
    "rate_outside": False,
    "epsilon_outside": False,
    "epsilon_inside": False,
    "momentum_decay": 1.0,
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A rule bound to a schedule: turns version v of an arena into version v + 1. Holds no arrays and no counters.

    All that an optimizer remembers is the dict made by `init`; the version is an argument. A checkpoint is therefore
    that dict and nothing else. Updates are elementwise, so dividing the arena among servers does not change a bit.
    The exceptions are `WholeRule` and clipping by norms, for which no variable may be split.
    """

    name: str
    rule: Rule | WholeRule
    schedule: Schedule
    # Variables without weight decay: names, or patterns of names ("*/bias").
    exclude: tuple[str, ...] = ()
    # Elements of the arena without decay, as rising (start, stop); set by `bound`.
    undecayed: tuple[tuple[int, int], ...] = ()
    # The variables of the arena, for a `WholeRule` and for norms of variables. Empty: the arena is one vector.
    parts: tuple[VariablePart, ...] = ()
    # Clipping of the mean gradient before the rule.
    clip: Clip | None = None

    @property
    def config(self) -> dict[str, object]:
        """All settings, defaults included, JSON-able; `build` reads them back as an equal optimizer.

        Knobs in `NOT_KERAS` at their defaults are left out: older checkpoints and logs do not name them.
        """
        knobs = {knob: value for knob, value in settings(self.rule).items() if NOT_KERAS.get(knob) != value}
        made = {"name": self.name, "learning_rate": schedule_config(self.schedule), **knobs}
        if self.clip is not None:
            made[self.clip.knob] = self.clip.limit
        return {**made, "exclude_from_weight_decay": list(self.exclude)} if self.exclude else made

    def bound(
        self, known: Mapping[str, tuple[int, ...]], pieces: Sequence[tuple[str, int, int]]
    ) -> "Optimizer":
        """Return this optimizer for an arena whose trainable elements are `pieces` (name, start, stop).

        `known`: the shapes of all trainable variables, by name. Raises OptimizerError for an excluded name that is not
        among them, and for a piece of a variable if the rule needs the whole variable.
        """
        for pattern in self.exclude:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise OptimizerError(unknown("variable in exclude_from_weight_decay:", pattern, known))
        undecayed = [
            (start, stop)
            for name, start, stop in pieces
            if any(fnmatchcase(name, pattern) for pattern in self.exclude)
        ]
        parts: tuple[VariablePart, ...] = ()
        if self.whole:
            self.check_whole([name for name, start, stop in pieces if stop - start < math.prod(known[name])])
            parts = tuple(VariablePart(name, start, stop, known[name]) for name, start, stop in pieces)
        return replace(
            self, undecayed=tuple(sorted(undecayed)) if self.rule.weight_decay else (), parts=parts
        )

    @property
    def whole(self) -> bool:
        """True if each variable must lie whole on one server."""
        return isinstance(self.rule, WholeRule) or (self.clip is not None and self.clip.knob == "clipnorm")

    def check_whole(self, split: Sequence[str], servers: int = 1) -> None:
        """Raise OptimizerError if a variable in `split` (divided among servers) must lie whole on one server."""
        if self.clip is not None and self.clip.knob == "global_clipnorm" and servers > 1:
            raise OptimizerError(
                f"global_clipnorm of optimizer {self.name!r} limits the norm of the whole gradient, and each of "
                f"{servers} servers has a part of it; expected one server, clipvalue, or clipping by the workers"
            )
        if split and self.whole:
            more = f" and {len(split) - 1} more" if len(split) > 1 else ""
            lies = f"{split[0]!r}{more} would lie on several servers in parts; expected one server, or"
            if isinstance(self.rule, WholeRule):
                raise OptimizerError(
                    f"optimizer {self.name!r} {self.rule.needs}, and {lies} "
                    "an optimizer that needs no whole variables, such as adamw"
                )
            raise OptimizerError(
                f"clipnorm of optimizer {self.name!r} limits the norm of each whole variable, and {lies} "
                "clipvalue, or clipping by the workers"
            )

    def check_local(self, rule: str) -> None:
        """Raise OptimizerError if the optimizer clips and workers contribute steps of the local rule `rule`."""
        if self.clip is not None and rule != "gradient":
            raise OptimizerError(
                f"{self.clip.knob} of optimizer {self.name!r} clips gradients, and under the policy's local rule "
                f"{rule!r} workers contribute what several steps have changed; expected no clipping here (a job's "
                "own is in its gradients()), or a policy without a local rule"
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the float32 slots, each as large as the arena."""
        return self.rule.slots

    def init(self, size: int) -> dict[str, Array]:
        """Return new slots for an arena of `size` elements: name -> float32 array of shape (size,)."""
        if size < 0:
            raise OptimizerError(f"an arena has 0 or more elements, got {size}")
        first = self.rule.initial
        starts = first if isinstance(first, Mapping) else dict.fromkeys(self.slots, first)
        return {
            slot: np.full(size, starts[slot], np.float32) if starts.get(slot) else np.zeros(size, np.float32)
            for slot in self.slots
        }

    def last_step(self, state: Mapping[str, Array]) -> Array | None:
        """Return the slot that holds the last step (learning rate included), or None."""
        return None if self.rule.step_slot is None else state[self.rule.step_slot]

    def rate(self, version: int, lr_scale: float = 1.0) -> np.float32:
        """Return the learning rate of the update from `version`: ``schedule(version) * lr_scale``, rounded once.

        Raises OptimizerError unless version >= 0, lr_scale >= 0 and the product is finite in float32.
        """
        if version < 0:
            raise OptimizerError(f"version counts from 0, got {version}")
        scheduled = float(self.schedule.rate(version))
        rate = scheduled * lr_scale
        if not (math.isfinite(lr_scale) and lr_scale >= 0 and rate <= LARGEST_SINGLE):
            raise OptimizerError(
                "lr_scale must be >= 0, finite, and leave the learning rate finite, "
                f"got {lr_scale} at version {version}, where the schedule says {scheduled:g}"
            )
        return np.float32(rate)

    def update(
        self,
        x: Array,
        gradient: Array,
        out: Array,
        state: Mapping[str, Array],
        *,
        version: int,
        lr_scale: float,
        factor: float = 1.0,
        scale: float = 1.0,
        backend: Backend = ALONE,
    ) -> bool:
        """Write version ``version + 1`` into `out`, from version `version` in `x`, in one pass over memory.

        The gradient is ``gradient * factor * scale``, multiplied in this order; both factors are rounded to float32.

        All arrays are float32 of shape (size,), and none overlaps another. `x` is only read; `state` (from `init`)
        advances in place; `gradient` is scratch, with undefined contents afterwards.

        The rate is ``schedule(version) * lr_scale``; a step count in the formula (Adam's t) is ``version + 1``.
        An element is kept back if its new weight or a new slot of its would not be finite: its slots stay as they were,
        and `out` has NaN in its place, as a mark. A `WholeRule`, and clipping by a norm that is not finite, keep back
        whole variables. Returns False if any element was kept back; finite inputs of ordinary size are not. Raises
        OptimizerError for arrays that do not fit, with nothing changed. Thread-safe on disjoint arrays.
        """
        self._check(x, gradient, out, state)
        return self.advance(
            *(x, gradient, out, state),
            version=version,
            lr_scale=lr_scale,
            factor=factor,
            scale=scale,
            backend=backend,
        )

    def advance(
        self,
        x: Array,
        gradient: Array,
        out: Array,
        state: Mapping[str, Array],
        *,
        version: int,
        lr_scale: float,
        factor: float = 1.0,
        scale: float = 1.0,
        backend: Backend = ALONE,
    ) -> bool:
        """Update as `update` does, without checking the arrays: the check takes as long as a small update."""
        rate = self.rate(version, lr_scale)
        factors = (np.float32(factor), np.float32(scale))
        if self.clip is not None:
            self.clip.run(gradient, self._variables(x.size), [each for each in factors if each != 1.0])
            factors = (np.float32(1), np.float32(1))
        if isinstance(self.rule, WholeRule):
            return self._run_whole(self.rule, rate, version, factors, x, gradient, out, state)
        if not self.undecayed:
            return self._run(self.rule, rate, version, factors, x, gradient, out, state, backend)
        good = True
        for start, stop, rule in self._ranges(self.rule, x.size):
            part = slice(start, stop)
            slots = {name: slot[part] for name, slot in state.items()}
            pieces = (x[part], gradient[part], out[part])
            good = self._run(rule, rate, version, factors, *pieces, slots, backend) and good
        return good

    def _run_whole(
        self,
        rule: WholeRule,
        rate: np.float32,
        version: int,
        factors: tuple[np.float32, np.float32],
        x: Array,
        gradient: Array,
        out: Array,
        state: Mapping[str, Array],
    ) -> bool:
        """Update variable by variable. Return False if one is kept back, with NaN in `out`."""
        good, step = True, version + 1
        with np.errstate(all="ignore"):
            for part in self._variables(x.size):
                here = slice(part.start, part.stop)
                slots = {name: slot[here] for name, slot in state.items()}
                before = {name: slot.copy() for name, slot in slots.items()}
                g = gradient[here]
                for factor in factors:
                    if factor != 1.0:
                        np.multiply(g, factor, out=g)
                stays = not rule.weight_decay or (part.start, part.stop) in self.undecayed
                decay = None if stays else np.float32(rule.weight_decay)
                rule.step_whole(x[here], g, out[here], slots, part.shape, rate=rate, step=step, decay=decay)
                if not all(map(blocks.finite, (out[here], *slots.values()))):
                    good, out[here] = False, np.nan
                    for name, slot in slots.items():
                        slot[...] = before[name]
                if step % SWEEP_EVERY == 0:
                    for slot in slots.values():
                        blocks.clear_subnormals(slot, scratch=g)
        return good

    def _variables(self, size: int) -> tuple[VariablePart, ...]:
        return self.parts or ((VariablePart("", 0, size, (size,)),) if size else ())

    def _run(
        self,
        rule: Rule,
        rate: np.float32,
        version: int,
        factors: tuple[np.float32, np.float32],
        x: Array,
        gradient: Array,
        out: Array,
        state: Mapping[str, Array],
        backend: Backend,
    ) -> bool:
        """Update elements that share one rule. Return False if one is kept back, with NaN in `out`."""
        step, sweep = version + 1, (version + 1) % SWEEP_EVERY == 0
        fused = rule.fused(rate, step)
        arrays = (x, gradient, out, *(state[name] for name in rule.slots))
        tiny = blocks.TINY if sweep else np.float32(0)
        return backend.run(fused.loop, arrays, (*fused.scalars, *factors, tiny))

    def _ranges(self, rule: Rule, size: int) -> list[tuple[int, int, Rule]]:
        """Divide the arena into ranges: excluded elements get the rule without decay, all others the rule itself."""
        without = _without_decay(rule)
        ranges: list[tuple[int, int, Rule]] = []
        done = 0
        for start, stop in self.undecayed:
            ranges += [(done, start, rule), (start, stop, without)]
            done = stop
        return [each for each in [*ranges, (done, size, rule)] if each[0] < each[1]]

    def variants(self) -> list[Variant]:
        """Return the loops that an update runs, to be compiled."""
        if isinstance(self.rule, WholeRule):
            return []
        rules = [self.rule, _without_decay(self.rule)] if self.undecayed else [self.rule]
        loops = [rule.fused(np.float32(0), 1).loop for rule in rules]
        return [(loop, loop.letters) for loop in loops]

    def _check(self, x: Array, gradient: Array, out: Array, state: Mapping[str, Array]) -> None:
        if set(state) != set(self.slots):
            raise OptimizerError(
                f"optimizer {self.name!r} keeps the slots {list(self.slots)}, got {list(state)}; "
                "use what init() returned"
            )
        arrays = {"x": x, "gradient": gradient, "out": out, **state}
        for name, array in arrays.items():
            if array.dtype != np.float32 or array.shape != (x.size,):
                raise OptimizerError(
                    f"{name} must be float32 of shape ({x.size},), got {array.dtype} of shape {array.shape}"
                )
            if name != "x" and not array.flags.writeable:
                raise OptimizerError(f"{name} must be writable, got a read-only array; pass a copy")
        for (name, array), (other, another) in combinations(arrays.items(), 2):
            if np.may_share_memory(array, another):
                raise OptimizerError(f"{name} and {other} share memory; every array needs its own")


def _without_decay(rule: Rule) -> Rule:
    return replace(rule, weight_decay=0.0)  # type: ignore[type-var]
