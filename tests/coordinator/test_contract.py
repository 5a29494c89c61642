"""A policy may be anybody's code: whatever it breaks ends the job, with a sentence that says what."""

import pytest

from pslab.verify.harness import CoordinatorHarness, notices
from psserver.coordinator import inputs
from psserver.coordinator.status import explain, holdup, report
from psserver.decisions import entries
from psserver.policies import Apply, Cancel, Decision, Drop, Event, Fold, Grant, Part, Stop, Waiting
from pswire import protocol
from tests.coordinator import faulty_policies
from tests.coordinator.faulty_policies import Honest, Second, applied
from tests.sentences import Recorder


def play(breach: Second | type[Honest]) -> CoordinatorHarness:
    """w0 and w1 hold a ticket each; w0 commits until the policy has heard two commits of it, and a third."""
    policy = breach(workers=2) if isinstance(breach, type) else Honest(workers=2, second=breach)
    harness = CoordinatorHarness(policy, workers=2).starts()
    for _ in range(3):
        if not harness.stopped:
            harness.commits("w0")
    return harness


def evaluators(harness: CoordinatorHarness) -> dict[str, bool]:
    """Who was told to stop, and whether to evaluate before."""
    told = [(tell.worker, tell.notice) for tell in harness.told]
    return {worker: notice.evaluate for worker, notice in told if isinstance(notice, protocol.Stop)}


def test_who_keeps_the_contract_goes_on() -> None:
    harness = play(Honest)
    assert (harness.stopped, harness.version) == ("", 3)


def raises(ticket: int) -> object:
    raise ZeroDivisionError("by whatever")


UNKNOWN = "which is settled or unknown; expected one that is pending"
BREACHES: list[tuple[Second | type[Honest], str]] = [
    (lambda t: [*applied(t), Grant("w0", 999)], "grant of ticket 999, for which w0 does not wait"),
    (lambda t: [*applied(t), Grant("nobody", 1)], "grant of ticket 1, for which nobody does not wait"),
    (faulty_policies.GrantsTwice, "for which w0 does not wait"),
    (lambda t: applied(t) * 2, UNKNOWN),
    (lambda t: [Apply((Part(t), Part(t)))], "expected at least one, and each once"),
    (lambda t: [Apply(())], "expected at least one, and each once"),
    (lambda t: [Apply((Part(t), Part(999)))], f"apply of ticket 999, {UNKNOWN}"),
    # The other worker's, which is still being computed.
    (lambda t: applied(t + 1), UNKNOWN),
    (lambda t: [Fold(t, 1.0), Apply((Part(t, 2.0),))], "expected first what was folded, as it was"),
    (lambda t: [Fold(t)], "expected first what was folded, as it was"),
    (lambda t: [Fold(t), Fold(t)], "is folded already"),
    (lambda t: [Fold(999)], f"fold of ticket 999, {UNKNOWN}"),
    (lambda t: [Fold(t), Drop(t, "test")], "which is folded: expected it in an apply"),
    (lambda t: [Drop(t, "test")] * 2, UNKNOWN),
    (lambda t: [Cancel(t, "test")], "which is pending; expected one that is open"),
    (lambda t: [Apply((Part(t, float("nan")),))], "expected weights within 3.40282e"),
    (
        lambda t: [Apply((Part(t),), scale=float("inf"))],
        "expected a scale and a scale of the learning rate within",
    ),
    (lambda t: [Apply((Part(t, 1.0, 0.04),))], "expected a policy whose tensors name a compensator"),
    (faulty_policies.FoldsForAList, "median needs all contributions of an update at once"),
    (faulty_policies.ListsTwoOfOne, "krum needs at least 3, each of another worker"),
    (lambda t: [Apply((t,))], "expected Part(ticket, factor)"),
    (lambda t: [Apply(Part(t))], "expected a tuple of Part(ticket, factor)"),
    (lambda t: [Apply((Part(t, "much"),))], "expected weights within 3.40282e+38, got Part("),
    (lambda t: [Apply((Part(t),), scale=None)], "of 0 or more, got None and 1.0"),
    (lambda t: [Apply((Part(t),), lr_scale=-1)], "the latter of 0 or more, got 1.0 and -1"),
    (lambda t: [Apply((Part(t, 1e30),), scale=1e30)], "1e+30 times 1e+30 is beyond 3.40282e+38"),
    (lambda t: [Apply((Part(t, 10**400),))], "expected weights within 3.40282e+38, got Part("),
    (faulty_policies.TurnsToWords, "expected a turn of 0 or more, got 'first'"),
    (lambda t: [Drop(t, 404)], "expected a text as its reason"),
    (lambda t: tuple(applied(t)), "expected a list of decisions, [] for none"),
    (raises, "ZeroDivisionError: by whatever"),
    (lambda t: ["apply it"], "got 'apply it'"),
    (lambda t: None, "its step returned None; expected a list of decisions, [] for none"),
    (faulty_policies.NeverGrants, "deadlocked: w0, w1 wait and no ticket is open"),
]


