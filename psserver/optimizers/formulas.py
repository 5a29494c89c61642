"""A rule's formula as a loop to compile.

A rule's `step` runs once, on `Value`s instead of numbers, and leaves a graph of float32 operations. The loop carries
them out, each rounded on its own (the compiler contracts nothing).

    def step(self, x, g, s):
        mean = mix(s["momentum"], g, s["gain"])
        return {"momentum": mean, "x": x - mean * s["rate"]}

Write a product of three in the order of rounding: ``a * b * c`` is ``(a * b) * c``.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from psserver.fast import LARGEST, Loop

Scalars = Mapping[str, np.float32]


class Condition(NamedTuple):
    """A comparison, as the condition of `pick`."""

    left: "Value"
    op: str
    right: "Value"


class Value:
    """The result of one operation, or (op "array" or "scalar") an input.

    `condition`: of a pick that compares two of the rule's scalars.
    """

    __slots__ = ("op", "args", "name", "condition")

    def __init__(self, op: str, *args: "Value", name: str = "") -> None:
        self.op, self.args, self.name = op, args, name
        self.condition: Condition | None = None

    def __add__(self, other: "Value") -> "Value":
        return Value("+", self, other)

    def __sub__(self, other: "Value") -> "Value":
        return Value("-", self, other)

    def __mul__(self, other: "Value") -> "Value":
        return Value("*", self, other)

    def __truediv__(self, other: "Value") -> "Value":
        return Value("/", self, other)

    def __neg__(self) -> "Value":
        return Value("neg", self)

    def __abs__(self) -> "Value":
        return Value("abs", self)

    def __gt__(self, other: "Value") -> Condition:
        return Condition(self, ">", other)

    def __le__(self, other: "Value") -> Condition:
        return Condition(self, "<=", other)


ZERO: Final = Value("scalar", name="zero")


def sqrt(value: Value) -> Value:
    """Return the square root."""
    return Value("sqrt", value)


def root(value: Value, epsilon: Value, *, outside: bool) -> Value:
    """Return the square root with an epsilon, added under the root or, with `outside`, to it."""
    return sqrt(value) + epsilon if outside else sqrt(value + epsilon)


def sign(value: Value) -> Value:
    """Return 1, 0 or -1; NaN for NaN."""
    return Value("sign", value)


def maximum(left: Value, right: Value) -> Value:
    """Return the larger value; NaN if either is NaN."""
    return Value("max", left, right)


def mix(mean: Value, new: Value, gain: Value) -> Value:
    """Return ``mean + (new - mean) * gain``: a running mean."""
    return mean + (new - mean) * gain


def pick(condition: Condition, then: Value, other: Value) -> Value:
    """Return `then` where the condition holds, else `other`.

    A condition on two of the rule's scalars costs nothing: only one side is computed.
    """
    left, op, right = condition
    picked = Value(op, left, right, then, other)
    if left.op == right.op == "scalar":
        picked.condition = condition
    return picked


OPERATIONS: Final[Mapping[str, str]] = {
    "+": "{0} + {1}",
    "-": "{0} - {1}",
    "*": "{0} * {1}",
    "/": "{0} / {1}",
    "neg": "-{0}",
    "abs": "abs({0})",
    "sqrt": "np.sqrt({0})",
    "max": "np.maximum({0}, {1})",
    # Nested conditional expressions would make the compiler branch instead of select.
    "sign": "one if {0} > zero else {0}; {out} = -one if {0} < zero else {out}; {out} = zero if {0} == zero else {out}",
    ">": "{2} if {0} > {1} else {3}",
    "<=": "{2} if {0} <= {1} else {3}",
}
"""The source of each operation."""


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
    ) -> None:
        self.name, self.slots = name, tuple(slots)
        self._x, self._g = Value("array", name="x"), Value("array", name="g")
        own = {slot: Value("array", name=slot) for slot in slots}
        known = {each: Value("scalar", name=each) for each in scalars}
        start = self._x - self._x * known["decay"] * known["rate"] if decays else self._x
        self.results = step(start, self._g, {**known, **own, "x": self._x})
        if set(self.results) != {"x", *slots}:
            raise TypeError(f"expected x and {self.slots} from the step of {name}, got {tuple(self.results)}")
        values, _ = self._graph({})
        self.scalars = tuple(each for each, value in known.items() if value in values)
        self._conditions = tuple(
            dict.fromkeys(value.condition for value in values if value.condition is not None)
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
                source = OPERATIONS[value.op].format(*(names[arg] for arg in args), out=names[value])
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
