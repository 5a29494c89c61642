"""`psworker.torch.distribute`: torch's own optimizers are the oracle, on one worker and on two."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pslab.cli
from psserver.optimizers import build
from psworker.errors import JobOver, SessionError
from tests.frameworks.installed import torch_or_skip
from tests.keras.in_process import in_threads, servers

torch = torch_or_skip()
pt = pytest.importorskip("psworker.torch")

from psworker.optimizers import OPTIMIZERS  # noqa: E402
from psworker.torch.translate import torch_row  # noqa: E402

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

optim, nn = torch.optim, torch.nn
X = torch.tensor(np.random.default_rng(0).normal(size=(96, 6)).astype(np.float32))
Y = X[:, :1] * 2 - X[:, 1:2]


def net(*more: Any) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 1))


def backward(model: Any, part: slice, share: float = 1.0) -> Any:
    loss = ((model(X[part]) - Y[part]) ** 2).mean() * share
    loss.backward()
    return loss


def batch(k: int, size: int = 8) -> slice:
    return slice(k * size, (k + 1) * size)


def assert_near(one: Any, other: Any, atol: float = 1e-6) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-6, atol=atol, err_msg=name)


# Torch decays by x * (1 - lr * weight_decay), whose one factor is rounded to float32 once for all steps; servers by
# x - x * weight_decay * lr. Hence the last two.
RULES: list[tuple[Callable[[Any], Any], float]] = [
    (lambda p: optim.SGD(p, 0.1), 1e-6),
    (lambda p: optim.SGD(p, 0.01, 0.9), 1e-6),
    (lambda p: optim.SGD(p, 0.01, 0.9, weight_decay=0.1), 1e-6),
    (lambda p: optim.SGD(p, 0.01, 0.9, nesterov=True, maximize=True), 1e-6),
    (lambda p: optim.Adam(p, 0.01), 1e-6),
    (lambda p: optim.Adam(p, 0.01, eps=1e-2, amsgrad=True, weight_decay=0.1), 1e-6),
    (lambda p: optim.RMSprop(p, 0.01), 1e-6),
    (lambda p: optim.RMSprop(p, 0.01, eps=1e-2, centered=True, momentum=0.9), 1e-6),
    (lambda p: optim.RMSprop(p, 0.01, momentum=0.5), 1e-6),
    (lambda p: optim.Adagrad(p, 0.1, eps=1e-2), 1e-6),
    (lambda p: optim.Adagrad(p, 0.1, initial_accumulator_value=0.1), 1e-6),
    (lambda p: optim.Adadelta(p, 1.0), 1e-6),
    (lambda p: optim.Adamax(p, 0.01, eps=1e-2), 1e-6),
    (lambda p: optim.NAdam(p, 0.01), 1e-6),
    (lambda p: optim.NAdam(p, 0.01, momentum_decay=0.5, eps=1e-2), 1e-6),
    (lambda p: optim.AdamW(p, 0.01, weight_decay=0.1), 3e-6),
    (lambda p: optim.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True), 3e-6),
]


@pytest.mark.parametrize(("make", "atol"), RULES)
def test_a_rule_of_torch_is_the_servers(make: Callable[[Any], Any], atol: float) -> None:
    """100 steps with gradients of all sizes; the rate changes on the way. What a worker adds is added here."""
    draw = np.random.default_rng(0)
    sizes = np.float32(10.0) ** draw.integers(-3, 1, size=40).astype(np.float32)
    gradients = draw.normal(size=(100, 40)).astype(np.float32) * sizes
    parameter = nn.Parameter(torch.linspace(-1, 1, 40))
    optimizer = make([parameter])
    config = pt.translate(optimizer, {id(parameter): "w"})
    rule, x, out = build(config), parameter.detach().numpy().copy(), np.empty(40, np.float32)
    slots, group = rule.init(40), optimizer.param_groups[0]
    for k, gradient in enumerate(gradients):
        scale = 1.0 if k < 50 else 0.3
        group["lr"] = config["learning_rate"] * scale
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        if group.get("maximize"):
            gradient = -gradient
        if "weight_decay" not in config:
            gradient = gradient + np.float32(group["weight_decay"]) * x
        rule.update(x, gradient.copy(), out, slots, version=k, lr_scale=scale)
        x = out.copy()
    np.testing.assert_allclose(x, parameter.detach().numpy(), rtol=1e-6, atol=atol)


def test_every_row_of_the_table_is_tried_and_names_torchs_slots() -> None:
    tried = []
    for make, _ in RULES:
        parameter = nn.Parameter(torch.ones(3))
        optimizer = make([parameter])
        row, config = torch_row(optimizer), pt.translate(optimizer, {id(parameter): "w"})
        parameter.grad = torch.ones(3)
        optimizer.step()
        state = {name for name, value in optimizer.state[parameter].items() if value is not None}
        assert set(row.slots(config)) == state - {"step", "mu_product"}, optimizer
        tried.append(row)
    assert [row for row in OPTIMIZERS["torch"] if row not in tried] == []


def test_averages_stay_between_those_of_the_batches_without_a_barrier() -> None:
    """Of the data, which BatchNorm sees first: nothing else moves them."""
    count, rounds = 6, 10

    def work(index: int) -> Any:
        model = nn.Sequential(nn.BatchNorm1d(6, momentum=0.5), nn.Linear(6, 1))
        with pt.distribute(optim.SGD(model.parameters(), 0.01), model, hosts, task_index=index) as optimizer:
            for k in range(rounds):
                optimizer.zero_grad()
                backward(model, batch((index + k) % 12))
                optimizer.step()
        return model

    with servers(workers=count, policy="async") as hosts:
        norm = in_threads(work, count)[0][0]
    parts = [X[batch(k)] for k in range(12)]
    for found, start, of_batches in (
        (norm.running_mean, 0.0, [part.mean(0) for part in parts]),
        (norm.running_var, 1.0, [part.var(0) for part in parts]),
    ):
        values = torch.stack([torch.full((6,), start), *of_batches])
        assert (found >= values.amin(0) - 1e-5).all() and (found <= values.amax(0) + 1e-5).all()


def test_a_loop_is_the_loop_without_servers() -> None:
    """Groups, a scheduler, clipping, accumulation, a closure, BatchNorm, and state_dict() in the middle."""

    def made() -> tuple[Any, Any]:
        model = net(nn.BatchNorm1d(8))
        model[0].bias.requires_grad_(False)  # its gradient would be rounding alone, before BatchNorm
        trained = [p for p in model.parameters() if p.requires_grad]
        matrices, others = ([p for p in trained if (p.dim() > 1) == flag] for flag in (True, False))
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        return model, optim.AdamW(groups, lr=0.02)

    def loop(model: Any, optimizer: Any, scheduler: Any) -> Any:
        middle = None
        for k in range(6):
            optimizer.zero_grad()
            backward(model, batch(2 * k), 0.5)
            if k == 5:
                assert optimizer.step(lambda: backward(model, batch(11), 0.5)).item() > 0
            else:
                backward(model, batch(2 * k + 1), 0.5)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            scheduler.step()
            if k == 3:
                middle = deepcopy(optimizer.state_dict())
        return middle

    (plain, oracle), (ours, inner) = made(), made()
    expected = loop(plain, oracle, optim.lr_scheduler.StepLR(oracle, 2, 0.5))
    # Of the optimizer that it was made for, before it is distributed.
    scheduler = optim.lr_scheduler.StepLR(inner, 2, 0.5)
    with servers() as hosts, pt.distribute(inner, ours, hosts) as optimizer:
        found = loop(ours, optimizer, scheduler)
        assert (optimizer.version, optimizer.fates) == (6, {"applied": 6})
        again = optim.AdamW(made()[1].param_groups)
        again.load_state_dict(found)
        for key, slots in expected["state"].items():
            for name, value in slots.items():
                np.testing.assert_allclose(found["state"][key][name], value, rtol=1e-6, atol=1e-6)
        assert found["param_groups"][0]["lr"] == expected["param_groups"][0]["lr"]
        with pytest.raises(pt.RemoteError, match="own checkpoints"):
            optimizer.load_state_dict(found)
        with pytest.raises(pt.RemoteError, match="before distribute"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        optimizer.param_groups[0]["betas"] = (0.5, 0.999)
        with pytest.raises(pt.TranslationError, match="only lr may change"):
            optimizer.step()
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        with torch.no_grad():
            ours[3].weight.clamp_(-1, 1)
        with pytest.raises(pt.ModelError, match=r"'3.weight' was changed between two steps"):
            optimizer.step()
    assert_near(plain, ours)
    with pytest.raises(JobOver):
        optimizer.step()


def test_two_workers_are_one_process_with_both_batches(tmp_path: Path) -> None:
    """And the mean gradient is clipped, as under DistributedDataParallel; the log is right. What one of them makes of
    NaN does not count."""
    plain = net()
    oracle = optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for k in range(5):
        oracle.zero_grad()
        backward(plain, batch(k, 16))
        nn.utils.clip_grad_norm_(plain.parameters(), 0.7)
        oracle.step()

    # Torch's generator is one for all threads.
    models = [net(), net()]

    def work(index: int) -> Any:
        model = models[index]
        made = optim.SGD(model.parameters(), 0.1, momentum=0.9)
        with pt.distribute(made, model, hosts, task_index=index, clip_norm=0.7) as optimizer:
            if index:
                backward(model, batch(0), float("nan"))
                optimizer.step(samples=8)
                assert optimizer.version == 0
            for k in range(5):
                optimizer.zero_grad()
                backward(model, batch(2 * k + index))
                optimizer.step(samples=8)

    with servers(workers=2, out=tmp_path / "run") as hosts:
        in_threads(work, 2)
    for model in models:
        assert_near(plain, model)
    checked = CliRunner().invoke(pslab.cli.cli, ["check", str(tmp_path / "run")])
    assert checked.exit_code == 0, checked.output


def test_a_gradient_that_is_not_finite_does_not_count() -> None:
    """GradScaler leaves such a step out by itself; without it the servers refuse the gradient."""
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=4.0)
    with servers() as hosts, pt.distribute(optim.SGD(model.parameters(), 0.1), model, hosts) as optimizer:
        before = model[0].weight.detach().clone()
        for bad in (True, False):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = ((model(X[:8]) - Y[:8]) ** 2).mean()
            scaler.scale(loss * (float("nan") if bad else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(model[0].weight, before) == bad
        assert optimizer.version == 1
        now = model[0].weight.detach().clone()
        optimizer.zero_grad()
        backward(model, batch(0), float("nan"))
        optimizer.step()
        assert optimizer.version == 1 and torch.equal(model[0].weight, now)
        optimizer.zero_grad()
        backward(model, batch(0))
        optimizer.step()
        assert optimizer.version == 2
        with pytest.raises(SessionError, match="10 batches in a row gave no finite gradient"):
            for _ in range(10):
                backward(model, batch(0), float("inf"))
                optimizer.step()


def test_a_constant_with_infinities_stays_with_its_worker() -> None:
    """A causal mask trains as in one process."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 6)
            self.register_buffer("mask", torch.triu(torch.full((6, 6), -torch.inf), diagonal=1))

        def forward(self, x: Any) -> Any:
            return torch.softmax(self.out(x)[:, None, :] + self.mask, -1).mean(1)[:, :1]

    def trained(model: Any, optimizer: Any) -> Any:
        for k in range(3):
            optimizer.zero_grad()
            backward(model, batch(k))
            optimizer.step()
        return model

    torch.manual_seed(1)
    model = Masked()
    alone = deepcopy(model)
    trained(alone, optim.SGD(alone.parameters(), 0.1))
    with servers() as hosts, pt.distribute(optim.SGD(model.parameters(), 0.1), model, hosts) as optimizer:
        assert [spec.name for spec in optimizer.link.plan.variables] == ["out.weight", "out.bias"]
        assert_near(alone, trained(model, optimizer))


