"""Faults of the protocol: each is a place in psserver/replication, and what is written there instead."""

from typing import Final

from tests.planted.faults import Fault

TESTS: Final = ("replication/test_planted.py",)


def fault(name: str, text: str, wrong: str) -> Fault:
    return Fault(name, text, wrong, TESTS)


FAULTS: Final = (
    fault(
        "an item is stable without the follower",
        "stable = «min((each.end for each in state.progress if each.member in members), default=log.end)»",
        "log.end",
    ),
    fault(
        "an old epoch's items are taken",
        "state, config = turn.state, message.config if config.epoch < «state.disk.promised»",
        "0",
    ),
    fault(
        "a configuration is accepted below a promise",
        "if config.epoch < «promised»: turn.send(sender, Refuse(promised))",
        "0",
    ),
    fault(
        "a restarted server keeps its place",
        "return Replica(server, servers, «incarnation, holds, disk»)",
        "incarnation - 1, holds, disk, synced=disk.config.epoch",
    ),
    fault(
        "a restarted server acknowledges for its former self",
        "state, member = turn.state, «SyncMember(sender, message.incarnation)» if not",
        "next((m for m in turn.state.disk.config.members if m.server == sender), SyncMember(sender, 0))",
    ),
    fault("a repeated offer counts twice", "«or order.item in log.tail» or len", ""),
    fault(
        "the base comes from one's own configuration",
        "newest = «max(configs, key=lambda config: config.epoch)»",
        "state.disk.config",
    ),
    fault(
        "the oldest configuration gives the base",
        "newest = «max»(configs, key=lambda config: config.epoch)",
        "min",
    ),
    fault("one vote activates", "if «standing.operator»: _activate(turn, config)", "True"),
    fault("one of two servers is a majority", "return «servers // 2 + 1»", "(servers + 1) // 2"),
    fault(
        "a copy without the base says that it is in sync",
        "if not state.holds or message.first > state.log.stable: «return»",
        "return turn.send(sender, Synced(message.epoch, state.incarnation))",
    ),
    fault(
        "a promise is not on the disk",
        "return «turn.persist(message.epoch)» turn.send(sender, Promise",
        "turn.set(disk=type(state.disk)(message.epoch, state.disk.config))",
    ),
    fault(
        "a promise is sent before it is on the disk",
        "return «turn.persist(message.epoch) turn.send(sender, Promise(message.epoch, state.disk.config))»",
        "turn.send(sender, Promise(message.epoch, state.disk.config)); turn.persist(message.epoch)",
    ),
    fault(
        "a configuration is not on the disk",
        "return turn.persist(config.epoch«, config») turn.send(sender, Accepted(config.epoch))",
        "",
    ),
    fault(
        "a configuration is accepted before it is on the disk",
        "return «turn.persist(config.epoch, config) turn.send(sender, Accepted(config.epoch))»",
        "turn.send(sender, Accepted(config.epoch)); turn.persist(config.epoch, config)",
    ),
    fault(
        "a candidate truncates to what it knows to be stable",
        "turn.set(synced=standing.epoch«»)",
        ", log=turn.state.log.without_unstable()",
    ),
    fault(
        "a server that was left out keeps what is not stable",
        "log = log«.without_unstable()» turn.step_down",
        "",
    ),
    fault(
        "a repeated message makes logs equal again",
        "if «state.synced < message.epoch»: # A repeated",
        "True",
    ),
    fault(
        "an attempt outlives a higher promise",
        "if «standing is not None and standing.epoch < disk.promised»",
        "False",
    ),
    fault("a gap is taken", "if «message.start <= log.end»", "True"),
    fault("what is not stable is executed", "self.outputs.append(Execute(«log.stable»))", "log.end"),
    fault(
        "what a copy still needs is forgotten",
        "state.log.trimmed(«min((each.executed for each in state.progress), default=state.log.executed)»)",
        "state.log.executed",
    ),
    fault(
        "a copy is taken before what is kept for the learner",
        "return Progress(member, «log.executed, log.executed», copying=True)",
        "log.end, log.end",
    ),
    fault(
        "servers propose the same epoch", "return «(above // servers + 1) * servers + server»", "above + 1"
    ),
    fault(
        "digests are not compared",
        "return CopyDifference(member, at, own, digest) if «own != digest» else None",
        "False",
    ),
    fault(
        "a follower that has started again is waited for",
        "if «each.member == newest[each.member.server]» and not",
        "True",
    ),
    fault(
        "a learner is never named",
        "if each.member «not in» members and caught_up",
        "in",
    ),
)
