"""Rules beside the log: partners, an operator's vote, silence, withheld promises, digests, the pace of a learner."""

import pytest

from psserver.replication import (
    Config,
    Replica,
    ReplicationError,
    StableMemory,
    SyncMember,
    begin,
    first_config,
    majority,
    restart,
    take,
)
from psserver.replication.copying import CLOSE, WINDOW
from psserver.replication.digests import MOST_WAITING, Comparison, CopyDifference
from psserver.replication.messages import (
    BATCH,
    Activate,
    Append,
    Beat,
    Broke,
    Differs,
    Executed,
    Expel,
    GiveCopy,
    Held,
    Installed,
    Offer,
    Output,
    Persist,
    Prepare,
    Promise,
    Propose,
    Receive,
    Refuse,
    Reset,
    Send,
    Stand,
)
from psserver.replication.pace import LONGEST_DELAY, SHARE, CopyRate, LearnerPace
from psserver.replication.watch import ATTEMPT, HEARTBEAT, LEARNER_SILENCE, SILENCE, PeerWatch

CONFIG = first_config((0, 1))


def replica(server: int, servers: int = 3) -> Replica:
    return begin(server, servers, CONFIG)


def test_two_majorities_have_a_server_in_common() -> None:
    assert [majority(servers) for servers in (2, 3, 4, 5)] == [2, 2, 3, 3]


def test_what_is_sent_follows_what_is_on_the_disk() -> None:
    _, outputs = take(replica(2), Receive(1, Prepare(4)))
    assert outputs == (Persist(StableMemory(4, CONFIG)), Send(1, Promise(4, CONFIG)))


def test_a_candidate_without_a_majority_disturbs_nobody() -> None:
    state, outputs = take(replica(1), Stand())
    assert not any(isinstance(output, Persist) for output in outputs)
    assert not state.sealed
    after, outputs = take(state, Receive(0, Append(CONFIG, 0, ("item",), 0)))
    assert after.log.end == 1 and isinstance(outputs[0], Send)


def test_an_operator_promotes_a_copy_in_sync_of_two_servers() -> None:
    state, outputs = take(replica(1, servers=2), Stand(operator=True))
    assert state.leads and state.disk.config.members == (SyncMember(1, 0),)
    kinds = [type(output) for output in outputs]
    assert kinds.index(Activate) > kinds.index(Persist)


def test_an_operator_promotes_nothing_else() -> None:
    with pytest.raises(ReplicationError, match="between two servers"):
        take(replica(1), Stand(operator=True))
    with pytest.raises(ReplicationError, match="not"):
        take(restart(1, 2, 1, True, StableMemory(0, CONFIG)), Stand(operator=True))


def test_a_full_log_takes_nothing_until_copies_have_executed() -> None:
    state = replica(0)
    for item in range(WINDOW):
        state, _ = take(state, Offer(item))
    full, outputs = take(state, Offer("more"))
    assert full == state and outputs == ()


def test_what_all_have_executed_is_forgotten() -> None:
    alone = Config(0, 0, (SyncMember(0, 0),))
    state = begin(0, 3, alone)
    for item in range(10):
        state, _ = take(state, Offer(item))
    state, _ = take(state, Executed(10))
    assert (state.log.first, state.log.tail, state.log.end) == (10, (), 10)


def heard(server: int, now: float) -> PeerWatch:
    watch = PeerWatch(server, 0.0)
    watch.hear(0, Append(CONFIG, 0, (), 0), now)
    return watch


def test_a_copy_that_differs_is_told_so_until_it_begins_again() -> None:
    primary, outputs = take(replica(0), Differs(SyncMember(1, 0)))
    told = Send(1, Expel(0, 0))
    assert told in outputs
    # The message was lost, so the copy goes on as before.
    primary, outputs = take(primary, Receive(1, Held(0, 0, 0, 0)))
    assert outputs == (told,)
    _, outputs = take(replica(1), Receive(0, told.message))
    assert outputs == (Reset(),)
    _, outputs = take(primary, Receive(1, Held(0, 1, 0, 0)))
    assert not any(isinstance(output, Send) and isinstance(output.message, Expel) for output in outputs)


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


