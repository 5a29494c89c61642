"""Rules beside the log: partners, an operator's vote, silence, withheld promises, digests, the pace of a learner."""

from dataclasses import replace

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.replication import (
    Config,
    Disk,
    Member,
    Replica,
    ReplicationError,
    begin,
    first_config,
    majority,
    placement,
    restart,
    take,
)
from psserver.replication.copying import WINDOW
from psserver.replication.digests import MOST_WAITING, Comparison, Difference, RunningHash
from psserver.replication.messages import (
    Activate,
    Append,
    Beat,
    Executed,
    Offer,
    Persist,
    Prepare,
    Promise,
    Receive,
    Send,
    Stand,
)
from psserver.replication.pace import LONGEST_DELAY, SHARE, Pace
from psserver.replication.watch import ATTEMPT, HEARTBEAT, SILENCE, Watch

CONFIG = first_config((0, 1))


def replica(server: int, servers: int = 3) -> Replica:
    return begin(server, servers, CONFIG)


def test_partners_follow_each_other_and_an_odd_server_votes() -> None:
    assert placement(2) == ((0, 1), (1, 0))
    assert placement(5) == ((0, 1), (1, 0), (2, 3), (3, 2))
    with pytest.raises(ReplicationError, match="at least 2 servers"):
        placement(1)
    assert [majority(servers) for servers in (2, 3, 4, 5)] == [2, 2, 3, 3]


def test_what_is_sent_follows_what_is_on_the_disk() -> None:
    _, outputs = take(replica(2), Receive(1, Prepare(4)))
    assert outputs == (Persist(Disk(4, CONFIG)), Send(1, Promise(4, CONFIG)))


def test_a_candidate_without_a_majority_disturbs_nobody() -> None:
    state, outputs = take(replica(1), Stand())
    assert not any(isinstance(output, Persist) for output in outputs)
    assert not state.sealed
    after, outputs = take(state, Receive(0, Append(CONFIG, 0, ("item",), 0)))
    assert after.log.end == 1 and isinstance(outputs[0], Send)


def test_an_operator_promotes_a_copy_in_sync_of_two_servers() -> None:
    state, outputs = take(replica(1, servers=2), Stand(operator=True))
    assert state.leads and state.disk.config.members == (Member(1, 0),)
    kinds = [type(output) for output in outputs]
    assert kinds.index(Activate) > kinds.index(Persist)


def test_an_operator_promotes_nothing_else() -> None:
    with pytest.raises(ReplicationError, match="between two servers"):
        take(replica(1), Stand(operator=True))
    with pytest.raises(ReplicationError, match="not"):
        take(restart(1, 2, 1, True, Disk(0, CONFIG)), Stand(operator=True))


def test_a_full_log_takes_nothing_until_copies_have_executed() -> None:
    state = replica(0)
    for item in range(WINDOW):
        state, _ = take(state, Offer(item))
    full, outputs = take(state, Offer("more"))
    assert full == state and outputs == ()


def test_what_all_have_executed_is_forgotten() -> None:
    alone = Config(0, 0, (Member(0, 0),))
    state = begin(0, 3, alone)
    for item in range(10):
        state, _ = take(state, Offer(item))
    state, _ = take(state, Executed(10))
    assert (state.log.first, state.log.tail, state.log.end) == (10, (), 10)


def heard(server: int, now: float) -> Watch:
    watch = Watch(server, 0.0)
    watch.hear(0, Append(CONFIG, 0, (), 0), now)
    return watch


def test_silence_and_a_broken_stream_are_suspected() -> None:
    watch, state = heard(1, 5.0), replica(1)
    assert watch.decide(state, 5.0 + SILENCE) is None
    assert watch.decide(state, 5.0 + SILENCE + 0.01) == Stand(())
    watch = heard(1, 5.0)
    watch.broke(0)
    assert watch.decide(state, 5.0) == Stand(())
    # The next attempt leaves this one its time.
    assert watch.decide(state, 5.0 + ATTEMPT) is None
    assert watch.decide(state, 6.0 + ATTEMPT) == Stand(())
    assert SILENCE > 3 * HEARTBEAT


