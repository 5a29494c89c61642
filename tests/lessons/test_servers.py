"""The lesson in which servers are killed: with the commands of its page, but for the kill itself."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from psserver.decisions import entries
from tests.cluster.cluster import ROOT, wait_until
from tests.cluster.launched import servers
from tests.cluster.replicated_run import whole
from tests.lessons.lesson import LESSONS, commands
from tests.replay.command import ps_lab
from tests.replay.test_killed_runs import ended

GATES = 100, 200
GATED = f"""        while step in {GATES} and not os.path.exists(os.path.join(FOLDER, str(step))):
            time.sleep(0.02)
"""
pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]


def test_the_weights_of_a_run_whose_leaders_were_killed_are_those_of_one_without_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="needs the extra examples")
    shutil.copytree(LESSONS / "servers", tmp_path / "lesson")
    monkeypatch.chdir(tmp_path / "lesson")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    alone, killed, status, _, _, check, compare, _ = commands(Path("README.md").read_text(encoding="utf-8"))
    # The workers wait for the test, not for a person.
    script, pause = Path("digits.py"), "        time.sleep(SECONDS)\n"
    text = script.read_text(encoding="utf-8")
    assert pause in text
    script.write_text(text.replace(pause, GATED.replace("FOLDER", repr(str(tmp_path)))), encoding="utf-8")
    out = Path("runs/two").resolve()
    command = [sys.executable, "-m", "pslab", *killed.split()[1:], "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launcher:
        try:
            for gate in GATES:
                wait_until(lambda at=gate: whole(out, at), "two copies")
                assert "in sync" in ps_lab(*status.split()[1:]).out
                servers(launcher.pid, out / "decisions.jsonl")[0].send_signal(signal.SIGKILL)
                (tmp_path / str(gate)).touch()
            ended(launcher)
        finally:
            launcher.kill()
    assert ps_lab(*alone.split()[1:], "--quiet").code == 0
    assert ps_lab(*check.split()[1:]).code == 0 and ps_lab(*compare.split()[1:]).code == 0
    first, second = Run(Path("runs/one")), Run(out)
    assert first.summary.weights_sha256 == second.summary.weights_sha256 is not None
    facts = [entry.fact for entry in second.decisions()]
    assert not [fact for fact in facts if isinstance(fact, entries.Restore)]
    assert sum(isinstance(fact, entries.Apply) for fact in facts) == 300
    assert len(list(out.glob("decisions.before-epoch-*.jsonl"))) == 2
