"""`ps-lab list policies`: all of them in brief, and one of them explained; `list optimizers` likewise."""

import json

import pytest
from click.testing import CliRunner, Result

from pslab.cli import cli
from pslab.commands.failure import Failure
from pslab.runs.labels import policy_label
from psserver import optimizers
from psserver.policies import names
from psserver.policies.builtin import BUILTIN
from pswire.knobs import knobs_of


def ps_lab(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def text(result: Result) -> str:
    """Without the borders and line ends of tables."""
    return " ".join(result.output.replace("│", " ").split())


def test_all_of_them_in_brief() -> None:
    result = ps_lab("list", "policies")
    assert result.exit_code == 0
    for name in names():
        assert f"{name} " in result.output
    assert "Begin here." in text(result)


@pytest.mark.parametrize("name", names())
def test_one_explained(name: str) -> None:
    result = ps_lab("list", "policies", name)
    assert result.exit_code == 0
    entry, shown = BUILTIN[name], text(result)
    assert shown.startswith(f"{name}: ")
    for fact in (
        entry.use_when,
        entry.guarantee,
        entry.source,
        entry.cost.stores,
        entry.cost.work,
        entry.cost.waste,
    ):
        assert fact in shown
    for knob in knobs_of(entry):
        assert knob.name in shown
    for key in entry.optimizer:
        assert f"{key} = " in shown
    if not knobs_of(entry):
        assert "no knobs" in shown


def test_defaults_stand_as_in_an_experiment_file() -> None:
    assert '"polynomial"' in ps_lab("list", "policies", "fedbuff").output
    assert " false " in ps_lab("list", "policies", "ringmaster").output


def test_as_json() -> None:
    lines = ps_lab("list", "policies", "--json").output.splitlines()
    assert [json.loads(line)["name"] for line in lines] == list(names())
    (line,) = ps_lab("list", "policies", "ringmaster", "--json").output.splitlines()
    facts = json.loads(line)
    threshold = {"default": 4, "type": "integer", "at_least": 1, "range": ">= 1"}
    assert facts["knobs"]["threshold"].items() >= threshold.items()
    assert set(facts) == {"name", "rule", "use_when", "guarantee", "source", "cost", "optimizer", "knobs"}


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["list", "policies", "ringmster"], standalone_mode=False)
    assert isinstance(result.exception, Failure)
    assert 'did you mean "ringmaster"?' in str(result.exception)


def test_runs_are_told_apart_by_the_knobs_that_were_set() -> None:
    assert policy_label({"name": "k-sync", "aggregate": 2, "late": "cancel"}) == "k-sync"
    assert (
        policy_label({"name": "k-sync", "aggregate": 4, "late": "drop"}) == "k-sync (aggregate 4, late drop)"
    )
    assert policy_label({"name": "mine:Own", "size": 3}) == "mine:Own"


def test_optimizers_in_brief_and_one_explained() -> None:
    brief = text(ps_lab("list", "optimizers"))
    for name in (*optimizers.names(), *optimizers.schedule_names()):
        assert f" {name} " in brief, name
    shown = text(ps_lab("list", "optimizers", "adam"))
    assert shown.startswith("adam: Steps scaled by running means")
    assert "beta_1 0.9 a number >= 0 and < 1 decay of the running mean of gradients" in shown
    assert "decay_steps required" in text(ps_lab("list", "optimizers", "cosine"))


def test_optimizers_as_json() -> None:
    lines = [json.loads(line) for line in ps_lab("list", "optimizers", "--json").output.splitlines()]
    assert [line["name"] for line in lines] == [*optimizers.names(), *optimizers.schedule_names()]
    (line,) = ps_lab("list", "optimizers", "rmsprop", "--json").output.splitlines()
    assert json.loads(line)["knobs"]["rho"] == {
        **{"default": 0.9, "type": "number", "at_least": 0, "below": 1, "range": ">= 0 and < 1"},
        "meaning": "decay of the running means",
    }


def test_an_unknown_optimizer_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["list", "optimizers", "adm"], standalone_mode=False)
    assert isinstance(result.exception, Failure) and 'did you mean "adam"?' in str(result.exception)