@pytest.mark.parametrize(("breach", "sentence"), BREACHES, ids=[sentence for _, sentence in BREACHES])
def test_a_breach_ends_the_job(breach: Second | type[Honest], sentence: str) -> None:
    harness = play(breach)
    stopped = harness.coordinator.state.stopped
    assert stopped is not None
    assert (stopped.success, stopped.cause) == (False, "policy")
    assert stopped.reason.startswith(f"policy {harness.coordinator.policy.name} ")
    assert sentence in stopped.reason
    # Everybody hears of it, nobody is asked to evaluate, and the books are closed.
    assert evaluators(harness) == {"w0": False, "w1": False}
    assert [tally.pending for tally in harness.coordinator.state.roster.tallies.values()] == [0, 0]
    assert harness.kinds.count("stop") == 1
    verdict = harness.verdict()
    assert verdict.violations == (), [str(violation) for violation in verdict.violations]


def test_after_a_breach_everything_is_answered() -> None:
    harness = play(raises)
    for worker in ("w0", "w1"):
        assert notices(harness.ready(worker), protocol.Stop)
        assert notices(harness.done(worker), protocol.Stop)
        harness.leaves(worker)
    assert harness.coordinator.state.over


def test_a_breach_at_the_start() -> None:
    class NoStart(Honest):
        def step(self, event: Event) -> list[Decision]:
            raise RuntimeError("not ready")

    harness = CoordinatorHarness(NoStart(workers=2), workers=2).starts()
    assert harness.stopped.startswith(
        "policy: policy NoStart failed on Join(worker='w0', rank=0): RuntimeError"
    )


def test_a_policy_that_wants_to_exit_ends_the_job_not_the_process() -> None:
    class Exits(Honest):
        def step(self, event: Event) -> list[Decision]:
            raise SystemExit(0)

    harness = CoordinatorHarness(Exits(workers=2), workers=2).starts()
    assert harness.stopped.startswith(
        "policy: policy Exits failed on Join(worker='w0', rank=0): SystemExit: 0"
    )


def test_a_policy_that_cannot_explain_itself_harms_nobody(sentences: Recorder) -> None:
    harness = CoordinatorHarness(faulty_policies.ExplainsBadly(workers=2), workers=2).starts()
    sentence, releasers = explain(harness.coordinator, harness.member("w1"), harness.now)
    sentences.check(sentence)
    assert releasers == ()
    held = holdup(harness.coordinator, harness.now + 3)
    assert held is not None and held[1] == f"w1 has waited 3.0 s for {sentence}"
    assert report(harness.coordinator, harness.now).workers[1].waiting_for == sentence


def test_a_policy_that_gives_no_reason() -> None:
    class Silent(faulty_policies.ExplainsBadly):
        def explain(self, worker: str) -> None:
            return None

    harness = CoordinatorHarness(Silent(workers=2), workers=2).starts()
    assert explain(harness.coordinator, harness.member("w1"), harness.now) == (
        "the policy, which gives no reason",
        (),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "be patient",
        Waiting("x", None),
        Waiting("x", "w0"),
        Waiting("x", (1,)),
        Waiting(3, ()),
        Waiting("x", (), 3),
    ],
)
def test_an_explanation_of_another_kind(wrong: object) -> None:
    class Wordy(faulty_policies.ExplainsBadly):
        def explain(self, worker: str) -> Waiting | None:
            return wrong  # type: ignore[return-value]

    harness = CoordinatorHarness(Wordy(workers=2), workers=2).starts()
    sentence, releasers = explain(harness.coordinator, harness.member("w1"), harness.now)
    assert sentence.startswith(
        f"the policy, whose explain returned {wrong!r}; expected Waiting(event, releasers), "
    )
    assert releasers == ()
    assert holdup(harness.coordinator, harness.now) is not None


def test_a_policy_that_exits_while_it_explains(sentences: Recorder) -> None:
    class Leaving(faulty_policies.ExplainsBadly):
        def explain(self, worker: str) -> Waiting | None:
            raise SystemExit(3)

    harness = CoordinatorHarness(Leaving(workers=2), workers=2).starts()
    sentence, _ = explain(harness.coordinator, harness.member("w1"), harness.now)
    sentences.check(sentence)
    # Asked by the job itself, too: whom a worker waits for that holds a ticket for long.
    harness.commits("w0")
    harness.now += 60
    harness.gives(inputs.Tick())
    assert harness.coordinator.state.stopped is None


def test_a_policy_may_end_the_job(sentences: Recorder) -> None:
    harness = play(lambda ticket: [*applied(ticket), Stop("it is good enough")])
    assert harness.stopped.startswith("policy: ")
    sentences.check(harness.stopped)
    stops = harness.entries(entries.Stop)
    assert [(stop.version, stop.success) for stop in stops] == [(2, True)]
    assert evaluators(harness) == {"w0": True, "w1": False}
