"""The log within an epoch: the primary appends, its followers acknowledge, learners catch up.

An item is stable, and may be executed and answered, when all members of the configuration hold it.
"""

from typing import Final

from psserver.replication.configuration import SyncMember
from psserver.replication.log import Log
from psserver.replication.messages import (
    BATCH,
    Append,
    Broke,
    Differs,
    Executed,
    Expel,
    GiveCopy,
    Held,
    Installed,
    Offer,
    Refuse,
    Reset,
)
from psserver.replication.state import NEVER, InputTurn, Progress, Replica

#: Most items that a log remembers, beyond which nothing is taken.
WINDOW: Final = 4096
#: A learner so few items behind gets each new item at once, as followers do.
CLOSE: Final = 16


def offer(turn: InputTurn, order: Offer) -> None:
    """Append an item and forward it. An item that the log has already counts once.

    Nothing is taken by a server that does not lead or is sealed, nor beyond the window: who offered it tries again. The
    shell does not offer what is executed, but answers it.
    """
    state, log = turn.state, turn.state.log
    if not state.leads or state.sealed or order.item in log.tail or len(log.tail) >= WINDOW:
        return
    turn.set(log=log.take(log.end, (order.item,)))
    for each in state.progress:
        # What follows on a copy would delay it, and what a learner cannot execute soon would fill its memory: it asks
        # for both later.
        close = each.member in state.disk.config.members or log.end - each.end <= CLOSE
        if close and not each.copying:
            turn.send(each.member.server, Append(state.disk.config, log.end, (order.item,), log.stable))
    _advance(turn)


def _advance(turn: InputTurn) -> None:
    """Move the stable index to what all members hold, and tell them."""
    state, log = turn.state, turn.state.log
    members = state.disk.config.members
    stable = min((each.end for each in state.progress if each.member in members), default=log.end)
    if stable > log.stable:
        turn.stabilise(log, stable)
        for each in state.progress:
            turn.send(each.member.server, Append(state.disk.config, stable, (), stable))


def _trim(turn: InputTurn) -> None:
    """Forget what all copies have executed."""
    state = turn.state
    turn.set(
        log=state.log.trimmed(min((each.executed for each in state.progress), default=state.log.executed))
    )


def beat(turn: InputTurn) -> None:
    """Send the heartbeat, and with it what each copy lacks."""
    state, log = turn.state, turn.state.log
    copies = {each.member.server: each for each in state.progress if not each.copying}
    for server in range(state.servers):
        if server != state.server:
            copy = copies.get(server)
            start = log.end if copy is None else copy.end
            items = log.since(start)[:BATCH] if copy is not None and _takes(state, copy) else ()
            turn.send(server, Append(state.disk.config, start, items, log.stable))


def _takes(state: Replica, copy: Progress) -> bool:
    """Return whether to send a copy what it lacks: to a learner once it has executed what it has."""
    return copy.member in state.disk.config.members or copy.executed >= copy.end


def alive(turn: InputTurn) -> None:
    """Say how far this copy is, also while what comes from the primary takes long to arrive."""
    state, primary = turn.state, turn.state.disk.config.primary
    if state.holds and not state.sealed and primary != state.server:
        turn.send(primary, Held(state.synced, state.incarnation, state.log.end, state.log.executed))


def append(turn: InputTurn, sender: int, message: Append) -> None:
    """Take a primary's items if nothing before them is missing, and say how far this copy is."""
    state, config = turn.state, message.config
    if config.epoch < state.disk.promised:
        turn.send(sender, Refuse(state.disk.promised))
        return
    if not state.holds:
        return
    if config.epoch > state.disk.config.epoch:
        turn.persist(config.epoch, config)
    log = state.log
    if config.epoch > state.synced:
        # It was left out of this epoch: what is not stable here may be nowhere else.
        log = log.without_unstable()
        turn.step_down(config.epoch)
        turn.set(synced=config.epoch, standing=None)
    if message.start <= log.end:
        log = log.take(message.start, message.items)
        turn.stabilise(log, message.stable)
    else:
        turn.set(log=log)
    turn.send(sender, Held(config.epoch, state.incarnation, log.end, log.executed))


