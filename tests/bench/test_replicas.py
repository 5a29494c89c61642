"""`scripts/bench replicas`: rows of jobs whose processes have hosts of their own."""

import re

import pytest
from click.testing import CliRunner

from benchmarks import replicas, replicas_hosts
from benchmarks.links import network


def test_a_rate_needs_a_unit() -> None:
    done = CliRunner().invoke(replicas.main, ["--hosts", "10gbit,100"])
    assert done.exit_code == 2 and "expected a rate such as 100mbit or 1gbit, got '100'" in done.output


@pytest.mark.cluster
def test_each_process_of_both_jobs_has_its_cpu_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reason = network.reason_against()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(replicas_hosts, "PAIRS", ((1, 2),))
    monkeypatch.setattr(replicas, "LARGE", 0.26)
    done = CliRunner().invoke(replicas.main, ["--hosts", "1gbit", "--rounds", "2", "--seconds", "0.1"])
    assert done.exit_code == 0, done.output
    title, _, alone, copied, _ = done.output.splitlines()
    assert title.startswith("0.26 MB over links of 1gbit: 4 ms")
    assert re.fullmatch(r" +1 +alone +[\d.]+ +\d+   worker: \d+, 0: \d+", alone), alone
    assert re.fullmatch(
        r" +2 replicas +[\d.]+ +[\d.]+ \([\d.]+ to [\d.]+\) +\d+   worker: \d+, 0: \d+, 1: \d+", copied
    ), copied
