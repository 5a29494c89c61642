"""Controllers of the policy: formulas, limits, and what they refuse."""

import json
from collections.abc import Mapping

import numpy as np
import pytest

from psserver.policies import PolicyError, build
from psserver.policies.controllers import CONTROLLERS, Controller, adasync_k, moved
from psserver.policies.evidence import WINDOW, Losses, Noise
from psserver.records import StateError
from tests.promises import promise
from tests.sentences import Recorder

WORKERS = 8


def controller(
    name: str, policy: str = "k-sync", knobs: Mapping[str, object] = {}, **adapt: object
) -> Controller:
    return Controller({"name": name, **adapt}, build(policy, {"aggregate": 2, **knobs}, WORKERS), WORKERS)


@promise("AdaSync grows as its paper says.")
def test_adasync_grows_as_the_paper_says() -> None:
    """Claim 16: K at loss ratios 4, 16, 64 is 1.9, 3.3, 5.1; it solves K^2 / (P - K) = K0^2 / (P - K0) * ratio."""
    assert [round(adasync_k(1, 8, ratio), 1) for ratio in (1, 4, 16, 64)] == [1.0, 1.9, 3.3, 5.1]
    for ratio in (1e-6, 0.5, 3.0, 1e9):
        k = adasync_k(2, 8, ratio)
        assert k * k / (8 - k) == pytest.approx(4 / 6 * ratio, rel=1e-6)
    assert adasync_k(8, 8, 4.0) == 8


def losses_of(control: Controller, *losses: float) -> None:
    for number, loss in enumerate(losses):
        control.evidence.committed(f"w{number}", loss)


def test_adasync_decides_by_the_median_worker_above_the_floor() -> None:
    control = controller("adasync", knobs={"aggregate": 1}, floor=1.0, rate="sqrt")
    policy = build("k-sync", {"aggregate": 1}, WORKERS)
    losses_of(control, *[5.0] * 7, 1e9)
    assert control.propose(19, policy) is None and control.propose(20, policy) is None
    # The median is 1.25: a sixteenth of the way above the floor is left. One bad worker changes nothing.
    losses_of(control, *[1.25] * 6, 0.0, float("nan"))
    assert control.propose(39, policy) is None
    found = control.propose(40, policy)
    assert found is not None and found.policy.knobs["aggregate"] == 3 and found.rate == pytest.approx(3**0.5)
    assert found.inputs == {"first": 5.0, "loss": 1.25, "wanted": pytest.approx(3.283, abs=1e-3)}
    # At the floor there is nothing left to gain by small updates.
    losses_of(control, *[1.0] * 8)
    found = control.propose(60, build("k-sync", {"aggregate": 3}, WORKERS))
    assert found is not None and found.policy.knobs["aggregate"] == WORKERS


def test_without_losses_nothing_is_decided() -> None:
    control = controller("adasync")
    assert control.propose(100, build("k-sync", {}, WORKERS)) is None


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [
        (1, 1.5, 1),
        (1, 1.6, 2),
        (5, 5.9, 5),
        (5, 6.1, 6),
        (5, 4.1, 5),
        (5, 3.9, 4),
        (7, 8.0, 8),
        (3, 99.0, 8),
        (2, 0.3, 1),
    ],
)
def test_a_knob_does_not_flutter_and_keeps_its_limits(present: int, wanted: float, expected: int) -> None:
    assert moved(present, wanted, 1, 8) == expected


def noisy(control: Controller, sizes: list[list[float]], seed: int = 0, scale: float = 5.0) -> None:
    """Updates with these weights, of gradients G plus noise with sigma^2 = scale |G|^2."""
    random = np.random.default_rng(seed)
    mean = random.standard_normal(20_000)
    sigma = np.sqrt(scale * float(mean @ mean) / mean.size)
    for version, weights in enumerate(sizes, start=1):
        gradients = mean + sigma * random.standard_normal((len(weights), mean.size))
        total = np.asarray(weights) @ gradients
        norms = np.linalg.norm(gradients, axis=1)
        control.evidence.applied(version, [(w, float(n)) for w, n in zip(weights, norms, strict=True)])
        control.evidence.measured(version, float(total @ total))