def test_a_server_that_only_speaks_does_not_lead() -> None:
    """A primary that was sealed, or started again, keeps neither promises nor the lead from others."""
    watch = heard(2, 5.0)
    for message in (Prepare(3), Refuse(3)):
        watch.hear(0, message, 5.9)
    assert watch.withholds(replica(2), 1, Prepare(4), 5.9)
    assert not watch.withholds(replica(2), 1, Prepare(4), 6.1)
    follower = heard(1, 5.0)
    follower.hear(0, Refuse(3), 5.9)
    assert follower.decide(replica(1), 5.9) is None
    assert follower.decide(replica(1), 6.1) == Stand(())
    # Nor does one whose epoch is over by this server's own promise.
    watch.hear(0, Append(CONFIG, 0, (), 0), 6.1, promised=4)
    assert not watch.withholds(replica(2), 1, Prepare(4), 6.2)
    # A long item's parts are of a primary.
    watch.led(0, 6.1)
    assert watch.withholds(replica(2), 1, Prepare(4), 7.0)


def test_a_primary_leaves_out_a_silent_follower_and_names_a_learner() -> None:
    watch, state = PeerWatch(0, 0.0), replica(0)
    watch.hear(1, Prepare(0), 5.0)
    assert watch.decide(state, 5.5) is None
    assert watch.decide(state, 7.0) == Stand(())
    alone = Config(0, 0, (SyncMember(0, 0),))
    learner = state.progress[0]._replace(member=SyncMember(1, 1))
    led = state._replace(disk=StableMemory(0, alone), progress=(learner,))
    watch.hear(1, Prepare(0), 9.0)
    assert watch.decide(led, 9.0) == Stand((1,))


def test_a_primary_leaves_out_a_follower_that_has_started_again() -> None:
    """It speaks, so it is not silent; but what waits for its former self would wait for ever."""
    watch, state = PeerWatch(0, 0.0), replica(0)
    state, _ = take(state, Offer("never acknowledged"))
    watch.hear(1, Prepare(0), 5.0)
    assert watch.decide(state, 5.0) is None
    state, _ = take(state, Receive(1, Held(0, 1, 0, 0)))
    assert watch.decide(state, 5.0) == Stand(())


def _primary_and_learner(items: int) -> tuple[Replica, SyncMember]:
    """A primary that leads alone, has forgotten its first items, and hears of a server without a copy."""
    alone = Config(0, 0, (SyncMember(0, 0),))
    state = replica(0)._replace(disk=StableMemory(0, alone), progress=())
    for number in range(items):
        state, _ = take(state, Offer(number))
    state, _ = take(state, Executed(items))
    state, outputs = take(state, Receive(1, Held(0, 1, 0, 0)))
    assert GiveCopy(1, items) in outputs
    return state, SyncMember(1, 1)


def test_a_learner_is_not_named_while_a_copy_is_under_way_to_it() -> None:
    state, member = _primary_and_learner(3)
    watch = PeerWatch(0, 0.0)
    watch.hear(1, Prepare(0), 1.0)
    assert watch.decide(state, 1.0) is None
    # It says that it is still empty, and then that it has the copy.
    state, _ = take(state, Receive(1, Held(0, 1, 0, 0)))
    assert watch.decide(state, 1.0) is None
    state, _ = take(state, Receive(1, Held(0, 1, 3, 3)))
    assert watch.decide(state, 1.0) == Stand((member.server,))


def test_nothing_is_sent_behind_a_copy_but_heartbeats() -> None:
    state, _ = _primary_and_learner(3)
    state, outputs = take(state, Offer(3))
    assert not [output for output in outputs if isinstance(output, Send) and output.message.items]
    _, outputs = take(state, Beat())
    assert [output.message.items for output in outputs if isinstance(output, Send)] == [(), ()]


def test_a_copy_says_how_far_it_is_though_nothing_comes() -> None:
    _, outputs = take(replica(1), Beat())
    assert outputs == (Send(0, Held(0, 0, 0, 0)),)
    # Not to a primary that it has promised to refuse, and not without a copy.
    sealed, _ = take(replica(1), Receive(2, Prepare(5)))
    assert take(sealed, Beat())[1] == () and take(replica(2), Beat())[1] == ()


