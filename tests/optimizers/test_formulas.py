"""The loop of a formula agrees with its plain evaluation, for formulas drawn at random."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from psserver.optimizers.formulas import ZERO, Formula, Value, maximum, mix, pick, sign, sqrt
from tests.optimizers.twin import evaluated
from tests.repetitions import seeds

SLOTS, SCALARS = ("mean", "square"), ("rate", "decay", "gain", "flag")
SIZE = 23


def drawn(dice: Random) -> Formula:
    """Of about a dozen operations; a slot may become any value, an old one too."""

    def step(x: Value, g: Value, s: dict[str, Value]) -> dict[str, Value]:
        values = [x, g, s["mean"], s["square"], s["x"]]

        def some() -> Value:
            return dice.choice([*values[-4:], dice.choice(values), s[dice.choice(SCALARS)]])

        makers: list[Callable[[Value, Value], Value]] = [
            lambda a, b: a + b,
            lambda a, b: a - b,
            lambda a, b: a * b,
            lambda a, b: a / (sqrt(abs(b)) + s["gain"]),
            lambda a, b: -a,
            lambda a, b: abs(a),
            maximum,
            lambda a, b: sign(a),
            lambda a, b: mix(s["mean"], a, s["gain"]),
            lambda a, b: mix(s["square"], a * a, s["gain"]),
            lambda a, b: pick(a > b, b, a),
            lambda a, b: pick(a <= ZERO, s["gain"], a),
            lambda a, b: pick(s["flag"] > ZERO, a, b),
        ]
        for _ in range(dice.randint(2, 14)):
            values.append(dice.choice(makers)(dice.choice(values), some()))
        mean = dice.choice([*values[5:], s["mean"], s["square"], g])
        square = dice.choice([abs(values[-1]), mix(s["square"], g * g, s["gain"]), s["square"]])
        return {"mean": mean, "square": square, "x": dice.choice([values[-1], values[-2], x - mean])}

    return Formula("drawn", SLOTS, SCALARS, step, decays=dice.random() < 0.5)


def test_drawn_formulas() -> None:
    for seed in seeds(300, soak=5000):
        dice, draw = Random(seed), np.random.default_rng(seed)
        formula = drawn(dice)
        arrays = {name: draw.standard_normal(SIZE).astype(np.float32) for name in ("x", "g", *SLOTS)}
        arrays["square"] = np.abs(arrays["square"])
        arrays["g"][0] = arrays["mean"][0] = 0.0
        flag = np.float32(dice.random() < 0.5)
        scalars = dict(zip(SCALARS, (np.float32(0.1), np.float32(0.3), np.float32(0.25), flag), strict=True))
        expected = evaluated(formula, {**arrays, **scalars, "zero": np.float32(0)}, SIZE)

        looped, out = {name: arrays[name].copy() for name in SLOTS}, np.full(SIZE, np.nan, np.float32)
        with np.errstate(all="ignore"):
            formula.loop.function(
                *(arrays["x"], arrays["g"], out, *looped.values()),
                *(scalars[name] for name in formula.scalars),
                *(np.float32(1), np.float32(1), np.float32(0)),
            )
        for name, array in expected.items():
            np.testing.assert_array_equal({**looped, "x": out}[name], array, f"{name}, seed {seed}")


def test_a_step_gives_all_slots_and_no_other() -> None:
    with pytest.raises(TypeError, match="expected x and"):
        Formula("short", SLOTS, SCALARS, lambda x, g, s: {"x": x - g * s["rate"]}, decays=False)
