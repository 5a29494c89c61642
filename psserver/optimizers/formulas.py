"""One formula, two readings: a loop to compile, and bounds on magnitudes.

A rule's `step` runs once, on `Value`s instead of numbers, and leaves a graph of float32 operations. The loop carries
them out, each rounded on its own (the compiler contracts nothing). The bounds follow from the facts in
`psserver.optimizers.magnitudes`.

    def step(self, x, g, s):
        mean = mix(s["momentum"], g, s["gain"])
        return {"momentum": mean, "x": x - mean * s["rate"]}

Write a product of three in the order of rounding: ``a * b * c`` is ``(a * b) * c``.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from psserver.fast import LARGEST, Loop
from psserver.optimizers.magnitudes import LEAST, SMALLEST, Bounds, over

Scalars = Mapping[str, np.float32]


class Condition(NamedTuple):
    """A comparison, as the condition of `pick`."""

    left: "Value"
    op: str
    right: "Value"


class Value:
    """The result of one operation, or (op "array" or "scalar") an input.

    `positive`: never below zero; true for scalars, and for slots that the rule declares so. `within`: two values
    between which the result lies. `condition`: of a pick that compares two of the rule's scalars.
    """

    __slots__ = ("op", "args", "name", "positive", "within", "condition")

    def __init__(
        self, op: str, *args: "Value", name: str = "", positive: bool = False, within: "Sequence[Value]" = ()
    ) -> None:
        self.op, self.args, self.name, self.positive, self.within = op, args, name, positive, within
        self.condition: Condition | None = None

    def __add__(self, other: "Value") -> "Value":
        return Value("+", self, other, positive=self.positive and other.positive)

    def __sub__(self, other: "Value") -> "Value":
        return Value("-", self, other)

    def __mul__(self, other: "Value") -> "Value":
        return Value("*", self, other, positive=self is other or (self.positive and other.positive))

    def __truediv__(self, other: "Value") -> "Value":
        return Value("/", self, other, positive=self.positive and other.positive)

    def __neg__(self) -> "Value":
        return Value("neg", self)

    def __abs__(self) -> "Value":
        return Value("abs", self, positive=True)

    def __gt__(self, other: "Value") -> Condition:
        return Condition(self, ">", other)

    def __le__(self, other: "Value") -> Condition:
        return Condition(self, "<=", other)


ZERO: Final = Value("scalar", name="zero", positive=True)


def sqrt(value: Value) -> Value:
    """Return the square root."""
    return Value("sqrt", value, positive=True)


def root(value: Value, epsilon: Value, *, outside: bool) -> Value:
    """Return the square root with an epsilon, added under the root or, with `outside`, to it."""
    return sqrt(value) + epsilon if outside else sqrt(value + epsilon)


def sign(value: Value) -> Value:
    """Return 1, 0 or -1; NaN for NaN."""
    return Value("sign", value)


def maximum(left: Value, right: Value) -> Value:
    """Return the larger value; NaN if either is NaN."""
    return Value("max", left, right, positive=left.positive or right.positive)


def mix(mean: Value, new: Value, gain: Value) -> Value:
    """Return ``mean + (new - mean) * gain`` with a gain of at most 1: a running mean, which lies between the two."""
    moved = (new - mean) * gain
    return Value("+", mean, moved, positive=mean.positive and new.positive, within=(mean, new))


def pick(condition: Condition, then: Value, other: Value) -> Value:
    """Return `then` where the condition holds, else `other`.

    A condition on two of the rule's scalars costs nothing: only one side is computed.
    """
    left, op, right = condition
    picked = Value(op, left, right, then, other, positive=then.positive and other.positive)
    if left.op == right.op == "scalar":
        picked.condition = condition
    return picked


class Operation(NamedTuple):
    """One operation as source: the lines of a loop, and the bound on its magnitude."""

    loop: str
    bound: str


OPERATIONS: Final[Mapping[str, Operation]] = {
    "+": Operation("{0} + {1}", "{0} + {1}"),
    "-": Operation("{0} - {1}", "{0} + {1}"),
    "*": Operation("{0} * {1}", "{0} * {1}"),
    # {least} is the least magnitude of the divisor.
    "/": Operation("{0} / {1}", "over({0}, {least})"),
    "neg": Operation("-{0}", "{0}"),
    "abs": Operation("abs({0})", "{0}"),
    "sqrt": Operation("np.sqrt({0})", "sqrt({0})"),
    "max": Operation("np.maximum({0}, {1})", "max({0}, {1})"),
    # Nested conditional expressions would make the compiler branch instead of select.
    "sign": Operation(
        "one if {0} > zero else {0}; {out} = -one if {0} < zero else {out}; {out} = zero if {0} == zero else {out}",
        "1.0",
    ),
    ">": Operation("{2} if {0} > {1} else {3}", "max({2}, {3})"),
    "<=": Operation("{2} if {0} <= {1} else {3}", "max({2}, {3})"),
}


class Formula:
    """The computation of a rule's `step`. `x` and `g` are the weights after decay, and the gradient."""

    def __init__(
        self,
        name: str,
        slots: Sequence[str],
        scalars: Iterable[str],
        step: Callable[[Value, Value, Mapping[str, Value]], Mapping[str, Value]],
        *,
        decays: bool,
        positive: Sequence[str] = (),
    ) -> None:
        """`positive`: slots that are never below zero."""
        self.name, self.slots = name, tuple(slots)
        self._x, self._g = Value("array", name="x"), Value("array", name="g")
        own = {slot: Value("array", name=slot, positive=slot in positive) for slot in slots}
        known = {each: Value("scalar", name=each, positive=True) for each in scalars}
        self._start = self._x - self._x * known["decay"] * known["rate"] if decays else self._x
        self.results = step(self._start, self._g, {**known, **own, "x": self._x})
        if set(self.results) != {"x", *slots}:
            raise TypeError(f"expected x and {self.slots} from the step of {name}, got {tuple(self.results)}")
        self._values, self._ends = self._graph({})
        self.scalars = tuple(each for each, value in known.items() if value in self._values)
        self._conditions = tuple(
            dict.fromkeys(value.condition for value in self._values if value.condition is not None)
        )

    def _graph(
        self, answers: Mapping[Condition | None, bool]
    ) -> tuple[dict[Value, tuple[Value, ...]], dict[str, Value]]:
        """Return all values, each behind its operands, with these, and the results by name.

        Of a pick whose condition has an answer, only the side that it picks is visited.
        """
        operands: dict[Value, tuple[Value, ...]] = {}

        def real(value: Value) -> Value:
            while value.condition in answers:
                value = value.args[2 if answers[value.condition] else 3]
            return value

        def visit(value: Value) -> Value:
            value = real(value)
            if value not in operands:
                args = tuple(map(visit, value.args))
                operands[value] = args
            return value

        found = {name: visit(value) for name, value in self.results.items()}
        return operands, found

    # Compiled

    @cached_property
    def loop(self) -> Loop:
        """The update as a loop that reads and writes each element once; see `loop_by`."""
        return self.loop_by(())

    def loop_by(self, spread: Sequence[str]) -> Loop:
        """Return the update as a loop that reads and writes each element once.

        Its arguments are x, g, out, the slots, the scalars, then

        factor, scale   the gradient is ``g * factor * scale``
        tiny            slots closer to zero than this are cleared; 0 clears none

        An element whose new weight or a new slot is not finite keeps its slots, and has NaN in `out` as a mark; the
        loop then returns False. So the check costs no pass over memory. `spread`: scalars, or "tiny", of which each
        element has its own, in an array; none that a condition compares.
        """
        head = ["x", "g", "out", *self.slots, *self.scalars, "factor", "scale", "tiny"]
        lines = [
            "zero, one, nan, good = np.float32(0), np.float32(1), np.float32(np.nan), True",
            *self._branches({}, self._conditions, spread),
            "return good",
        ]
        letters = "rrw" + "w" * len(self.slots)
        letters += "".join("r" if name in spread else "f" for name in head[len(letters) :])
        return _loop(self.name, letters, ", ".join(head), tuple(lines))

    def _branches(
        self, answers: Mapping[Condition | None, bool], asked: Sequence[Condition], spread: Sequence[str]
    ) -> list[str]:
        """Return one loop for each combination of answers to `asked`: a choice inside the loop compiles poorly."""
        if asked:
            (left, op, right), *rest = asked
            yes, no = (
                self._branches({**answers, asked[0]: answer}, rest, spread) for answer in (True, False)
            )
            return [f"if {left.name} {op} {right.name}:", *_indented(yes), "else:", *_indented(no)]
        operands, found = self._graph(answers)
        names = {
            value: value.name if value.op == "scalar" else f"v{place}" for place, value in enumerate(operands)
        }
        names |= {value: f"{name}[i]" for value, name in names.items() if name in spread}
        tiny, lines = "tiny[i]" if "tiny" in spread else "tiny", []
        for value, args in operands.items():
            if args:
                source = OPERATIONS[value.op].loop.format(*(names[arg] for arg in args), out=names[value])
                lines.append(f"{names[value]} = {source}")
            elif value.op == "array":
                more = " * factor * scale" if value is self._g else ""
                lines.append(f"{names[value]} = {value.name}[i]{more}")
        results = [names[found[name]] for name in ("x", *self.slots)]
        lines += [
            "fine = " + " & ".join(f"(abs({new}) <= LARGEST)" for new in dict.fromkeys(results)),
            "good = good & fine",
            f"out[i] = {results[0]} if fine else nan",
        ]
        for slot, new in zip(self.slots, results[1:], strict=True):
            # One conditional expression after the other: nested ones would branch.
            lines += [
                f"new = zero if abs({new}) < {tiny} else {new}",
                f"{slot}[i] = new if fine else {slot}[i]",
            ]
        return ["for i in range(x.size):", *_indented(lines)]

    # Magnitudes

    def bounds(self, scalars: Scalars, g: float, b: Mapping[str, float]) -> Bounds:
        """Return bounds on weights and slots after the update, and the largest intermediate magnitude."""
        return self._bounds(g, b, scalars)

    @cached_property
    def _bounds(self) -> Callable[[float, Mapping[str, float], Scalars], Bounds]:
        names: dict[Value, str] = {}
        lines = []
        for place, value in enumerate(self._values):
            names[value] = f"v{place}"
            if value.args:
                source = self._bound(value, names)
            elif value.op == "array":
                source = "g" if value is self._g else f"b[{value.name!r}]"
            else:
                source = "0.0" if value is ZERO else f"float(k[{value.name!r}])"
            lines.append(f"{names[value]} = {source}")
        found = ", ".join(f"{name!r}: {names[value]}" for name, value in self._ends.items())
        peak = ", ".join(names[value] for value in self._values if value.args)
        made = {"over": over, "sqrt": math.sqrt, "root": _root, "SMALLEST": SMALLEST, "LEAST": LEAST}
        return _made("bounds(g, b, k)", [*lines, f"return {{{found}}}, max(g, {peak})"], made)

    def _bound(self, value: Value, names: Mapping[Value, str]) -> str:
        """Return the source of a bound on the magnitude of `value`."""
        if value is self._start:
            # The larger of with and without decay: some variables may be excluded from it.
            return f"{names[self._x]} * max(1.0, abs(1.0 - float(k['decay']) * float(k['rate'])))"
        if value.within:
            return f"max({', '.join(names[each] for each in value.within)})"
        operands = [names[arg] for arg in value.args]
        if value.condition is not None:
            return OPERATIONS[value.op].loop.format(*operands)
        least = _least(value.args[1], names) if value.op == "/" else ""
        return OPERATIONS[value.op].bound.format(*operands, least=least)


