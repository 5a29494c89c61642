"""A change of the configuration: who holds what, under a new epoch.

A candidate asks for promises. With a majority's, which seals all lower epochs, it knows the newest configuration; only
one of its members, in the same incarnation, goes on, for it has everything stable. It promises its own epoch last, so a
candidate whom no majority follows has disturbed nobody. It makes the copies to be included equal to its own log, and
only then proposes the configuration. Once a majority has it on disk, the candidate is the primary.
"""

from dataclasses import replace

from psserver.replication.configuration import Config, ReplicationError, SyncMember, majority, next_epoch
from psserver.replication.messages import (
    Accepted,
    Activate,
    Append,
    Prepare,
    Promise,
    Propose,
    Refuse,
    Stand,
    Sync,
    Synced,
)
from psserver.replication.state import NEVER, InputTurn, Progress, Standing


def stand(turn: InputTurn, order: Stand) -> None:
    """Begin an attempt, in place of an earlier one. A server without a copy does nothing.

    Raises ReplicationError for an operator's vote that would not be safe.
    """
    state = turn.state
    if order.operator:
        _check_operator(turn)
    if state.synced == NEVER:
        return
    above = max(state.disk.promised, state.heard, order.above)
    epoch = next_epoch(above, state.server, state.servers)
    turn.set(standing=Standing(epoch, order.include, order.operator))
    if order.operator:
        _seal(turn)
    else:
        turn.send_all(Prepare(epoch))


def _check_operator(turn: InputTurn) -> None:
    state = turn.state
    if state.servers != 2:
        raise ReplicationError(
            f"expected an operator's vote between two servers only, got {state.servers}: a majority decides"
        )
    if not state.in_sync(state.disk.config):
        raise ReplicationError(
            f"expected the copy of server {state.server} to be in sync, got one that is not: promote the other "
            "server, or resume from a checkpoint"
        )


def prepare(turn: InputTurn, sender: int, message: Prepare) -> None:
    """Promise, on disk first, and tell the newest configuration."""
    state = turn.state
    if message.epoch < state.disk.promised:
        turn.send(sender, Refuse(state.disk.promised))
        return
    turn.persist(message.epoch)
    turn.send(sender, Promise(message.epoch, state.disk.config))


def promise(turn: InputTurn, sender: int, message: Promise) -> None:
    """Count a promise, and go on once a majority's, the candidate's own among them, show that this copy is in sync.

    A later promise may name a newer configuration with this copy in it: the attempt ends only when all have answered.
    """
    state, standing = turn.state, turn.state.standing
    if standing is None or standing.epoch != message.epoch or state.disk.promised == standing.epoch:
        return
    promises = standing.promises | {(sender, message)}
    turn.set(standing=replace(standing, promises=promises))
    senders = {server for server, _ in promises}
    configs = [state.disk.config, *(each.config for _, each in promises)]
    newest = max(configs, key=lambda config: config.epoch)
    enough = len(senders) + 1 >= majority(state.servers) and senders.issuperset(standing.include)
    if enough and state.in_sync(newest):
        _seal(turn)
    elif len(senders) + 1 == state.servers:
        turn.set(standing=None)


def _seal(turn: InputTurn) -> None:
    """Promise one's own epoch, and make the copies to be included equal."""
    standing = turn.state.standing
    assert standing is not None
    turn.persist(standing.epoch)
    turn.step_down(standing.epoch)
    turn.set(synced=standing.epoch)
    if standing.include:
        send_syncs(turn)
    else:
        _propose(turn)


def send_syncs(turn: InputTurn) -> None:
    """Send the log to each copy to be included that has not confirmed it."""
    log, standing = turn.state.log, turn.state.standing
    assert standing is not None
    confirmed = {member.server for member in standing.synced}
    for server in standing.include:
        if server not in confirmed:
            turn.send(server, Sync(standing.epoch, log.first, log.tail, log.stable))


def sync(turn: InputTurn, sender: int, message: Sync) -> None:
    """Make this log the candidate's, and promise its epoch. A copy that lacks earlier items stays silent."""
    state = turn.state
    if message.epoch < state.disk.promised:
        turn.send(sender, Refuse(state.disk.promised))
        return
    if not state.holds or message.first > state.log.stable:
        return
    if state.synced < message.epoch:
        # A repeated message must not undo what the new epoch has appended since.
        log = state.log.become(message.first, message.items)
        turn.persist(message.epoch)
        turn.step_down(message.epoch)
        turn.set(synced=message.epoch, standing=None)
        turn.stabilise(log, message.stable)
    turn.send(sender, Synced(message.epoch, state.incarnation))


def synced(turn: InputTurn, sender: int, message: Synced) -> None:
    """Note that a copy is equal; propose when all to be included are."""
    standing = turn.state.standing
    if standing is None or standing.epoch != message.epoch or standing.config is not None:
        return
    confirmed = standing.synced | {SyncMember(sender, message.incarnation)}
    turn.set(standing=replace(standing, synced=confirmed))
    if {member.server for member in confirmed}.issuperset(standing.include):
        _propose(turn)


def _propose(turn: InputTurn) -> None:
    state, standing = turn.state, turn.state.standing
    assert standing is not None
    newest: dict[int, SyncMember] = {}
    for member in sorted((state.member, *standing.synced), key=lambda each: (each.server, each.incarnation)):
        newest[member.server] = member
    config = Config(standing.epoch, state.server, tuple(newest.values()), state.log.end)
    turn.persist(standing.epoch, config)
    accepted_by = frozenset({state.server})
    turn.set(standing=replace(standing, config=config, accepted=accepted_by))
    turn.send_all(Propose(config))
    if standing.operator:
        _activate(turn, config)


def propose(turn: InputTurn, sender: int, message: Propose) -> None:
    """Accept a configuration, on disk first."""
    config, promised = message.config, turn.state.disk.promised
    if config.epoch < promised:
        turn.send(sender, Refuse(promised))
        return
    turn.persist(config.epoch, config)
    turn.send(sender, Accepted(config.epoch))


def accepted(turn: InputTurn, sender: int, message: Accepted) -> None:
    """Count who has accepted; with a majority the candidate is the primary."""
    state, standing = turn.state, turn.state.standing
    if standing is None or standing.epoch != message.epoch or standing.config is None:
        return
    turn.set(standing=replace(standing, accepted=standing.accepted | {sender}))
    if len(standing.accepted | {sender}) >= majority(state.servers):
        _activate(turn, standing.config)


def _activate(turn: InputTurn, config: Config) -> None:
    """Lead. All members hold the whole log, so all of it is stable."""
    state, log = turn.state, turn.state.log
    others = tuple(Progress(each, log.end, log.first) for each in config.members if each != state.member)
    turn.set(leads=True, standing=None, progress=others)
    turn.outputs.append(Activate(config))
    turn.stabilise(log, log.end)
    turn.send_all(Append(config, log.end, (), log.end))


def refuse(turn: InputTurn, sender: int, message: Refuse) -> None:
    """Remember the higher epoch, and give up an attempt below it."""
    standing = turn.state.standing
    turn.set(heard=max(turn.state.heard, message.promised))
    if standing is not None and standing.epoch < message.promised:
        turn.set(standing=None)


def repeat(turn: InputTurn) -> None:
    """Send again what an attempt waits for."""
    state, standing = turn.state, turn.state.standing
    assert standing is not None
    if state.disk.promised < standing.epoch:
        turn.send_all(Prepare(standing.epoch))
    elif standing.config is None:
        send_syncs(turn)
    else:
        turn.send_all(Propose(standing.config))
