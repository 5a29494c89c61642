"""What dies of something passing is started again, a few times."""

import signal
from pathlib import Path

import pytest

from pslab.launch.exits import ExitTracker
from pslab.launch.restarts import AGREEING, RESTARTS_ON_NODES, SETTLED, RestartRules, Restarts
from pswire.exits import ExitCode
from tests.lab.drive import run_fakes
from tests.sentences import Recorder

PASSING = {1, 3, 4, 12}


@pytest.mark.parametrize("code", [int(code) for code in ExitCode])
def test_an_exit_code_says_whether_a_restart_makes_sense(code: int) -> None:
    assert Restarts(1).take("w", code) is (code in PASSING) is ExitCode(code).restart


def test_what_was_killed_is_started_again_unless_somebody_asked_for_its_end() -> None:
    assert Restarts(1).take("w", -signal.SIGKILL) and Restarts(1).take("w", -signal.SIGSEGV)
    assert not Restarts(1).take("w", -signal.SIGTERM) and not Restarts(1).take("w", -signal.SIGINT)
    assert not Restarts(1).take("w", 77)


def test_a_few_times_each() -> None:
    restarts = Restarts(2)
    assert [restarts.take("w0", -signal.SIGKILL) for _ in range(4)] == [True, True, False, False]
    assert restarts.count("w0") == "2 of at most 2 times"
    assert restarts.take("w1", -signal.SIGKILL) and restarts.count("w1") == "1 of at most 2 times"


def test_what_does_not_begin_well_is_started_later_each_time() -> None:
    """On machines that are off for a minute, say. What had begun well is started at once."""
    restarts = Restarts(RESTARTS_ON_NODES)
    pauses = []
    for _ in range(RESTARTS_ON_NODES):
        restarts.take("w0", ExitCode.UNREACHABLE)
        pauses.append(restarts.pause("w0"))
    assert pauses == [0.0, 2.0, 4.0, 8.0, 16.0, 32.0] and sum(pauses) > 60
    restarts = Restarts(9)
    for lived, pause in ((0.0, 0.0), (0.0, 2.0), (SETTLED, 0.0), (0.0, 2.0)):
        restarts.take("w0", ExitCode.UNREACHABLE, lived)
        assert restarts.pause("w0") == pause


def test_a_killed_worker_takes_part_again(tmp_path: Path, sentences: Recorder) -> None:
    finished = run_fakes(tmp_path / "run", worker="kill-once@1", restarts=2)
    assert finished.result.ok
    sentences.check(*finished.result.warnings)
    log = (tmp_path / "run" / "logs" / "worker-1.log").read_text()
    assert log.count('"event": "started"') == 1


def tracker(*exits: tuple[str, int]) -> ExitTracker:
    made = ExitTracker(["server-0", "server-1"], ["worker-0", "worker-1"])
    for name, code in exits:
        made.exited(name, code)
    return made


ENDED_WELL = (("worker-0", 0), ("worker-1", 0))


def test_once_all_workers_have_ended_well_the_first_server_says_how_the_job_ends() -> None:
    killed = ("server-1", -signal.SIGKILL)
    assert tracker(*ENDED_WELL, killed).verdict is None
    done = tracker(*ENDED_WELL, killed, ("server-0", 0)).verdict
    assert done is not None and done.code == ExitCode.OK
    failed = tracker(*ENDED_WELL, killed, ("server-0", 3)).verdict
    assert failed is not None and failed.code == ExitCode.UNREACHABLE
    early = tracker(("worker-0", 0), killed).verdict
    assert early is not None and early.code == ExitCode.UNREACHABLE and early.culprit == "server-1"


def test_a_process_that_runs_again_has_not_ended() -> None:
    made = tracker(*ENDED_WELL, ("server-0", -signal.SIGKILL))
    assert made.workers_over and made.finished_workers() == ["worker-0", "worker-1"]
    for name in ("server-0", "worker-1"):
        made.restarted(name)
    assert not made.workers_over and made.finished_workers() == ["worker-0"] and made.verdict is None


KILLED = -signal.SIGKILL
SERVERS = ("server-0", "server-1")


def rules(exits: ExitTracker, *, saves: bool = True, restarts: int = 3) -> RestartRules:
    return RestartRules(SERVERS, exits, Restarts(restarts), saves=saves)


@pytest.mark.parametrize(
    ("name", "ended", "saves", "again"),
    [
        ("worker-1", (), False, ["worker-1"]),
        ("server-1", (), True, ["server-1"]),
        ("server-1", (), False, []),
        ("server-1", ENDED_WELL, True, []),
        ("server-1", (("server-0", 0),), True, []),
        ("server-0", ENDED_WELL, True, ["server-0"]),
        # With server 0 come those that ended for want of it.
        ("server-0", (*ENDED_WELL, ("server-1", 3)), True, ["server-0", "server-1"]),
    ],
)
def test_who_comes_back_of_what_was_killed(
    name: str, ended: tuple[tuple[str, int], ...], saves: bool, again: list[str]
) -> None:
    exits = tracker(*ended)
    asked = rules(exits, saves=saves)
    assert asked.after_exit(name, KILLED) == again
    assert asked.restarted == set(again) and not any(exits.ended(each) for each in again)


