"""Faults in all areas, and the tests that must fail for each.

A fault is a place in the source, found by its text, and what is written there instead. The text may stand in any module
of the four packages: a fault survives a move of its module. `$name` stands for any name: it survives the renaming of a
variable. A fault whose text occurs nowhere or twice no longer applies: `test_planted.py` fails, and the fault has to be
mended.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

PACKAGES: Final = ("pswire", "psserver", "psworker", "pslab")
HOLE: Final = re.compile(r"\$([a-z_]+)")


class FaultError(ValueError):
    """A fault whose text does not occur exactly once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`text`: a piece of source with the part to replace between « and »; white space does not matter. `wrong`: what is
    written instead. Names with a dollar sign match any name, the same one each time. `tests`: paths below tests/, of
    which one must fail."""

    name: str
    text: str
    wrong: str
    tests: tuple[str, ...]

    def plant(self, sources: Mapping[Path, str]) -> tuple[Path, str]:
        """Return the file and its text with the fault. Raises FaultError."""
        known: set[str] = set()
        before, part, after = (_pattern(piece, known) for piece in re.split("[«»]", self.text))
        pattern = r"\s*".join(filter(None, (before, f"(?P<part_>{part})", after)))
        compiled = re.compile(pattern)
        found = [(path, each) for path, source in sources.items() for each in compiled.finditer(source)]
        if len(found) != 1:
            places = ", ".join(str(path) for path, _ in found) or "nowhere"
            raise FaultError(
                f"{self.name}: expected this text once in {', '.join(PACKAGES)}, got it in {places}: "
                f"{' '.join(self.text.split())}"
            )
        ((path, match),) = found
        wrong = HOLE.sub(lambda hole: match[hole[1]], self.wrong)
        source = sources[path]
        return path, source[: match.start("part_")] + wrong + source[match.end("part_") :]


def _pattern(text: str, known: set[str]) -> str:
    """Return a regular expression for `text`, whose tokens may stand on other lines. `known`: names met so far."""
    tokens = re.findall(r"\$[a-z_]+|\w+|[^\w\s]", text)
    found = []
    for token, following in pairwise([*tokens, ""]):
        if hole := HOLE.fullmatch(token):
            found.append(f"(?P={hole[1]})" if hole[1] in known else rf"(?P<{hole[1]}>\w+)")
            known.add(hole[1])
        else:
            found.append(re.escape(token))
        words = re.match(r"[\w$]", token[-1]) and re.match(r"[\w$]", following)
        found.append(r"\s+" if words else r"\s*")
    return "".join(found[:-1])


def sources(root: Path) -> dict[Path, str]:
    """Return the text of each module of the packages but generated ones, by its path."""
    return {
        path: path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if "pb2" not in path.name
    }


# Real servers and workers, and what a seed draws.
WORLD: Final = ("world/test_world.py",)
FAULTS: Final = (
    # Policies
    Fault(
        "a gradient is dropped one version too early",
        "if $staleness «<=» $x.bound: return $full return DropVerdict",
        "<",
        ("policies/test_reference.py",),
    ),
    Fault(
        "an update ages open tickets by one more than allowed",
        "$oldest is not None and view.version «+ 1» - $oldest > self.bound",
        "",
        ("policies/test_reference.py",),
    ),
    Fault(
        "a fast worker runs one clock further ahead than its slack",
        "member.clock - view.slowest_clock() «<=» self.slack",
        "- 1 <=",
        ("policies/test_reference.py",),
    ),
    Fault(
        "an old gradient is weighted as if one version younger",
        "factor=(self.bound + 1) / ($staleness + «1»)",
        "2",
        ("policies/test_reference.py",),
    ),
    Fault(
        "the mean of an update divides by one more than its contributions",
        "scale = 1.0 / «len(parts)» if rules.norm",
        "(len(parts) + 1)",
        ("policies/test_reference.py", "coordinator/test_traces.py"),
    ),
    Fault(
        "contributions are summed as they come, not by rank",
        "if «by_rank»: insort",
        "False",
        ("policies/test_reference.py",),
    ),
    # Coordinator
    Fault(
        "a commit that is sent again counts again",
        'if ticket.state «!= "open"»: ledger.notify(member, ticket.fate or',
        'not in ("open", "pending")',
        ("coordinator/test_schedules.py",),
    ),
    Fault(
        "a commit without a valid receipt is taken",
        "else: «$missing.append($server)» return Examined",
        "pass",
        ("service/test_bad_sessions.py",),
    ),
    Fault(
        "a worker joins with another one's task index",
        "if holder is not None and holder.worker «!=» worker: raise _NotNowError",
        "is",
        ("coordinator/test_members.py",),
    ),
    Fault(
        "the part of a lost worker is not dealt again",
        'made without it. """ self.outstanding -= 1 «self._again(part)»',
        "pass",
        ("coordinator/test_work_units.py",),
    ),
    Fault(
        "one more work unit is dealt than an epoch has",
        "self.unit += 1 if self.unit «==» self.terms.units",
        "== 1 +",
        ("coordinator/test_work_units.py",),
    ),
    # Shards and their arithmetic
    Fault(
        "a committed payload is not sealed",
        "self.staging.tickets[$ticket].sealed = «True»",
        "False",
        ("shard/test_staging.py", "shard/test_orders.py"),
    ),
    Fault(
        "a payload of another worker is taken",
        "if worker is not None and «worker != opened.worker»",
        "False",
        (
            "service/test_proofs.py",
            "service/test_bad_payloads.py",
            "service/test_bad_exchanges.py",
            "service/test_slots.py",
        ),
    ),
    Fault(
        "a version that two tickets hold is overwritten when the first has read it",
        "version.holds -= 1 if «not version.holds and» number != self.newest: self._drop(version)",
        "",
        ("shard/test_arena.py",),
    ),
    Fault(
        "the second gradient of a sum takes the first one's factor",
        "arithmetic.fold(self._values, self._pending, payload, «factor», backend)",
        "self._factors",
        ("shard/test_reference.py", "shard/test_arithmetic.py"),
    ),
    Fault(
        "the mean of layers' own state divides by a wrong sum of factors",
        "self._pending = 1.0 self._factors «+=» abs(factor)",
        "=",
        ("shard/test_reference.py", "shard/test_orders.py"),
    ),
    Fault(
        "an old value of layers' state counts as much as a new one",
        "return «tickets / (tickets + staleness)» if staleness else 1.0",
        "1.0",
        ("shard/test_mixing.py", "shard/test_reference.py"),
    ),
    Fault(
        "changes of layers' state are added to a newer version than they started from",
        "change[here] += «base - now[here]»",
        "0",
        ("shard/test_mixing.py", "shard/test_reference.py"),
    ),
    Fault(
        "a gradient that is not finite is taken",
        "if squares is None: return «self.nonfinite(target, start)»",
        "None",
        ("service/test_bad_payloads.py", "shard/test_nonfinite.py"),
    ),
    Fault(
        "an element of a version is not finite",
        "«np.copyto(out, now, where=kept)» for name",
        "pass",
        ("shard/test_nonfinite.py", "shard/test_kept_back.py"),
    ),
    Fault(
        "a commit is decided before all servers have told about its version",
        "return ticket.base if ticket is not None and not ticket.initialise and «ticket.base > told» else None",
        "False",
        ("service/test_nonfinite.py",),
    ),
    Fault(
        "what is told again counts again",
        "if «given.version <= kept.told»: return",
        "False",
        ("coordinator/test_finite.py",),
    ),
    Fault(
        "a whole variable that is kept back counts for nothing",
        "if «fact.whole or» fact.kept >= SHARE * fact.elements:",
        "",
        ("coordinator/test_traces.py",),
    ),
    Fault(
        "delay compensation takes the gradient once instead of squared",
        "g = gradient[i] gradient[i] = g + (now[i] - base[i]) * g «* g» * strength",
        "",
        ("shard/test_arithmetic.py",),
    ),
    # Optimizers
    Fault(
        "Adam's corrections begin at 0 instead of 1",
        "power_2 = np.float32(math.pow(np.float32(beta_2), «step»))",
        "step - 1 or 1",
        ("optimizers/test_keras.py",),
    ),
    Fault(
        "heavy-ball momentum adds the gradient with the wrong sign",
        'velocity = s["momentum"] * s["kept"] «-» g * s["rate"] return {"x": x + velocity',
        "+",
        ("optimizers/test_keras.py",),
    ),
    Fault(
        "clipping by norm squares the limit",
        "share = self.limit / «norm» if",
        "(norm * norm)",
        ("optimizers/test_keras.py", "optimizers/test_contract.py"),
    ),
    # The wire
    Fault(
        "error feedback forgets the residual of a commit",
        "(self.base, «self.residual»), self._next = self._next, None",
        "_",
        ("pswire/test_blocks.py",),
    ),
    Fault(
        "the residual of a dropped payload still counts",
        "(self.base, «self.residual»), self._before = self._before, None",
        "_",
        ("pswire/test_blocks.py",),
    ),
    Fault(
        "a number beyond its bound is let through",
        'case Whole(most, 0) if $field.type in $unsigned: return f"{value} > {«most»}"',
        "most + 1",
        ("pswire/test_bounds.py",),
    ),
    Fault(
        "two plans with other shapes have one fingerprint",
        "json.dumps([spec.name, «list(spec.shape)», spec.dtype, spec.kind])",
        "len(spec.shape)",
        ("pswire/test_plan.py",),
    ),
    Fault(
        "rows of a variable are gathered one place off",
        "whole[piece.start : piece.stop] = «values».reshape",
        "values[::-1]",
        ("pswire/test_plan.py",),
    ),
    # Servers
    Fault(
        "a peer calls what is not for its role",
        "if «peer.role not in ROLES.get(method, ())»: why",
        "peer.role is None",
        ("security/test_roles.py",),
    ),
    Fault(
        "a worker takes a name that belongs to another credential",
        "if holder «!= peer.credential»: raise denied",
        "is None",
        ("security/test_names.py", "security/test_worker_names.py"),
    ),
    Fault(
        "a request with a forged membership token is served",
        "return «hmac.compare_digest(self.token, expected)»",
        "bool(expected)",
        ("service/test_proofs.py",),
    ),
    Fault(
        "a worker is told its fate before the log has it",
        "if «self._due»: $future = self._runtime.loop.create_future()",
        "False",
        ("service/test_log_flush.py",),
    ),
    Fault(
        "a full server evicts the newest stranger",
        "oldest = next(«iter»(self.strangers))",
        "reversed",
        ("service/test_strangers.py",),
    ),
    Fault(
        "a member that has spent its pace goes on",
        "if self.wait(key) > «0»: return False",
        "1e9",
        ("service/test_pace.py",),
    ),
    Fault(
        "a read does not wait for the log",
        "if state.executed <= after: «await self._catch_up(after)»",
        "pass",
        ("service/test_call_limits.py",),
    ),
    # Checkpoints
    Fault(
        "a file of a checkpoint is not synced before it gets its name",
        "«file.sync()» finally: file.close() disk.rename(aside, path)",
        "pass",
        ("checkpoint/test_store.py", "checkpoint/test_disk_faults.py"),
    ),
    Fault(
        "a checkpoint's manifest is written before its folder is synced",
        "self.disk.sync_folder(self.root.parent) «self.disk.sync_folder(folder)»",
        "pass",
        ("checkpoint/test_store.py", "checkpoint/test_disk_faults.py"),
    ),
    Fault(
        "a complete checkpoint is not synced",
        "self._write(folder / manifest.NAME, _cut(about.text())) «self.disk.sync_folder(folder)»",
        "pass",
        ("checkpoint/test_disk_faults.py",),
    ),
    Fault(
        "a damaged checkpoint is read without complaint",
        "if got «!=» facts.sha256",
        "is",
        ("checkpoint/test_store.py",),
    ),
    Fault(
        "pruning keeps one checkpoint too few",
        "spare = complete[: -max(1, «keep»)]",
        "keep - 1",
        ("checkpoint/test_store.py", "checkpoint/test_generations.py"),
    ),
    Fault(
        "a rewound log keeps a line too much",
        "_cut(log, «mark.end»)",
        "mark.end + 1",
        ("checkpoint/test_damaged_logs.py", "checkpoint/test_store.py"),
    ),
    # Workers
    Fault(
        "a commit that counted before the worker joined again is made once more",
        "or commit.batch «<» next_batch",
        ">",
        ("engine/test_client.py",),
    ),
    Fault(
        "a commit that a cancel has crossed counts for its worker",
        "and each.ticket == ticket and «each.cancelled»)",
        "False",
        ("engine/test_client.py",),
    ),
    Fault(
        "EASGD pulls a worker away from the centre",
        "own.append(local «-» pulled)",
        "+",
        ("local/test_elastic.py",),
    ),
    # The lab
    Fault(
        "the checker accepts a wrong staleness",
        "if part.staleness «!= version - 1 - part.base»: yield",
        "< 0",
        ("lab/test_check.py",),
    ),
    Fault(
        "the checker accepts a second commit of a ticket",
        '"commit": («OPEN»,), "fold"',
        "OPEN, COMMITTED",
        ("lab/test_check.py",),
    ),
    Fault(
        "the simulated network forgets its latency on the way back",
        "link.send(nbytes, lambda: queue.after(«latency», then))",
        "0.0",
        ("simulator/test_network.py",),
    ),
    Fault(
        "replay computes gradients from the newest version, not from the base",
        "$base = self._log.held[commit.ticket].«base» if commit.ticket in self._parts",
        "ticket and self.result.version",
        ("replay/test_replay.py",),
    ),
    Fault(
        "the dashboard serves without its token",
        "return any(hmac.compare_digest(token.encode(), one.encode()) for one in «(given, $cookie)»)",
        "(token, $cookie)",
        ("dashboard/test_access.py",),
    ),
    Fault(
        "metrics forget the workers that were dropped as stale",
        '"stale": «"stale"»,',
        '"other"',
        ("metrics/test_counts.py",),
    ),
    # Deadlines, and policies that take over
    Fault(
        "a timer that is set in a pause is late by the whole pause",
        "self.pending[tag] = at if «self.paused_since is None» else",
        "True",
        ("coordinator/test_timers.py",),
    ),
    Fault(
        "timers are due at once when another server leads",
        "self.begin() if self._heard is not None: # Nobody could decide since then, so the job stood still. "
        "self.hear(«self._heard»)",
        "self.now()",
        ("service/test_job_time.py",),
    ),
    Fault(
        "timers of one time fire in the order of their tags",
        "tag = next(tag for tag, at in «self.pending.items()» if at == self._soonest)",
        "sorted(self.pending.items())",
        ("coordinator/test_timers.py", "replay/test_copies.py"),
    ),
    Fault(
        "dbw waits for all every other round",
        "PROBE = «20»",
        "1",
        ("policies/test_deadlines.py",),
    ),
    Fault(
        "a deadline waits for nobody who missed too many updates",
        "missed «>=» self.patience and worker in view.members",
        ">= 9 +",
        ("policies/test_deadlines.py", "lab/test_check.py"),
    ),
    Fault(
        "a policy with a deadline that takes over has no times",
        "fresh.now = fresh.began = microseconds(t) «view.times = fresh»",
        "pass",
        ("dashboard/test_play.py",),
    ),
    # Another policy while the job runs
    Fault(
        "a policy takes over while a contribution waits",
        "def rests(self) -> bool: return «not self._view.buffer»",
        "True",
        ("coordinator/test_traces.py", "coordinator/test_policy_changes.py"),
    ),
    Fault(
        "a policy settles while a ticket from before is open",
        "if changes.unsettled and «not (changes.overlap & job.tickets.live.keys())»",
        "True",
        ("coordinator/test_traces.py", "coordinator/test_policy_changes.py"),
    ),
    Fault(
        "clocks that nothing bounded go on under the policy that takes over",
        "if not «(former._rules.gate.bounds_clocks and self._rules.gate.bounds_clocks)»: view.restart_clocks()",
        "True",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a change waits although it takes the place of one that waits",
        "if «not replaces»: return for ticket",
        "True",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a policy changes during a recovery",
        "if not self._job.«trains»: raise PolicyError",
        "initialised",
        ("coordinator/test_traces.py", "coordinator/test_policy_changes.py"),
    ),
    Fault(
        "a planned change comes again and again",
        "changes.planned += «1»",
        "0",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a saved state forgets which planned changes were made",
        "unsettled: bool = False planned: int = «0»",
        "field(default=0, init=False)",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a saved state forgets the tickets from before a change",
        "overlap: set[int] = «field(default_factory=set)»",
        "field(default_factory=set, init=False)",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a change by hand is not saved before the next checkpoint",
        "«ledger.save_soon()»",
        "pass",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a guarantee is checked in full before the policy has settled",
        "case e.Apply() as update if «not self._unsettled»",
        "True",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "the check holds a new policy to nothing at once",
        "e.Drop(worker, ticket, staleness, reason) if «reason not in ALWAYS»",
        "not self._unsettled and reason not in ALWAYS",
        ("lab/test_check_changes.py",),
    ),
    Fault(
        "another local rule may take over",
        '("another local rule", former.local_rule, «self.local_rule»)',
        "former.local_rule",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a planned change without a name forgets the other knobs",
        "else (name, «knobs | change.knobs»)",
        "change.knobs",
        ("simulator/test_policy_plan.py",),
    ),
    Fault(
        "a change is not checked against the codec",
        "check_codec(agreement.codec, «policy», agreement.optimizer)",
        "agreement.policy",
        ("service/test_policy_changes.py",),
    ),
    Fault(
        "the rate of a change does not reach an update",
        "apply.lr_scale * self._job.lr_scale * «self._job.changes.rate»",
        "1.0",
        ("coordinator/test_policy_changes.py",),
    ),
    Fault(
        "a change without a rate sets it back",
        "if «change.rate is not None»: changes.rate = change.rate",
        "True",
        ("coordinator/test_policy_changes.py",),
    ),
    # The advisor, a problem of one's own, and the playground
    Fault(
        "a simpler policy is as fast however far behind it is",
        "seconds[each] <= «(1 + PACE)» * min(seconds.values())",
        "9",
        ("lab/test_advise.py",),
    ),
    Fault(
        "a limit in versions ends the plays of some policies early",
        'update={"versions": «0»',
        "experiment.run.versions",
        ("lab/test_advise.py",),
    ),
    Fault(
        "a gradient of another shape is taken from a problem of one's own",
        "like is not None and value.shape «!=» like.shape",
        "is",
        ("simulator/test_own_problems.py",),
    ),
    Fault(
        "visitors of a playground may name any code",
        'if ":" «in» experiment.policy.name: raise PlaygroundError',
        "not in",
        ("dashboard/test_play.py",),
    ),
    # The World
    Fault(
        "a commit whose answer is lost counts again",
        'if ticket.state «!= "open"»: ledger.notify(member, ticket.fate or',
        'not in ("open", "pending")',
        WORLD,
    ),
    Fault(
        "what counted before a member was given up is made once more",
        "or commit.batch «<» next_batch",
        ">",
        WORLD,
    ),
    Fault(
        "a batch is lost with the cancel that crosses its commit",
        "and each.ticket == ticket and «each.cancelled»)",
        "False",
        WORLD,
    ),
    Fault(
        "every deadline is over behind a pause",
        "counted + «min(present - seen, STEP)»",
        "present - seen",
        WORLD,
    ),
    Fault(
        "a name is taken from an owner that computes",
        'Ruling("refuse") if «linked and not lost» else TAKE',
        "False",
        WORLD,
    ),
    Fault(
        "a commit is taken whose payload was swallowed",
        'return ticket is not None and «ticket.state != "open"» def counted',
        "True",
        WORLD,
    ),
    Fault(
        "a server that is dialled again misses an order",
        "for index, order in self._kept if index «>=» reply.executed",
        ">",
        WORLD,
    ),
    Fault(
        "a job that goes on keeps half a line of its log",
        "_cut(log, «mark.end»)",
        "mark.end + 1",
        WORLD,
    ),
    Fault(
        "a member whose connection breaks has no time to come back",
        "if member.absent_since is not None and now - member.absent_since >= «self._ledger.terms.grace»",
        "0.0",
        WORLD,
    ),
    Fault(
        "a worker that comes back skips a batch",
        "self.next_batch = max(self.next_batch, min(batch «+ 1», most))",
        "+ 2",
        WORLD,
    ),
)
