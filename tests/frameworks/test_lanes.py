"""How gradients leave a device and versions come to it, with doubles of page-locked memory in the place of a GPU's."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pswire.model.plan import Slice, VariableSpec, make_plan
from psworker.backends import buckets, payloads
from psworker.data.payloads import Pieces, array_of
from tests.frameworks.installed import torch_or_skip
from tests.keras.in_process import servers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
SHAPES = [(300, 7), (5,), (64, 64)]
VALUES = [np.random.default_rng(0).integers(-8, 8, shape).astype(np.float32) for shape in SHAPES]
SPECS = [VariableSpec(name, value.shape) for name, value in zip("abc", VALUES, strict=True)]


class Lagging:
    """A lane whose copies happen when they are awaited, in order, and not before."""

    def __init__(self, device: Any) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.begun: list[Callable[[], None]] = []

    def fetch(self, tensor: Any) -> Callable[[], Any]:
        target = tensor.new_full(tensor.shape, float("nan"))
        number = len(self.begun)
        self.begun.append(lambda: target.copy_(tensor))
        self.events.append(("begin", number, tensor.numel(), tensor.dtype))

        def landing() -> Any:
            for copy in self.begun[: number + 1]:
                copy()
            self.events.append(("land", number))
            return target

        return landing

    def send(self, values: Any, into: Any) -> None:
        self.events.append(("send", values.numel(), values.dtype))
        into.copy_(values.clone())


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Lagging:
    torch_or_skip()
    from psworker.backends.torch import lanes

    made = Lagging(None)
    monkeypatch.setitem(lanes.LANES, "cpu", lambda device: made)
    return made


def test_every_gradient_of_torch_leaves_once_in_the_wires_dtype_and_all_at_once(lane: Lagging) -> None:
    torch = torch_or_skip()
    from psworker.backends.torch import TorchModel

    module = torch.nn.Module()
    for spec, value in zip(SPECS, VALUES, strict=True):
        module.register_parameter(spec.name, torch.nn.Parameter(torch.tensor(value)))
    model, plan = TorchModel(module, list(module.parameters())), make_plan(SPECS, 2)
    made = payloads(plan, model, [torch.tensor(value) for value in VALUES], ml_dtypes.bfloat16)
    # Nothing waits before a payload is sent.
    assert {event[0] for event in lane.events} == {"begin"}
    assert {event[3] for event in lane.events} == {torch.bfloat16}
    assert sum(event[2] for event in lane.events) == sum(value.size for value in VALUES)
    sent = [array_of(each) for each in made]
    landed = [event[1] for event in lane.events if event[0] == "land"]
    assert landed == sorted(landed) and len(landed) == len(lane.begun)
    for found, value in zip(plan.gather(sent, np.dtype(ml_dtypes.bfloat16)), VALUES, strict=True):
        np.testing.assert_array_equal(found.astype(np.float32), value)
    # A payload that is sent again is the same.
    np.testing.assert_array_equal(array_of(made[0]), sent[0])


def test_a_loop_of_torch_by_way_of_the_lane(lane: Lagging) -> None:
    torch = torch_or_skip()
    import psworker.torch

    module = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    made = torch.optim.SGD(module.parameters(), 0.5)
    with servers() as hosts, psworker.torch.distribute(made, module, hosts) as optimizer:
        for _ in range(3):
            module.weight.grad = torch.ones_like(module.weight)
            optimizer.step()
        np.testing.assert_array_equal(module.weight.detach().numpy(), np.full((1, 4), -1.5))
    assert [event for event in lane.events if event[0] == "begin"] == [
        ("begin", number, 4, torch.float32) for number in range(3)
    ]
    assert sum(event[0] == "send" for event in lane.events) >= 4


def test_jax_by_way_of_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's CPU has memory of that kind, too."""
    jax = pytest.importorskip("jax", reason="jax is not installed (scripts/install jax)")
    import psworker.backends.jax as ours

    monkeypatch.setattr(ours, "PINNED", {"cpu", *ours.PINNED})
    put = jax.device_put
    kinds: list[tuple[Any, Any]] = []

    def noting(value: Any, where: Any) -> Any:
        kinds.append((value.dtype, where.memory_kind))
        return put(value, where)

    monkeypatch.setattr(jax, "device_put", noting)
    model, plan = ours.JaxModel(dict(zip("abc", VALUES, strict=True))), make_plan(SPECS, 2)
    made = payloads(plan, model, [jax.numpy.asarray(value) for value in VALUES], ml_dtypes.bfloat16)
    pieces = sum(len(shard.slices) for shard in plan.shards)
    assert kinds == [(np.dtype(ml_dtypes.bfloat16), "pinned_host")] * pieces
    sent = [array_of(each) for each in made]
    for found, value in zip(plan.gather(sent, np.dtype(ml_dtypes.bfloat16)), VALUES, strict=True):
        np.testing.assert_array_equal(found.astype(np.float32), value)