@pytest.mark.parametrize(
    ("name", "code", "ended", "again"),
    [
        ("server-0", KILLED, (), True),
        ("server-1", KILLED, (), True),
        # It stood still, and another one leads.
        ("server-0", ExitCode.REFUSED, (), True),
        # No other one has a copy that it could be given.
        ("server-1", ExitCode.UNREACHABLE, (("server-0", KILLED),), False),
        # A process on a node that was lost still is this server.
        ("server-1", ExitCode.ADDRESS_IN_USE, (), True),
        ("server-1", ExitCode.USAGE, (), False),
        ("server-1", KILLED, (("server-0", 0),), False),
        ("worker-0", ExitCode.REFUSED, (), False),
    ],
)
def test_with_replicas_a_server_comes_back_while_another_one_goes_on(
    name: str, code: int, ended: tuple[tuple[str, int], ...], again: bool
) -> None:
    exits = ExitTracker(list(SERVERS), ["worker-0", "worker-1"], replicas=True)
    for each in ended:
        exits.exited(*each)
    asked = RestartRules(SERVERS, exits, Restarts(3), saves=False, copies=True)
    assert asked.after_exit(name, code) == ([name] if again else [])
    assert asked.uninformed_servers() == [server for server in SERVERS if server not in dict(ended)]


def test_with_replicas_a_server_whose_node_was_lost_comes_back_until_the_job_is_over() -> None:
    exits = ExitTracker(list(SERVERS), ["worker-0"], replicas=True)
    asked = RestartRules(SERVERS, exits, Restarts(3), saves=False, copies=True)
    assert asked.after_exit("server-1", ExitCode.UNREACHABLE, lost=True) == ["server-1"]
    exits.exited("server-0", 0)
    assert asked.after_exit("server-1", ExitCode.UNREACHABLE, lost=True) == []


@pytest.mark.parametrize(
    ("servers", "lost", "over"),
    [
        (2, (0,), False),
        (2, (0, 1), True),
        (3, (2,), False),
        (3, (0, 2), True),
        (5, (0, 4), False),
        (5, (0, 1), True),
        (5, (0, 3, 4), True),
        (4, (2,), False),
        (4, (2, 3), True),
        (5, (0, 2), False),
        (5, (2, 3), True),
    ],
)
def test_with_replicas_a_run_goes_on_while_a_majority_and_a_copy_of_each_part_are_left(
    servers: int, lost: tuple[int, ...], over: bool
) -> None:
    exits = ExitTracker([f"server-{n}" for n in range(servers)], ["worker-0"], replicas=True)
    for number in lost:
        exits.exited(f"server-{number}", KILLED)
    assert (exits.verdict is not None) == over


def test_nobody_comes_back_to_a_run_that_is_decided_or_has_no_restart_left() -> None:
    assert rules(tracker(("server-0", 3))).after_exit("worker-0", KILLED) == []
    assert rules(tracker(), restarts=0).after_exit("worker-0", KILLED) == []


def test_a_worker_is_needed_again_once_enough_answers_in_a_row_say_so() -> None:
    exits = tracker()
    asked = rules(exits)
    asked.after_status("stopping", "a")
    asked.after_exit("worker-0", 0)
    exits.exited("worker-0", 0)
    phases = ["training"] * (AGREEING - 1) + ["finished"] + ["training"] * AGREEING
    answers = [asked.after_status(phase, "a.1") for phase in phases]
    assert not any(answers[:-1]) and answers[-1] == ["worker-0"]
    assert not exits.ended("worker-0") and asked.after_status("training", "a.1") == []


@pytest.mark.parametrize("job", ["a.1", "b"], ids=["another phase", "another job"])
def test_a_script_that_has_ended_is_not_needed_for_what_the_others_train_behind_it(job: str) -> None:
    exits = tracker()
    asked = rules(exits)
    asked.after_status("between phases", "a.1")
    asked.after_exit("worker-0", 0)
    exits.exited("worker-0", 0)
    assert not any(asked.after_status("training", job) for _ in range(2 * AGREEING))


def test_a_server_that_came_back_while_the_job_ended_is_not_told_of_it() -> None:
    exits = tracker()
    asked = rules(exits)
    assert asked.uninformed_servers() == []
    asked.after_exit("server-1", KILLED)
    assert asked.uninformed_servers() == ["server-1"]
    exits.exited("server-1", 0)
    assert asked.uninformed_servers() == []