def test_a_learner_gets_the_next_items_as_soon_as_it_has_some() -> None:
    state, _ = _primary_and_learner(1)
    for number in range(1, 2 * BATCH + 2):
        state, _ = take(state, Offer(number))
    end, sent = 1, 0
    while end < state.log.end:
        state, outputs = take(state, Receive(1, Held(0, 1, end, end)))
        ((start, items),) = [(o.message.start, o.message.items) for o in outputs if isinstance(o, Send)]
        assert start == end and len(items) <= BATCH
        end, sent = end + len(items), sent + 1
        # What it says again brings nothing twice.
        assert not [o for o in take(state, Receive(1, Held(0, 1, start, start)))[1] if isinstance(o, Send)]
    assert sent == 3


def _sent(outputs: tuple[Output, ...], to: int = 1) -> list[Append]:
    sent = [output.message for output in outputs if isinstance(output, Send) and output.to == to]
    return [message for message in sent if isinstance(message, Append)]


def test_a_learner_gets_no_more_before_it_has_executed_what_it_has() -> None:
    """What is not executed lies in its memory. It hears what is stable, or it could not go on."""
    state, _ = _primary_and_learner(1)
    for number in range(1, 2 * BATCH):
        state, _ = take(state, Offer(number))
    state, outputs = take(state, Receive(1, Held(0, 1, 1, 1)))
    (batch,) = _sent(outputs)
    assert len(batch.items) == BATCH
    state, outputs = take(state, Receive(1, Held(0, 1, 1 + BATCH, 1)))
    assert _sent(outputs) == []
    assert _sent(take(state, Beat())[1]) == [Append(state.disk.config, 1 + BATCH, (), state.log.stable)]
    _, outputs = take(state, Receive(1, Held(0, 1, 1 + BATCH, 1 + BATCH)))
    (batch,) = _sent(outputs)
    assert (batch.start, batch.items) == (1 + BATCH, tuple(range(1 + BATCH, 2 * BATCH)))


@pytest.mark.parametrize("behind", [CLOSE, CLOSE + 1])
def test_a_learner_that_is_close_gets_new_items_at_once(behind: int) -> None:
    state, _ = _primary_and_learner(1)
    state, _ = take(state, Receive(1, Held(0, 1, 1, 1)))
    for number in range(behind):
        state, _ = take(state, Offer(number))
    new = [each for each in _sent(take(state, Offer("new"))[1]) if each.items]
    assert len(new) == (behind == CLOSE)


def test_a_learner_says_when_it_can_take_more() -> None:
    alone = Config(0, 0, (SyncMember(0, 0),))
    learner = restart(1, 3, 1, True, StableMemory(0, alone))._replace(synced=0)
    learner, outputs = take(learner, Installed(5))
    assert outputs == (Send(0, Held(0, 1, 5, 5)),)
    learner, _ = take(learner, Receive(0, Append(alone, 5, ("a", "b"), 7)))
    learner, outputs = take(learner, Executed(6))
    assert outputs == ()
    assert take(learner, Executed(7))[1] == (Send(0, Held(0, 1, 7, 7)),)
    # Followers of which nothing depends on it say it with the next message.
    follower, _ = take(replica(1), Receive(0, Append(CONFIG, 0, ("a",), 1)))
    assert take(follower, Executed(1))[1] == ()


def test_nothing_more_is_kept_for_a_silent_learner() -> None:
    state, _ = _primary_and_learner(1)
    state, _ = take(state, Offer(1))
    state, _ = take(state, Executed(2))
    assert state.log.tail == (1,)
    watch = PeerWatch(0, 0.0)
    watch.hear(1, Prepare(0), 5.0)
    assert watch.silent_learners(state, 5.5) == []
    assert watch.silent_learners(state, 5.1 + LEARNER_SILENCE) == [1]
    state, _ = take(state, Broke(1))
    assert state.log.tail == () and state.progress == ()


def test_a_copy_named_by_a_candidate_that_died_takes_over() -> None:
    """Only the candidate's disk has the configuration; the copy was made equal and was not told."""
    alone, named = Config(0, 0, (SyncMember(0, 0),)), Config(3, 0, (SyncMember(0, 0), SyncMember(1, 1)))
    state = restart(1, 3, 1, True, StableMemory(3, alone))._replace(synced=3)
    watch = PeerWatch(1, 0.0)
    watch.hear(0, Append(alone, 0, (), 0), 1.0)
    order = watch.decide(state, 1.1 + SILENCE)
    assert order == Stand(())
    state, _ = take(state, order)
    assert state.standing is not None
    epoch = state.standing.epoch
    # The candidate is back, and has no copy.
    state, outputs = take(state, Receive(0, Promise(epoch, named)))
    assert Send(0, Propose(Config(epoch, 1, (SyncMember(1, 1),)))) in outputs


