"""A simulation that makes no version, or drops most of what was computed, says why."""

from pathlib import Path

from pslab.display.outcome import outcome_text
from pslab.experiment import Experiment
from pslab.launch.simulated import UNKNOWN, run_simulated
from psserver.policies import Commit, Decision, Drop, Event, Grant, Policy, Ready, Waiting
from pswire.exits import ExitCode


class ByNorm(Policy):
    """Applies nothing whose norm it does not know."""

    def __init__(self, *, workers: int) -> None:
        pass

    def step(self, event: Event) -> list[Decision]:
        match event:
            case Ready(worker, ticket):
                return [Grant(worker, ticket)]
            case Commit(_, ticket):
                return [Drop(ticket, "no norm")]
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None


def test_a_simulation_of_time_without_versions_fails_and_names_loss_and_norm(tmp_path: Path) -> None:
    document = {
        "policy": {"name": f"{__name__}:ByNorm"},
        "cluster": {"workers": 2},
        "simulation": {"problem": "none", "batches": 3, "compute": "constant(1)"},
    }
    done = run_simulated(Experiment.parse(document, "a test"), out=tmp_path / "run", quiet=True)
    assert done.result.verdict.code == ExitCode.MISSING
    assert UNKNOWN in done.result.verdict.reason


def test_a_default_that_drops_most_contributions_is_named(tmp_path: Path) -> None:
    document = {
        "policy": {"name": "bounded"},
        "cluster": {"workers": 50},
        "run": {"versions": 200},
        "simulation": {"problem": "none", "compute": "exponential(1)"},
    }
    done = run_simulated(Experiment.parse(document, "a test"), out=tmp_path / "run", quiet=True)
    assert "policy.max_staleness is 4, its default" in outcome_text(done).plain
    roomy = {**document, "policy": {"name": "bounded", "max_staleness": 400}}
    done = run_simulated(Experiment.parse(roomy, "a test"), out=tmp_path / "roomy", quiet=True)
    assert "dropped as too old" not in outcome_text(done).plain