def test_half_precision_sharing_and_unused_parameters() -> None:
    """Servers hold float32 of a bfloat16 parameter; a shared one is one; one without gradient stays."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(6, 4)
            self.out = nn.Linear(4, 6, bias=False)
            self.out.weight = self.embedding.weight
            self.narrow = nn.Linear(4, 4).to(torch.bfloat16)
            self.unused = nn.Linear(2, 2)

        def forward(self, ids: Any) -> Any:
            return self.out(self.narrow(self.embedding(ids).to(torch.bfloat16)).float())

    torch.manual_seed(1)
    model = Tied()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = optim.SGD(model.parameters(), 2**-12)
    with servers() as hosts, pt.distribute(made, model, hosts) as optimizer:
        names = [spec.name for spec in optimizer.link.plan.variables]
        assert names == ["embedding.weight", "narrow.weight", "narrow.bias", "unused.weight", "unused.bias"]
        for _ in range(64):
            optimizer.zero_grad()
            # Each step is far below what bfloat16 shows of a bias of 1 or so, their sum is not.
            (model(torch.arange(6)).sum() / 64 + 8 * model.narrow.bias.float().sum()).backward()
            optimizer.step()
    after = model.state_dict()
    assert after["narrow.bias"].dtype == torch.bfloat16
    moved = (before["narrow.bias"].float() - after["narrow.bias"].float()).mean()
    assert moved > 64 * 8 * 2**-12 / 2
    assert torch.equal(after["embedding.weight"], after["out.weight"])
    assert torch.equal(after["unused.weight"], before["unused.weight"])


def test_hooks_a_closure_without_a_loss_and_a_compiled_model() -> None:
    """Hooks of the optimizer that was distributed are called; a worker that compiles names parameters as others do."""
    model, called = net(), []
    made = optim.SGD(model.parameters(), 0.1)
    made.register_step_pre_hook(lambda *_: called.append("before"))
    made.register_step_post_hook(lambda *_: called.append("behind"))
    made.register_state_dict_post_hook(lambda *_: called.append("state"))
    compiled = torch.compile(model, backend="eager")
    with servers() as hosts, pt.distribute(made, compiled, hosts) as optimizer:
        backward(compiled, batch(0))
        assert optimizer.step(lambda: None) is None
        optimizer.state_dict()
        assert (optimizer.version, called) == (1, ["before", "behind", "state"])
        names = [spec.name for spec in optimizer.link.plan.variables]
        assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]


def clamp(model: Any, optimizer: Any) -> None:
    model[0].weight.data.clamp_(-0.1, 0.1)


def set_rate(rate: float) -> Callable[[Any, Any], None]:
    def change(model: Any, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = rate

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (clamp, "'0.weight' was changed between two steps"),
        (
            lambda model, optimizer: model.double(),
            "'0.weight' was float32 when .* the dtype torch.float64 now",
        ),
        (set_rate(float("nan")), "a learning rate of nan"),
        (set_rate(-1.0), "a learning rate of -1"),
    ],
)
def test_what_a_script_may_not_change_between_two_steps(change: Any, words: str) -> None:
    """By way of `data` PyTorch counts no change."""
    model = net()
    with servers() as hosts, pt.distribute(optim.SGD(model.parameters(), 0.1), model, hosts) as optimizer:
        backward(model, batch(0))
        optimizer.step()
        change(model, optimizer)
        with pytest.raises((pt.ModelError, pt.TranslationError), match=words):
            optimizer.step()


def test_samples_below_zero_are_refused() -> None:
    model = net()
    with servers() as hosts, pt.distribute(optim.SGD(model.parameters(), 0.1), model, hosts) as optimizer:
        backward(model, batch(0))
        with pytest.raises(ValueError, match="samples: expected a number from 0, got -1"):
            optimizer.step(samples=-1)


def with_parameter(tensor: Any) -> tuple[Any, Any]:
    model = net()
    model.extra = nn.Parameter(tensor)
    return model, optim.SGD(model.parameters(), 0.1)


def groups(**second: Any) -> tuple[Any, Any]:
    model = net()
    first, last = ({"params": layer.parameters()} for layer in (model[0], model[2]))
    return model, optim.AdamW([first, {**last, **second}], lr=0.1)


def of(make: Callable[[Any], Any], model: Any = None) -> tuple[Any, Any]:
    model = model or net()
    return model, make(model.parameters())


def used() -> tuple[Any, Any]:
    model, optimizer = of(lambda p: optim.Adam(p))
    backward(model, batch(0))
    optimizer.step()
    return model, optimizer


def wrapped() -> tuple[Any, Any]:
    class DistributedDataParallel(nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

    return of(lambda p: optim.SGD(p), DistributedDataParallel(net()))


class Mine(optim.SGD):
    pass


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: with_parameter(torch.ones(2, dtype=torch.float64)), "'extra' has dtype float64"),
        (lambda: with_parameter(torch.ones(2, dtype=torch.complex64)), "'extra' has dtype complex64"),
        (lambda: with_parameter(torch.ones(2, device="meta")), "'extra' is on the device meta"),
        (lambda: of(lambda p: optim.SGD(p), nn.Sequential(nn.LazyLinear(2))), "has no shape yet"),
        (lambda: (net(), optim.SGD(net().parameters())), "4 parameters that the model does not have"),
        (lambda: of(lambda p: optim.SGD(p), net().requires_grad_(False)), "nothing is to be trained"),
        (wrapped, "wrapped in DistributedDataParallel"),
        (lambda: of(lambda p: optim.LBFGS(p)), "the servers have no LBFGS: expected one of"),
        (lambda: of(lambda p: Mine(p)), "the servers have no Mine"),
        (lambda: of(lambda p: optim.SGD(p, 0.1, 0.9, dampening=0.5)), "dampening=0.5"),
        (lambda: of(lambda p: optim.Adagrad(p, lr_decay=0.1)), "lr_decay=0.1"),
        (lambda: of(lambda p: optim.SGD(p, differentiable=True)), "differentiable=True"),
        (lambda: of(lambda p: optim.SGD(p, float("inf"))), "a learning rate of inf"),
        (lambda: groups(lr=0.2), "one learning rate for all"),
        (lambda: groups(betas=(0.5, 0.9)), "groups that differ in weight_decay only"),
        (lambda: groups(weight_decay=0.5), "expected one value, and 0"),
        (used, "has taken steps or loaded state"),
    ],
)
def test_what_servers_cannot_do_is_refused_before_any_is_asked(
    make: Callable[[], tuple[Any, Any]], words: str
) -> None:
    model, optimizer = make()
    with pytest.raises((pt.ModelError, pt.TranslationError), match=words):
        pt.distribute(optimizer, model, "127.0.0.1:1")