@pytest.mark.parametrize(
    ("rows", "width", "most"), [(1, 1, 4), (10, 3, 0), (10, 3, 6), (10, 30, 7), (7, 2, 5), (1, 100, 8)]
)
def test_buckets_are_the_rows_of_a_piece_in_order(rows: int, width: int, most: int) -> None:
    found = buckets(Slice(0, 2, 2 + rows, 0, rows * width), most)
    assert [row for start, stop in found for row in range(start, stop)] == list(range(2, 2 + rows))
    if most:
        assert all(stop - start == 1 or (stop - start) * width <= most for start, stop in found)
    else:
        assert len(found) == 1


def test_a_part_is_written_before_the_next_one_is_awaited() -> None:
    target, seen = np.zeros(6, np.float32), []

    def part(value: float) -> Callable[[], Any]:
        def landing() -> Any:
            seen.append(target.copy())
            return np.full(2, value, np.float32)

        return landing

    Pieces([part(1), part(2), part(3)], 6).write(target)
    np.testing.assert_array_equal(target, [1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(seen, [[0] * 6, [1, 1, 0, 0, 0, 0], [1, 1, 2, 2, 0, 0]])
    for elements in (5, 7):
        with pytest.raises(ValueError, match=f"expected parts of {elements} elements"):
            Pieces([part(1), part(2), part(3)], elements).write(np.zeros(elements, np.float32))


@pytest.mark.parametrize("elements", [6, 5, 7])
def test_threads_write_a_payload_of_many_bytes(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    from psworker.data import payloads as module

    monkeypatch.setattr(module, "MANY", 0)
    monkeypatch.setattr(module, "COPIERS", 3)
    values = np.arange(6, dtype=np.float32)
    made = Pieces([lambda part=part: part for part in np.split(values, 3)], elements)  # type: ignore[misc]
    target = np.full(elements, -1, np.float32)
    if elements == 6:
        made.write(target)
        np.testing.assert_array_equal(target, values)
    else:
        with pytest.raises(ValueError, match=f"expected parts of {elements} elements in all, got 6"):
            made.write(target)


def test_a_part_that_fails_fails_the_payload_when_threads_write(monkeypatch: pytest.MonkeyPatch) -> None:
    from psworker.data import payloads as module

    monkeypatch.setattr(module, "MANY", 0)
    monkeypatch.setattr(module, "COPIERS", 2)

    def lost() -> Any:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        Pieces([lambda: np.ones(2, np.float32), lost], 4).write(np.zeros(4, np.float32))


@pytest.mark.parametrize("turned", [False, True])
def test_a_version_goes_to_a_device_in_buckets(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    torch = torch_or_skip()
    from psworker.backends.torch import lanes

    monkeypatch.setattr(lanes, "BUCKET", 7)
    into = torch.zeros(5, 4).t() if turned else torch.zeros(4, 5)
    values = torch.arange(20, dtype=torch.float32).view(4, 5)
    pairs = lanes.pairs_of(values, into)
    assert [part.numel() for part, _ in pairs] == ([20] if turned else [7, 7, 6])
    for part, place in pairs:
        place.copy_(part)
    assert torch.equal(into, values)
