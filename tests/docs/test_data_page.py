"""What the pages show of work units runs as it is shown."""

import sys
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from tests.docs.markdown import named
from tests.docs.test_by_hand import ADDRESS, finished, serving, started

JOB, LOOP = "docs/guides/job.md", "docs/guides/loop.md"
SERVER = f"ps-server --ps-hosts {ADDRESS} --workers 2 --learning-rate 0.05 --out run --policy async"


@pytest.mark.cluster
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_a_job_whose_data_is_dealt(tmp_path: Path) -> None:
    """1,797 images in 57 batches, for two epochs."""
    (tmp_path / "dealt_job.py").write_text(named(JOB, "dealt_job.py"), encoding="utf-8")
    with serving(SERVER, tmp_path) as (server, address, said):
        worker = f"ps-worker --ps-hosts {address} --job dealt_job.py:Dealt --epochs 2 --device cpu"
        with started(worker, tmp_path) as one, started(worker, tmp_path) as other:
            ends = [finished(one), finished(other)]
    assert server.returncode == ExitCode.OK, "".join(said)
    assert all("version 114: all work units are done" in end for end in ends), ends
    run = Run(tmp_path / "run")
    verdict = check_run(run)
    assert verdict.ok, verdict.violations
    samples = [entry.fact.samples for entry in run.decisions() if entry.kind == "commit"]  # type: ignore[union-attr]
    assert sum(samples) == 2 * 1797


@pytest.mark.cluster
def test_a_loop_whose_data_is_dealt(tmp_path: Path) -> None:
    path = tmp_path / "dealt_loop.py"
    with serving(SERVER, tmp_path) as (server, address, said):
        path.write_text(named(LOOP, "dealt_loop.py").replace(ADDRESS, address), encoding="utf-8")
        loop = f"{sys.executable} dealt_loop.py"
        with started(loop, tmp_path) as one, started(loop, tmp_path) as other:
            ends = [finished(one), finished(other)]
    assert server.returncode == ExitCode.OK, "".join(said)
    assert ends == ["all work units are done 160\n"] * 2