@promise("The gradient noise scale from norms alone, for any weights (McCandlish et al. 2018).")
@pytest.mark.parametrize("weights", [[0.5, 0.5], [0.25] * 4, [1.0, 1.0, 1.0], [0.5, 0.25, 0.1]])
def test_the_noise_scale_is_found_whatever_the_weights(weights: list[float]) -> None:
    control = controller("noise-scale")
    noisy(control, [weights] * WINDOW)
    assert isinstance(control.evidence, Noise)
    variance, square = control.evidence.means() or (0.0, 0.0)
    assert variance / square == pytest.approx(5.0, rel=0.15)
    found = control.propose(200, build("k-sync", {"aggregate": 2}, WORKERS))
    assert found is not None and found.policy.knobs["aggregate"] == 5 and found.rate == 1.0


def test_updates_of_one_say_nothing_and_a_hundred_are_needed() -> None:
    control = controller("noise-scale")
    assert isinstance(control.evidence, Noise)
    noisy(control, [[1.0]] * 200)
    assert control.evidence.means() is None
    noisy(control, [[0.5, 0.5]] * (WINDOW - 1))
    assert control.evidence.means() is None
    control.evidence.measured(10**6, 1.0)  # unknown
    assert control.evidence.means() is None
    noisy(control, [[0.5, 0.5]])
    assert control.evidence.means() is not None


def test_noise_without_a_gradient_asks_for_all() -> None:
    control = controller("noise-scale", rate="linear")
    for version in range(WINDOW):
        control.evidence.applied(version, [(0.5, 1.0), (0.5, 1.0)])
        control.evidence.measured(version, 0.25)  # orthogonal gradients leave half of that
    found = control.propose(100, build("k-sync", {"aggregate": 2}, WORKERS))
    assert found is not None and found.policy.knobs["aggregate"] == WORKERS and found.rate == 4.0


@pytest.mark.parametrize(
    ("adapt", "policy", "knobs"),
    [
        ({"name": "adasinc"}, "k-sync", {}),
        ({"name": "adasync", "flor": 1.0}, "k-sync", {}),
        ({"name": "adasync", "every": 19}, "k-sync", {}),
        ({"name": "adasync", "rate": "double"}, "k-sync", {}),
        ({"name": "adasync"}, "sync", {}),
        ({"name": "adasync", "most": 9}, "k-sync", {}),
        ({"name": "adasync", "least": 3}, "k-sync", {"aggregate": 2}),
        ({"name": "noise-scale"}, "k-sync", {"aggregate": 1}),
        ({}, "k-sync", {}),
    ],
)
def test_what_cannot_be_controlled_is_refused(
    adapt: Mapping[str, object], policy: str, knobs: Mapping[str, object], sentences: Recorder
) -> None:
    with pytest.raises(PolicyError) as refusal:
        Controller(adapt, build(policy, knobs, WORKERS), WORKERS)
    sentences.check(str(refusal.value))


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_state_is_taken_up(name: str) -> None:
    knobs = {"max_staleness": 1}
    one, other = controller(name, "bounded", knobs), controller(name, "bounded", knobs)
    losses_of(one, 1.0, 2.0)
    one.propose(20, build("bounded", {"aggregate": 2, **knobs}, WORKERS))
    losses_of(one, 3.0)
    noisy(one, [[0.5, 0.5]] * 5)
    one.evidence.applied(9, [(1.0, 2.0), (1.0, 2.0)])
    saved = json.loads(json.dumps(one.state(), allow_nan=False))
    other.restore(saved)
    assert other.state() == one.state() and other.next == 40
    with pytest.raises(StateError):
        other.restore({**saved, "next": "soon"})
    with pytest.raises(StateError):
        other.restore({**saved, "evidence": {}})
    assert other.state() == one.state()


def test_losses_are_forgotten_once_taken() -> None:
    losses = Losses()
    losses.committed("w0", 1.0)
    losses.committed("w0", 3.0)
    assert losses.take() == [2.0] and losses.take() == []
