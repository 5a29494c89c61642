"""Distributions: their means, their draws, and what is said about those that are none."""

import statistics
from pathlib import Path

import pytest

from pslab.simulator.build import step_times
from pswire.config.distributions import DelayError, parse, read_trace, stream
from psworker import running
from tests.simulator.lab import experiment


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("constant(0.05)", 0.05),
        ("exponential(0.05)", 0.05),
        ("shifted_exponential(1, 1)", 2.0),
        ("uniform(1, 3)", 2.0),
        ("pareto(3, 1)", 1.5),
        ("gamma(100, 0.01)", 1.0),
        ("lognormal(0, 0.5)", 1.1331),
        ("2 * exponential(0.05)", 0.1),
        ("  0.5*gamma( 4 ,0.25 ) ", 0.5),
    ],
)
def test_means(text: str, mean: float) -> None:
    delay = parse(text)
    assert delay.mean == pytest.approx(mean, rel=1e-3)
    draw = delay.draws(stream(0, 1, "test"))
    draws = [draw() for _ in range(20_000)]
    assert statistics.mean(draws) == pytest.approx(mean, rel=0.03) and min(draws) >= 0


def test_a_mean_that_does_not_exist() -> None:
    assert parse("pareto(1, 1)").mean == float("inf")


def test_what_never_takes_time() -> None:
    assert parse("constant(0)").never and parse("0 * exponential(1)").never
    assert parse("exponential(0)").never and parse("uniform(0, 0)").never
    assert parse("shifted_exponential(0, 0)").never and parse("0 * pareto(1, 1)").never
    assert not parse("constant(1)").never and not parse("exponential(0.1)").never


def test_streams_differ_by_worker_purpose_and_seed_only() -> None:
    def first(*key: object) -> float:
        return parse("exponential(1)").draws(stream(*key))()  # type: ignore[arg-type]

    assert first(1, 2, "delay") == first(1, 2, "delay")
    assert len({first(1, 2, "delay"), first(1, 3, "delay"), first(2, 2, "delay"), first(1, 2, "x")}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expnential(1)", "unknown distribution 'expnential'; did you mean \"exponential\"?"),
        ("exponential", "is no delay: expected something like exponential(0.05)"),
        ("0.5", "is no delay"),
        ("", "is no delay"),
        ("exponential(1) + 1", "is no delay"),
        ("gamma(1)", "expected gamma(shape, scale), got 1 parameters"),
        ("constant()", "expected constant(seconds), got 0 parameters"),
        ("exponential(x)", "mean must be a number, got 'x'"),
        ("exponential(inf)", "mean must be finite, got inf"),
        ("exponential(-1)", "mean must be a number >= 0, got -1.0"),
        ("pareto(0, 1)", "alpha must be a number > 0, got 0.0"),
        ("lognormal(1, -1)", "sigma must be a number >= 0, got -1.0"),
        ("lognormal(0, 1000)", "may draw more than 1e+100 seconds; take a smaller mu or sigma"),
        ("pareto(0.001, 1)", "may draw more than 1e+100 seconds; take a larger alpha"),
        ("exponential(1e10)", "mean must be at most 1000000000, got 1e10"),
        ("1e18 * exponential(1)", "the factor must be at most 1000000000, got 1e18"),
        ("uniform(3, 1)", "high must be a number >= low (3), got 1.0"),
        ("-2 * exponential(1)", "the factor must be 0 or more, got -2"),
        ("x * exponential(1)", "the factor must be a number, got 'x'"),
        ("trace()", "expected the name of a file"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(DelayError) as error:
        parse(text)
    assert message in str(error.value) and repr(text) in str(error.value)


def test_a_trace_is_played_in_order_round_and_round(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("step, seconds\n0, 0.1\n1, 0.2\n\n2, 0.4\n")
    assert read_trace(file) == (0.1, 0.2, 0.4)
    delay = parse(f"10 * trace({file})")
    assert delay.mean == pytest.approx(7 / 3)
    draw = delay.draws(stream(0, 0, "test"))
    seen = [draw() for _ in range(6)]
    assert seen[:3] == seen[3:] and sorted(seen[:3]) == [1.0, 2.0, 4.0]
    file.write_text("0.5\n0.25\n")
    assert read_trace(file) == (0.5, 0.25)
    file.write_bytes(b'\xef\xbb\xbf"who","seconds"\r\n"w0, the first",0.5\r\n')
    assert read_trace(file) == (0.5,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "expected at least one number of seconds, got an empty file"),
        (b"\n \n", "expected at least one number of seconds, got an empty file"),
        (b"step,seconds\n", "expected at least one number of seconds, got a header only"),
        (b"step,time\n0,0.1\n", "line 1: expected one number of seconds per line, or a header"),
        (b"step,time\n0,0.1\n", "with a column named 'seconds', got 'step', 'time'"),
        (b"time\n0.1\n", "named 'seconds', got 'time'"),
        (b"step,Seconds\n0,0.1\n", "got 'step', 'Seconds'; is it 'Seconds'? Then rename it"),
        (b"0,0.1\n1,0.2\n", "named 'seconds', got 2 numbers and no names"),
        (b"a,b,c,d,e,f,g,h,i,j\n", "'g', 'h', ..."),
        (b"0.1\nfast\n", "line 2: expected a number of seconds, got 'fast'"),
        (b"0.1\n-1\n", "line 2: expected a number of seconds from 0 to 1000000000, got -1.0"),
        (b"0.1\nnan\n", "line 2: expected a number of seconds from 0 to 1000000000, got nan"),
        (b"a,seconds\n1\n", "line 2: expected at least 2 columns, got 1"),
        (b"\xff\xfe", "it is not UTF-8 text"),
    ],
)
def test_bad_traces(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "trace.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DelayError) as error:
        parse(f"trace({file})").draws(stream(0, 0, "x"))
    assert message in str(error.value) and str(file) in str(error.value)


def test_a_real_worker_draws_what_its_simulated_twin_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    given = experiment(
        workers=2,
        run={"seed": 7},
        delays={1: "exponential(0.05)"},
        simulation={"compute": "constant(0)"},
    )
    slept: list[float] = []
    monkeypatch.setattr(running.time, "sleep", slept.append)
    pause = running.injected_delay(given, 1, seed=7)
    simulated = step_times(given, 1)
    for _ in range(20):
        pause()
    assert slept == [simulated() for _ in range(20)] and len(set(slept)) == 20
    running.injected_delay(given, 0, seed=7)()
    assert len(slept) == 20