def _least(value: Value, names: Mapping[Value, str]) -> str:
    """Return the source of the least magnitude of a positive `value`; 0 where it is unknown."""
    if not value.positive:
        # A sum that a positive number replaces wherever it is not above zero.
        if value.op == "<=" and value.args[1] is ZERO and value.args[0] is value.args[3]:
            return f"(SMALLEST if {_least(value.args[2], names)} > LEAST else 0.0)"
        return "0.0"
    if value.within:
        return f"min({', '.join(_least(each, names) for each in value.within)})"
    sides = [_least(arg, names) for arg in value.args]
    match value.op:
        case "scalar":
            return names[value]
        case "+":
            return f"({sides[0]} + {sides[1]})"
        case "*":
            return f"({sides[0]} * {sides[1]})"
        case "sqrt":
            return f"root({sides[0]})"
        case "max":
            return f"max({sides[0]}, {sides[1]})"
    return "0.0"


def _root(least: float) -> float:
    """Return the least root of a number >= `least`. Among subnormal roots only the smallest is exact for certain."""
    return math.sqrt(least) if least > LEAST or least == SMALLEST else 0.0


@cache
def _loop(name: str, letters: str, arguments: str, lines: tuple[str, ...]) -> Loop:
    """Return the loop of this source; the same object for all rules that lead to the same source.

    Numba's cache identifies compiled code by function name and file, and all loops claim this file: the digest in the
    name tells sources apart.
    """
    unique = f"{name}_{hashlib.sha256(repr((arguments, lines)).encode()).hexdigest()[:16]}"
    return Loop(
        _made(f"{unique}({arguments})", lines, {"np": np, "LARGEST": LARGEST, "__name__": __name__}), letters
    )


def _made(head: str, lines: Iterable[str], known: dict[str, Any]) -> Callable[..., Any]:
    """Return the function with this head and these lines, which contain only our own rules' operations and names."""
    source = "\n".join([f"def {head}:", *_indented(lines)])
    exec(compile(source, __file__, "exec"), known)  # noqa: S102
    function: Callable[..., Any] = known[head.partition("(")[0]]
    return function


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
