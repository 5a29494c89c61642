"""What ps-server refuses before it serves: in a sentence that names the mistake, and with an exit code of its own."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from psserver.checkpoint import Store
from pswire.exits import ExitCode
from tests.checkpoint.written import write
from tests.cluster.cluster import ROOT
from tests.forking.popen import AT_START
from tests.sentences import Recorder
from tests.service.serving import PATIENCE

ALONE = ("--ps-hosts", "127.0.0.1:0", "--json")


def say(cases: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    """(exit code, standard output, standard error) of each command line."""
    # Nothing of the environment but what is read when modules are loaded.
    loading = {
        name: value for name, value in os.environ.items() if name.startswith(AT_START) and name != "TF_CONFIG"
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("refusing.py")), json.dumps(cases)],
        cwd=ROOT,
        env={**loading, "PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    # Neither a traceback, nor a word of gRPC's own.
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]  # type: ignore[misc]


def test_help_and_version() -> None:
    (code, text, _), (version_code, version_text, _) = say([["--help"], ["--version"]])
    assert (code, version_code) == (0, 0)
    assert version_text == f"ps-server, version {version('paramserver')}\n"
    assert "ps-server --ps-hosts localhost:7070,localhost:7071 --task-index 0" in text
    for exit_code in ExitCode:
        assert f"{int(exit_code):>5}  {exit_code.meaning}" in text
    for option in (
        "--ps-hosts",
        "--task-index",
        "--bind",
        "--config",
        "--policy",
        "--set",
        "--out",
        "--resume",
    ):
        assert option in text


CONFIG = """
[cluster]
serversx = 2
[polcy]
name = "sync"
"""

# Options, and what standard error must hold besides exit code 2.
USAGE: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], ["expected --ps-hosts host:port,... (or TF_CONFIG in the environment), got neither"]),
    "an unknown option": ([*ALONE, "--polcy", "sync"], ["--polcy", "--policy"]),
    "an unknown knob": (
        [*ALONE, "--policy", "bounded", "--set", "policy.max_stalenes=2"],
        ["policy bounded has no knob 'max_stalenes'", 'did you mean "max_staleness"'],
    ),
    "an unknown optimizer": ([*ALONE, "--optimizer", "adm"], ["adm", "adam"]),
    "a K larger than the number of workers": (
        [*ALONE, "--workers", "2", "--policy", "bounded", "--set", "policy.aggregate=5"],
        ["policy bounded: aggregate must be", "<= workers (2), got 5"],
    ),
    "a timeout of months": ([*ALONE, "--worker-timeout", "1e7"], ["--worker-timeout", "10000000"]),
    "a file without an end": ([*ALONE, "--config", "/dev/zero"], ["/dev/zero: expected at most 1048576"]),
    "no address": (["--ps-hosts", "localhost"], ["expected host:port, got 'localhost'"]),
    "auto without a scheduler": (
        ["--ps-hosts", "a:1,b:1", "--task-index", "auto"],
        ["--task-index auto: expected one of TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or VC_TASK_INDEX"],
    ),
    "which of two": (["--ps-hosts", "a:1,b:1"], ["lists 2 servers: expected --task-index from 0 to 1"]),
    "a public address": (
        ["--ps-hosts", "192.0.2.7:7070"],
        ["the address 192.0.2.7:7070", "add --bind 192.0.2.7", "with --tls-ca", "or with --insecure"],
    ),
    "no checkpoint to keep": (
        [*ALONE, "--keep", "0"],
        ["--keep: expected a whole number from 1 to 9007199254740991, got 0"],
    ),
    "now and then": (
        [*ALONE, "--checkpoint-every", "5m"],
        ['--checkpoint-every: expected "500 versions" or "30 s", or another number, got \'5m\'\n'],
    ),
    "resumed nowhere": ([*ALONE, "--resume", "latest"], ["--resume", "expected --out RUN"]),
    "one buffer": ([*ALONE, "--arena-versions", "1"], ["--arena-versions", "2"]),
    "a folder and none": ([*ALONE, "--no-out", "--out", "x"], ["--out and --no-out exclude each other"]),
    "seconds and no folder": (
        [*ALONE, "--no-out", "--checkpoint-every", "5s"],
        ["--checkpoint-every keeps what a run made"],
    ),
    "a rescue and no folder": ([*ALONE, "--no-out", "--rescue", "x"], ["--rescue keeps what a run made"]),
    # The last one: the environment stays.
    "a worker's environment": (
        [
            "TF_CONFIG",
            '{"cluster": {"ps": ["h:1"], "worker": ["h:2"]}, "task": {"type": "worker", "index": 0}}',
        ],
        ["TF_CONFIG: task.type: expected ps for a ps-server, got worker"],
    ),
}


def test_wrong_options_are_refused_with_the_nearest_right_one() -> None:
    for name, (code, out, err) in zip(USAGE, say([options for options, _ in USAGE.values()]), strict=True):
        assert code == ExitCode.USAGE, (name, code, err)
        assert out == "", name
        assert "Traceback" not in err, name
        for word in USAGE[name][1]:
            assert word in err, (name, err)


def test_a_wrong_file_is_refused_with_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(CONFIG)
    fine = tmp_path / "fine.toml"
    fine.write_text("[cluster]\nservers = 2\n")
    torn = tmp_path / "torn.toml"
    torn.write_text("[cluster\n")
    results = say([[*ALONE, "--config", str(p)] for p in (path, fine, torn)])
    assert [code for code, _, _ in results] == [ExitCode.USAGE] * 3
    wrong, mismatch, broken = (err for _, _, err in results)
    for word in (
        str(path),
        "2 problems",
        "cluster.serversx",
        'did you mean "servers"',
        "polcy",
        'did you mean "policy"',
    ):
        assert word in wrong, wrong
    assert "says cluster.servers = 2, but there are 1 addresses in --ps-hosts" in mismatch
    assert f"{torn}: expected TOML" in broken


def test_an_address_that_cannot_be_listened_on_is_named() -> None:
    # For documentation only (RFC 5737): no machine has it.
    place = "192.0.2.1"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = say(
            [
                ["--no-out", "--ps-hosts", f"127.0.0.1:{port}"],
                ["--no-out", "--ps-hosts", f"{place}:0", "--bind", place, "--insecure"],
                ["--no-out", *ALONE, "--data-port", str(port)],
            ]
        )
    assert [code for code, _, _ in found] == [ExitCode.ADDRESS_IN_USE] * 3
    used, foreign, data = (err.splitlines() for _, _, err in found)
    assert used == [f"ps-server: cannot listen on 127.0.0.1:{port}: is another process using it?"]
    assert len(foreign) == 1 and foreign[0].startswith(f"ps-server: cannot listen on {place}:0: ")
    assert "Cannot assign requested address" in foreign[0]
    assert data[-1].startswith(
        f"ps-server: --data-port: cannot listen on 127.0.0.1:{port}: Address already in use"
    )


# Run folders. A supervisor reads no sentences: each kind has a code of its own.

# Where another folder has the name of a file, nobody can write it, not even root.
TAKEN = {
    "checkpoints/generation.part": "checkpoints/generation cannot be written: Is a directory",
    "checkpoints/.lock": "checkpoints: cannot be written to: Is a directory",
    "decisions.jsonl": "decisions.jsonl cannot be written: Is a directory",
    "metrics.jsonl": "metrics.jsonl cannot be written: Is a directory",
    "address.part": "address cannot be written: Is a directory",
}


def in_folder(folder: Path, *options: str) -> list[str]:
    return [*ALONE, "--out", str(folder), *options]


def test_a_folder_that_takes_nothing_has_a_code_of_its_own(tmp_path: Path) -> None:
    for number, name in enumerate(TAKEN):
        (tmp_path / str(number) / name).mkdir(parents=True)
    found = say([in_folder(tmp_path / str(number), "--resume", "auto") for number in range(len(TAKEN))])
    for number, ((code, _, err), words) in enumerate(zip(found, TAKEN.values(), strict=True)):
        assert code == ExitCode.STORAGE, words
        assert err.splitlines()[-1] == f"ps-server: {tmp_path / str(number)}/{words}"
    ((code, _, err),) = say([in_folder(Path("/proc/run"))])
    assert code == ExitCode.USAGE
    assert err.splitlines()[-1].startswith("ps-server: --out /proc/run: cannot be written to: ")


def test_a_former_run_is_never_overwritten(tmp_path: Path, sentences: Recorder) -> None:
    """A mistyped --out must not cost a finished run, nor its checkpoints, which would count among those that are kept;
    a mistyped --resume makes no folder."""
    run, saved = tmp_path / "run", tmp_path / "saved"
    run.mkdir()
    (run / "decisions.jsonl").write_text("a log")
    write(Store(saved / "checkpoints"), 10)
    given = (
        in_folder(run),
        in_folder(saved, "--checkpoint-every", "5 versions"),
        in_folder(tmp_path / "x", "--resume", "latest"),
    )
    (code, _, held), (code_2, _, former), (code_3, _, missing) = say(given)
    assert {code, code_2, code_3} == {ExitCode.USAGE}
    assert f"ps-server: --out {run}: holds a run already (decisions.jsonl)" in held
    assert (run / "decisions.jsonl").read_text() == "a log"
    assert f"ps-server: --out {saved}: holds checkpoints of a run already" in former
    assert not (saved / "decisions.jsonl").exists()
    sentences.check(missing.splitlines()[-1])
    assert not (tmp_path / "x").exists()
