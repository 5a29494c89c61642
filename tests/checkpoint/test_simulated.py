"""Jobs that are cut off and go on: on a virtual clock, with the servers' own checkpoints, logs and shards."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pslab.check.checker import check_run
from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from psserver.checkpoint import Store
from psserver.decisions import entries as e
from psserver.optimizers import build
from psserver.optimizers import names as optimizer_names
from psserver.policies import names as policy_names
from tests.repetitions import usually
from tests.replay.command import ps_lab
from tests.replay.simulated import document

# Policies whose workers remember something between two contributions.
REMEMBERING = {"dana-slim", "diloco", "easgd"}
EVERY = {"checkpoint_every": "4 versions", "seed": 3, "name": "test", "keep": 99}


def play(folder: Path, policy: str, resume_from: str | None = None, **sections: Any) -> Run:
    knobs = sections.pop("knobs", {})
    sections = {"run": EVERY, **sections}
    experiment = Experiment.parse(document(policy, knobs, **sections), "test")
    finished = run_simulated(experiment, out=folder, quiet=True, resume_from=resume_from)
    assert finished.result.ok, finished.result
    assert finished.result.warnings == ()
    return Run(finished.folder)


def cut_off(run: Run, folder: Path, share: float) -> Path:
    """What a `kill -9` leaves: a part of the log, and the checkpoints whose entries are in it."""
    shutil.copytree(run.path, folder)
    for name in ("summary.json", "weights.safetensors"):
        (folder / name).unlink()
    whole = (folder / "decisions.jsonl").read_bytes()
    part = whole[: int(len(whole) * share)]
    (folder / "decisions.jsonl").write_bytes(part)
    entries = part.count(b"\n")
    store = Store(folder / "checkpoints")
    for name in store.names():
        if store.manifest(name).entry >= entries:
            shutil.rmtree(store.root / name)
    return folder


def batches(run: Run) -> Counter[tuple[str, int]]:
    """How often each batch of each worker was committed."""
    commits = [entry.fact for entry in run.decisions() if isinstance(entry.fact, e.Commit)]
    return Counter((commit.worker, commit.batch) for commit in commits)


def forgotten(run: Run) -> set[tuple[str, ...]]:
    """What the workers that join behind a restore are said to have lost, of those that had committed."""
    restored, committed, found = False, set(), set()
    for entry in run.decisions():
        match entry.fact:
            case e.Commit(worker):
                committed.add(worker)
            case e.Restore():
                restored = True
            case e.Join(worker) as join if restored and worker in committed:
                found.add(join.forgets)
            case _:
                pass
    return found


def kinds(run: Run) -> Counter[str]:
    return Counter(entry.kind for entry in run.decisions())


# Of elements and of whole variables; tests/state saves and restores all of them.
@pytest.mark.parametrize("optimizer", usually(["adam", "lamb"], soak=list(optimizer_names())))
def test_a_barrier_that_is_cut_off_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, optimizer: str
) -> None:
    """Under every optimizer, and on 2, then 3, then 1 servers; on 1 where no variable may be split."""
    settings: dict[str, Any] = {"optimizer": {"name": optimizer}}
    servers, more = (1, 1) if build({"name": optimizer}).whole else (2, 3)
    run = play(tmp_path / "whole", "sync", cluster={"servers": servers}, **settings)
    first = cut_off(run, tmp_path / "first", 0.5)
    again = play(first, "sync", "latest", cluster={"servers": more}, **settings)
    assert again.summary.weights_sha256 == run.summary.weights_sha256
    assert again.summary.versions == run.summary.versions and again.summary.servers == more
    assert batches(again) == batches(run)
    second = cut_off(again, tmp_path / "second", 0.8)
    last = play(second, "sync", "latest", cluster={"servers": 1}, **settings)
    assert last.summary.weights_sha256 == run.summary.weights_sha256
    assert batches(last) == batches(run)
    assert kinds(last)["restore"] == 2 and set(batches(last).values()) == {1}
    assert check_run(last).violations == ()


# Workers that remember something, and that remember nothing; tests/world loses servers under most of them.
@pytest.mark.parametrize("policy", usually(["bounded", "diloco"], soak=list(policy_names())))
def test_every_policy_goes_on_in_order(tmp_path: Path, policy: str) -> None:
    """The log passes the check, and is replayed to the bit across the resume."""
    alone: Mapping[str, Any] = {"cluster": {"servers": 1}} if policy == "krum" else {}
    often = {"run": {**EVERY, "checkpoint_every": "1 version"}}
    run = play(tmp_path / "whole", policy, **often, **alone)
    again = play(
        cut_off(run, tmp_path / "again", 0.9 if policy == "diloco" else 0.6),
        policy,
        "latest",
        **often,
        **alone,
    )
    assert kinds(again)["restore"] == 1
    assert forgotten(again) == ({("local rule",)} if policy in REMEMBERING else {()})
    verdict = check_run(again)
    assert verdict.violations == ()
    assert again.summary.versions > 0 and again.summary.success
    done = ps_lab("replay", again.path, "--json")
    assert done.code == 0 and done.lines[0]["equal"] is True, done


def test_what_was_behind_the_checkpoint_is_put_aside(tmp_path: Path) -> None:
    run = play(tmp_path / "whole", "async")
    before = [entry.record for entry in run.decisions()]
    folder = cut_off(run, tmp_path / "again", 0.6)
    had = (folder / "decisions.jsonl").read_text()
    again = play(folder, "async", "latest")
    entries = list(again.decisions())
    resume = next(entry for entry in entries if isinstance(entry.fact, e.Restore))
    assert isinstance(resume.fact, e.Restore)
    assert [entry.record for entry in entries[: resume.i]] == before[: resume.i]
    (aside,) = folder.glob("decisions.void-*.jsonl")
    assert aside.name == f"decisions.void-{resume.i}.jsonl"
    kept = "".join((folder / "decisions.jsonl").read_text().splitlines(keepends=True)[: resume.i])
    assert kept + aside.read_text() == had
    assert resume.fact.rolled_back == had.count("\n") - resume.i
    # Time goes on from the checkpoint.
    assert resume.t == entries[resume.i - 1].t


def test_damaged_checkpoints_are_passed_over_and_none_left_is_refused(tmp_path: Path) -> None:
    run = play(tmp_path / "whole", "async")
    folder = cut_off(run, tmp_path / "again", 0.7)
    store = Store(folder / "checkpoints")
    names = store.names()
    assert len(names) >= 2
    (store.root / names[-1] / "server-1.safetensors").write_bytes(b"")
    listed = ps_lab("checkpoints", folder)
    assert listed.code == 9 and "server-1.safetensors: expected" in listed.out
    version = store.manifest(names[-2]).version
    again = play(folder, "async", "latest")
    resumed = [entry.fact for entry in again.decisions() if isinstance(entry.fact, e.Restore)]
    assert [fact.version for fact in resumed] == [version]
    for path in (folder / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    experiment = tmp_path / "e.toml"
    experiment.write_text((folder / "experiment.toml").read_text())
    said = ps_lab("run", experiment, "--engine", "simulated", "--out", folder, "--resume", "latest")
    assert said.code == 2 and "there is no checkpoint to go on from" in said.err
    assert "it was not written to its end" in said.err


def test_a_run_that_ended_goes_on(tmp_path: Path) -> None:
    """As one that was to make so many versions from the beginning."""
    run = play(tmp_path / "run", "sync", run={**EVERY, "versions": 9})
    assert kinds(run)["checkpoint"] == 3 and [entry.kind for entry in run.decisions()].index("stop") > 0
    again = play(run.path, "sync", "latest", run={**EVERY, "versions": 17})
    whole = play(tmp_path / "whole", "sync", run={**EVERY, "versions": 17})
    assert again.summary.weights_sha256 == whole.summary.weights_sha256
    assert check_run(again).violations == ()


def test_old_checkpoints_are_removed(tmp_path: Path) -> None:
    run = play(tmp_path / "run", "sync", run={**EVERY, "keep": 2})
    store = Store(run.path / "checkpoints")
    assert [store.verify(name).version for name in store.names()] == sorted(
        entry.fact.version for entry in run.decisions() if isinstance(entry.fact, e.Checkpoint)
    )[-2:]
    assert ps_lab("checkpoints", run.path).code == 0


def test_seconds(tmp_path: Path) -> None:
    """Only a new version is worth one."""
    run = play(tmp_path / "run", "async", run={**EVERY, "checkpoint_every": "2.5s", "keep": 99})
    at = [entry.t for entry in run.decisions() if entry.kind == "checkpoint"]
    assert len(at) > 3 and all(later - before >= 2.5 for before, later in zip(at, at[1:-1], strict=False))
