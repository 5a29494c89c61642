"""`--resume NAME`: a job goes back to an older checkpoint, and what is newer becomes void."""

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.checkpoint import CheckpointError, Store
from psserver.options import Options
from tests.service.peer import Peer
from tests.service.serving import Served, serving, wait_until

EVERY = ["run.checkpoint_every=1 version", "optimizer.name=adam", "optimizer.learning_rate=0.1"]


def trained(out: Path, steps: int, *, resume: str | None = None, servers: int = 2, keep: int = 99) -> Run:
    """Behind so many steps of one worker, each of which is saved."""
    overrides = [*EVERY, f"run.keep={keep}"]
    store = Store(out / "checkpoints")
    with serving(servers, policy="sync", out=out, shared=True, resume=resume, overrides=overrides) as cluster:
        with Peer(cluster, "w0") as peer:
            if resume in store.names():
                # Epochs count from there, or the first one would seem as long as the job so far.
                job = cluster.servers[0].probe.job
                assert job.epochs._sums._ended >= store.manifest(resume).t > 0
            for _ in range(steps):
                version = peer.step().version
                wait_until(partial(is_saved, store, peer.job, version), f"version {version} to be saved")
    run = Run(out)
    assert check_run(run).violations == ()
    return run


def is_saved(store: Store, job: str, version: int) -> bool:
    for name in reversed(store.names()):
        # One that is being written, or removed.
        with suppress(CheckpointError):
            about = store.manifest(name)
            if (about.job, about.version) == (job, version):
                return True
    return False


def test_an_unknown_name_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 2)
    before = (run.path / "decisions.jsonl").read_bytes()
    names = Store(run.path / "checkpoints").names()
    options = Options(ps_hosts="127.0.0.1:0", out=run.path, resume="0000000007-nonesuch", overrides=EVERY)
    words = f"there is no checkpoint of the name 0000000007-nonesuch: expected one of {', '.join(names)}$"
    with pytest.raises(AssertionError) as caught:
        Served(options)
    assert isinstance(caught.value.args[0], CheckpointError)
    assert caught.match(words)
    assert (run.path / "decisions.jsonl").read_bytes() == before
