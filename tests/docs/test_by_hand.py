"""What the documents show with servers and workers runs as it is shown, on a port that the system chooses."""

import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from psserver import policies
from psserver.policies import Apply, Commit, Grant, Join, Ready
from pswire.exits import ExitCode
from tests import patience
from tests.docs.markdown import ROOT, named
from tests.forking.popen import forking

POLICY, LOOP, START = "docs/guides/policy.md", "docs/guides/loop.md", "docs/start.md"
# The address that the page names; tests let the system choose a port.
ADDRESS = "127.0.0.1:7070"
# How long a command may say nothing, in seconds: TensorFlow is loaded by some, on two busy cores.
PATIENCE = 4 * patience.PATIENCE


def test_a_policy_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fresh gradients make an update; one that is a version old then weighs 1/sqrt(2) of a half."""
    (tmp_path / "my_policies.py").write_text(named(POLICY, "my_policies.py"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    policy = policies.build("my_policies:Buffered", {"size": 2}, workers=3)
    for rank in range(3):
        policy.step(Join(f"w{rank}", rank))
        assert policy.step(Ready(f"w{rank}", rank)) == [Grant(f"w{rank}", rank)]

    def commit(worker: int, ticket: int) -> list[Apply]:
        decisions = policy.step(Commit(f"w{worker}", ticket, samples=1, loss=0.0, norm=0.0))
        return [decision for decision in decisions if isinstance(decision, Apply)]

    assert commit(0, 0) == []
    [first] = commit(1, 1)
    assert ([part.factor for part in first.parts], first.scale) == ([1.0, 1.0], 0.5)
    policy.step(Ready("w0", 3))
    assert commit(2, 2) == []
    [second] = commit(0, 3)
    assert [part.factor for part in second.parts] == [2**-0.5, 1.0]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("page", "options", "samples"),
    [("docs/guides/job.md", {"batch_size": 64}, 64), ("README.md", {}, 32)],
    ids=["guide", "readme"],
)
def test_a_job_of_your_own(page: str, options: dict[str, object], samples: int, tmp_path: Path) -> None:
    from pswire.model.plan import make_plan
    from psworker.job import load_job
    from psworker.keras.jobs.trainer import JobTrainer

    path = tmp_path / "my_job.py"
    path.write_text(named(page, "my_job.py"), encoding="utf-8")
    trainer = JobTrainer(load_job(f"{path}:MyJob", options), device="cpu", deterministic=False)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    trainer.attach(plan)
    flats = plan.scatter([values for _, values in trainer.specs])
    batches = list(trainer.batches(1, 3, 0, epochs=1))
    result = trainer.step(flats, batches[0][1])
    assert (len(batches), result.samples) == (-(-599 // samples), samples)  # 1,797 images / 3 workers
    assert 1.5 < result.loss < 3.5  # about ln 10


@contextmanager
def started(command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command of the page as a process in `folder`, killed if it is still there at the end."""
    program, *arguments = shlex.split(command)
    binary = Path(sys.executable).parent / program
    process = subprocess.Popen(
        [binary if binary.exists() else program, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def serving(command: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A ps-server of the page on a free port: the process, its address, and what it says, line by line."""
    with started(command.replace(ADDRESS, "127.0.0.1:0"), folder) as server:
        assert server.stdout is not None
        said = [server.stdout.readline()]
        found = re.search(r"is ready at (\S+)", said[0])
        assert found, said[0] + server.stdout.read()
        # Its output is read all the time: a full pipe would stop it.
        reader = threading.Thread(target=lambda: said.extend(server.stdout or ()), daemon=True)
        reader.start()
        try:
            yield server, found[1], said
            server.wait(PATIENCE)
            reader.join(PATIENCE)
        except BaseException:
            print("the server said:", *said, sep="\n")
            raise


def finished(process: subprocess.Popen[str]) -> str:
    """What it said. However long it takes: it goes on as long as it says something."""
    assert process.stdout is not None
    said, silent = [], False

    def kill() -> None:
        nonlocal silent
        silent = True
        process.kill()

    while True:
        late = threading.Timer(PATIENCE, kill)
        late.start()
        line = process.stdout.readline()
        late.cancel()
        if not line:
            break
        said.append(line)
    assert not silent, f"{process.args!r} said nothing for {PATIENCE:g} s, and before that:\n{''.join(said)}"
    assert process.wait(PATIENCE) == ExitCode.OK, said
    return "".join(said)


@pytest.mark.cluster
@pytest.mark.tensorflow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("page", "steps", "metric", "forks"),
    [
        pytest.param(START, 690, "accuracy 0.9", True, id="start"),
        pytest.param(START, 690, "accuracy 0.9", False, id="from nothing", marks=pytest.mark.nightly),
        pytest.param("README.md", 290, "", True, id="readme", marks=pytest.mark.nightly),
    ],
)
def test_three_terminals_by_hand(page: str, steps: int, metric: str, forks: bool, tmp_path: Path) -> None:
    """As a reader types it; `forks`: by processes that need not load TensorFlow."""
    with forking() if forks else nullcontext():
        by_hand(page, steps, metric, tmp_path)


def by_hand(page: str, steps: int, metric: str, tmp_path: Path) -> None:
    folder = ROOT
    if page == "README.md":
        folder = tmp_path
        (tmp_path / "my_job.py").write_text(named(page, "my_job.py"), encoding="utf-8")
    runs = str(tmp_path / "by-hand")
    with serving(named(page, "by hand, server").replace("runs/by-hand", runs), folder) as (
        server,
        address,
        said,
    ):
        worker = named(page, "by hand, worker").replace(ADDRESS, address)
        with started(worker, folder) as second:
            # The job waits for its second worker: it is there to be asked.
            if page == START:
                with started(named(page, "by hand, status").replace(ADDRESS, address), folder) as status:
                    assert re.match(r"sync, adam: ", finished(status))
            with started(worker, folder) as third:
                ends = [finished(second), finished(third)]
    assert server.returncode == ExitCode.OK, "".join(said)
    assert any(metric in end for end in ends), ends
    assert all(
        f"finished after {steps} steps, version {steps}: all workers are done" in end for end in ends
    ), ends
    with started(named(page, "by hand, check").replace("runs/by-hand", runs), folder) as check:
        assert "all checks passed" in finished(check)


@pytest.mark.cluster
def test_a_simulation_of_a_policy_of_your_own(tmp_path: Path) -> None:
    """The installed command, unlike ``python -m pslab``, does not have the folder where it is called on its path."""
    (tmp_path / "my_policies.py").write_text(named(POLICY, "my_policies.py"), encoding="utf-8")
    (tmp_path / "experiment.toml").write_text("[simulation]\nbatches = 4\n", encoding="utf-8")
    command = "ps-lab run experiment.toml --engine simulated --set policy.name=my_policies:Buffered"
    with started(command, tmp_path) as lab:
        said = finished(lab).splitlines()
        assert said[0].endswith("is your own code") and said[1].startswith("done: 4 versions")


@pytest.mark.cluster
def test_a_loop_of_your_own_under_a_policy_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "my_policies.py").write_text(named(POLICY, "my_policies.py"), encoding="utf-8")
    with forking(), serving(named(POLICY, "my policy"), tmp_path) as (server, address, said):
        loop_file = tmp_path / "my_loop.py"
        loop_file.write_text(named(LOOP, "my_loop.py").replace(ADDRESS, address), encoding="utf-8")
        with started(f"{sys.executable} my_loop.py", tmp_path) as loop:
            end = finished(loop)
    assert server.returncode == ExitCode.OK, "".join(said)
    assert "all workers are done 200 {'applied': 200}" in end, end
