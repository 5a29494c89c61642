"""A policy that is meant for some optimizer says so when it gets another one."""

from pathlib import Path

import pytest

from psserver.optimizers import build as build_optimizer
from psserver.policies import advice
from psserver.policies.builtin import BUILTIN
from tests.replay.command import ps_lab


@pytest.mark.parametrize("name", [name for name, entry in BUILTIN.items() if entry.optimizer])
def test_what_an_entry_is_meant_for_exists_and_needs_no_advice(name: str) -> None:
    meant = BUILTIN[name].optimizer
    assert advice(name, build_optimizer(meant).config) is None


def test_a_default_counts_as_said() -> None:
    """Nesterov's momentum is 0.9 unless something else is said."""
    assert advice("diloco", build_optimizer({"name": "nesterov", "learning_rate": 0.7}).config) is None


def test_another_optimizer_is_told_with_what_differs() -> None:
    said = advice("local-sgd", build_optimizer({"name": "adam", "learning_rate": 1.0}).config)
    expected = (
        "policy local-sgd is meant for [optimizer] name = sgd, learning_rate = 1.0; this job has name = adam"
    )
    assert said == expected


@pytest.mark.parametrize("name", ["sync", "my_policies:Own"])
def test_policies_that_do_not_care(name: str) -> None:
    assert advice(name, build_optimizer({"name": "adam"}).config) is None


def test_ps_lab_run_says_it_too(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(
        '[policy]\nname = "easgd"\n[simulation]\nproblem = "quadratic"\ncompute = "constant(1)"\n'
    )
    out = ("--engine", "simulated", "--out", tmp_path / "run")
    said = ps_lab("run", file, *out)
    assert said.code == 0 and "note: policy easgd is meant for [optimizer] name = sgd" in said.err
    file.write_text(file.read_text() + "[optimizer]\nlearning_rate = 1.0\n")
    assert "note:" not in ps_lab("run", file, *out, "--force").err