def test_a_voter_that_hears_the_primary_withholds_its_promise() -> None:
    watch = heard(2, 5.0)
    assert watch.withholds(replica(2), 1, Prepare(4), 5.5)
    assert not watch.withholds(replica(2), 0, Prepare(3), 5.5)
    assert not watch.withholds(replica(2), 1, Prepare(4), 5.0 + SILENCE + 0.1)
    assert not watch.withholds(replica(2), 1, Append(CONFIG, 0, (), 0), 5.5)


def test_a_primary_leaves_out_a_silent_follower_and_names_a_learner() -> None:
    watch, state = Watch(0, 0.0), replica(0)
    watch.hear(1, Prepare(0), 5.0)
    assert watch.decide(state, 5.5) is None
    assert watch.decide(state, 7.0) == Stand(())
    alone = Config(0, 0, (Member(0, 0),))
    learner = replace(state.progress[0], member=Member(1, 1))
    led = replace(state, disk=Disk(0, alone), progress=(learner,))
    watch.hear(1, Prepare(0), 9.0)
    assert watch.decide(led, 9.0) == Stand((1,))


def test_a_heartbeat_goes_to_every_server() -> None:
    _, outputs = take(replica(0), Beat())
    assert [output.to for output in outputs if isinstance(output, Send)] == [1, 2]


def coordinators(second: str = "sync") -> list[CoordinatorHarness]:
    return [CoordinatorHarness(policy, workers=2) for policy in ("sync", second)]


def act(harness: CoordinatorHarness) -> list[bytes]:
    """Two workers, three rounds; the running hash after each step."""
    running, found, told = RunningHash(), [], 0
    harness.starts("w0", "w1")
    for number in range(6):
        worker = f"w{number % 2}"
        if harness.holds(worker) is None:
            harness.ready(worker)
        if harness.holds(worker) is not None:
            harness.commits(worker)
            harness.ready(worker)
        found.append(running.add(repr(output).encode() for output in harness.outputs[told:]))
        told = len(harness.outputs)
    return found


def test_a_standby_that_takes_the_same_inputs_has_the_same_running_hash() -> None:
    first, second = (act(each) for each in coordinators())
    assert first == second
    first, second = (act(each) for each in coordinators("async"))
    assert first != second


def test_digests_are_compared_whichever_comes_first() -> None:
    follower, comparison = Member(1, 0), Comparison()
    assert comparison.own(1, b"a") == []
    assert comparison.theirs(follower, 1, b"a") is None
    assert comparison.theirs(follower, 1, b"b") == Difference(follower, 1)
    assert comparison.theirs(follower, 2, b"c") is None
    assert comparison.own(2, b"d") == [Difference(follower, 2)]
    assert comparison.theirs(follower, 3, b"x") is None
    comparison.forget(follower)
    assert comparison.own(3, b"y") == []


def test_digests_that_wait_are_bounded() -> None:
    follower, comparison = Member(1, 0), Comparison()
    for at in range(2 * MOST_WAITING):
        comparison.theirs(follower, at, b"a")
    # The oldest are forgotten: nothing to compare with.
    assert comparison.own(0, b"b") == []
    assert comparison.own(2 * MOST_WAITING - 1, b"b") == [Difference(follower, 2 * MOST_WAITING - 1)]


def test_a_copy_is_sent_at_a_bounded_rate() -> None:
    pace = Pace(100.0, 0.0)
    assert pace.send(50, 0.0) == 0.5
    assert pace.send(50, 0.25) == 0.75
    assert pace.send(100, 10.0) == 1.0
    with pytest.raises(ValueError, match="rate"):
        Pace(0.0, 0.0)


def test_grants_slow_down_only_for_a_learner_that_falls_behind() -> None:
    pace = Pace(100.0, 0.0)
    assert pace.caught(1000, 0, 2, 0.0) == 0.0
    # 10 executed while the log grew by 5: it comes nearer.
    assert pace.caught(1005, 10, 2, 1.0) == 0.0
    # 10 executed while the log grew by 20.
    assert pace.caught(1025, 20, 2, 2.0) == pytest.approx(1 / (SHARE * 10))
    assert pace.caught(1025, 20, 2, 3.0) == LONGEST_DELAY
    assert pace.caught(1026, 1025, 2, 4.0) == 0.0