def held(turn: InputTurn, sender: int, message: Held) -> None:
    """Note how far a copy is. A learner that lacks what is forgotten here gets a copy."""
    state, member = turn.state, SyncMember(sender, message.incarnation)
    if not state.leads or message.epoch != state.synced:
        return
    if member in state.expelled:
        # It did not hear so, or was in another epoch then.
        turn.send(sender, Expel(state.synced, message.incarnation))
        return
    known = next((each for each in state.progress if each.member == member), None)
    if known is None:
        incarnations = [each.member.incarnation for each in state.progress if each.member.server == sender]
        if any(incarnation > message.incarnation for incarnation in incarnations):
            return
        known = _welcome(turn, member, message)
    end, executed = max(known.end, message.end), max(known.executed, message.executed)
    copying = known.copying and message.executed < known.executed
    progress = known._replace(end=end, executed=executed, copying=copying)
    _put(turn, progress)
    _advance(turn)
    _trim(turn)
    learns = member not in state.disk.config.members and not copying
    advanced = end > known.end or executed > known.executed or known.copying
    if learns and advanced and _takes(state, progress) and end < state.log.end:
        # The next items, as soon as it has executed some; a heartbeat brings only one batch.
        items = state.log.since(end)[:BATCH]
        turn.send(sender, Append(state.disk.config, end, items, state.log.stable))


def _welcome(turn: InputTurn, member: SyncMember, message: Held) -> Progress:
    """Begin to keep what a learner needs: from its own end on, or from a copy on that is made now."""
    log = turn.state.log
    if message.executed >= log.first:
        return Progress(member, message.end, message.executed)
    turn.outputs.append(GiveCopy(member.server, log.executed))
    return Progress(member, log.executed, log.executed, copying=True)


def _put(turn: InputTurn, progress: Progress) -> None:
    """Replace what is known of a copy, and forget earlier incarnations of a learner."""
    state, member = turn.state, progress.member
    members = state.disk.config.members
    kept = [
        each
        for each in state.progress
        if each.member != member and (each.member.server != member.server or each.member in members)
    ]
    turn.set(
        progress=tuple(
            sorted([*kept, progress], key=lambda each: (each.member.server, each.member.incarnation))
        )
    )


def executed(turn: InputTurn, order: Executed) -> None:
    """Note what is executed, and forget what nobody needs any more."""
    state, log = turn.state, turn.state.log
    turn.set(log=log._replace(executed=max(log.executed, min(order.count, log.stable))))
    if state.leads:
        _trim(turn)
    elif state.standing is None:
        turn.set(log=turn.state.log.trimmed(order.count))
        if state.member not in state.disk.config.members and order.count >= log.end:
            # A learner is sent more as soon as it says so.
            alive(turn)


def installed(turn: InputTurn, order: Installed) -> None:
    """Continue behind a copy. One that is older than this server's own state changes nothing."""
    if order.at > turn.state.log.stable:
        turn.set(log=Log(order.at, (), order.at, order.at))
        alive(turn)


def broke(turn: InputTurn, order: Broke) -> None:
    """Keep nothing more for a learner; a member remains one until the configuration changes."""
    state = turn.state
    members = state.disk.config.members
    kept = [each for each in state.progress if each.member.server != order.server or each.member in members]
    turn.set(progress=tuple(kept))
    if state.leads:
        _trim(turn)


def differs(turn: InputTurn, order: Differs) -> None:
    """Never again name this incarnation of a copy, and tell it so. `Stand` then changes the configuration."""
    state = turn.state
    if state.leads and order.member != state.member:
        turn.set(expelled=state.expelled | {order.member})
        turn.send(order.member.server, Expel(state.synced, order.member.incarnation))


def expel(turn: InputTurn, sender: int, message: Expel) -> None:
    """Have this copy begin again, if it is the one that differs."""
    state = turn.state
    if message.epoch == state.synced and message.incarnation == state.incarnation:
        turn.set(synced=NEVER, leads=False, standing=None)
        turn.outputs.append(Reset())