def test_a_heartbeat_goes_to_every_server() -> None:
    _, outputs = take(replica(0), Beat())
    assert [output.to for output in outputs if isinstance(output, Send)] == [1, 2]


def test_digests_are_compared_whichever_comes_first() -> None:
    follower, comparison = SyncMember(1, 0), Comparison()
    assert comparison.own(1, b"a") == []
    assert comparison.theirs(follower, 1, b"a") is None
    assert comparison.theirs(follower, 1, b"b") == CopyDifference(follower, 1, b"a", b"b")
    assert comparison.theirs(follower, 2, b"c") is None
    assert comparison.own(2, b"d") == [CopyDifference(follower, 2, b"d", b"c")]
    assert comparison.theirs(follower, 3, b"x") is None
    comparison.keep((SyncMember(1, 1),))
    assert comparison.own(3, b"y") == []


def test_digests_that_wait_are_bounded() -> None:
    follower, comparison = SyncMember(1, 0), Comparison()
    for at in range(2 * MOST_WAITING):
        comparison.theirs(follower, at, b"a")
    # The oldest are forgotten: nothing to compare with.
    assert comparison.own(0, b"b") == []
    assert comparison.own(2 * MOST_WAITING - 1, b"b") == [
        CopyDifference(follower, 2 * MOST_WAITING - 1, b"b", b"a")
    ]


def test_a_copy_is_sent_at_a_bounded_rate() -> None:
    rate = CopyRate(100.0, 0.0)
    assert rate.send(50, 0.0) == 0.5
    assert rate.send(50, 0.25) == 0.75
    assert rate.send(100, 10.0) == 1.0
    with pytest.raises(ValueError, match="rate"):
        CopyRate(0.0, 0.0)


def test_the_log_slows_down_only_for_a_learner_that_falls_behind() -> None:
    pace = LearnerPace()
    assert pace.caught(1000, 0, 2, 0.0) == 0.0
    # 10 executed while the log grew by 5: it comes nearer.
    assert pace.caught(1005, 10, 2, 1.0) == 0.0
    # 10 executed while the log grew by 20.
    assert pace.caught(1025, 20, 2, 2.0) == pytest.approx(1 / (SHARE * 10))
    assert pace.caught(1025, 20, 2, 3.0) == LONGEST_DELAY
    assert pace.caught(1026, 1025, 2, 4.0) == 0.0


def test_a_follower_that_is_slower_for_an_hour_bounds_the_log() -> None:
    """The primary is offered five items in a second, and the follower executes two: the log stays bounded, what it does
    not take is offered again, and nothing that was taken is missing in the end."""
    primary, follower = begin(0, 3, first_config((0, 1))), begin(1, 3, first_config((0, 1)))
    taken = executed = 0

    def follow(outputs: tuple[Output, ...]) -> None:
        nonlocal primary, follower
        for output in outputs:
            if isinstance(output, Send) and output.to == 1:
                follower, answers = take(follower, Receive(0, output.message))
                for answer in answers:
                    if isinstance(answer, Send):
                        primary, more = take(primary, Receive(1, answer.message))
                        follow(more)

    for _ in range(3600):
        for _ in range(5):
            primary, outputs = take(primary, Offer(taken))
            taken += bool(outputs)
            follow(outputs)
            primary, _ = take(primary, Executed(primary.log.stable))
        executed = min(executed + 2, follower.log.stable)
        follower, _ = take(follower, Executed(executed))
        primary, more = take(primary, Receive(1, Held(0, 0, follower.log.end, executed)))
        follow(more)
        assert len(primary.log.tail) <= WINDOW and primary.log.stable == taken
    assert executed == 2 * 3600 and WINDOW - 2 <= taken - executed <= WINDOW
    follower, _ = take(follower, Executed(follower.log.stable))
    assert follower.log.stable == follower.log.executed == taken
