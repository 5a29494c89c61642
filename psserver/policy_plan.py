"""The changes of the policy that an experiment plans, tried out before anything starts."""

from collections.abc import Iterator

from psserver.codec_rules import check_codec
from psserver.coordinator.terms import Planned
from psserver.optimizers import Optimizer
from psserver.policies import Policy, PolicyError
from psserver.policies.succession import successor
from pswire.config.experiment import Experiment
from pswire.transport.wire import wire_named


def plan_of(experiment: Experiment, policy: Policy, optimizer: Optimizer | None) -> tuple[Planned, ...]:
    """Return the plan of a job that begins with `policy`. `optimizer`: None if not known yet.

    Raises PolicyError, which names the change, for a policy that cannot take over from the one before it.
    """
    cluster, present, found = experiment.cluster, policy, list[Planned]()
    codec = wire_named(cluster.wire_dtype).up
    for number, planned in enumerate(_planned(experiment, policy)):
        try:
            present = successor(present, planned.name, planned.knobs, cluster.workers, cluster.parts)
            check_codec(codec, present, optimizer)
        except PolicyError as error:
            raise PolicyError(f"policy.then[{number}]: {error}") from error
        found.append(planned)
    return tuple(found)


def _planned(experiment: Experiment, policy: Policy) -> Iterator[Planned]:
    """Yield the changes as the file has them; one without a name changes knobs of the policy before it."""
    name, knobs = policy.name, dict(policy.knobs)
    for change in experiment.policy.then:
        name, knobs = (change.name, change.knobs) if change.name else (name, knobs | change.knobs)
        yield Planned(name, knobs, change.versions, change.why, change.rate or None)
