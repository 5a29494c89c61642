"""The model of a job: held by this server's shard, and named to the other servers; or taken up from a checkpoint."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

import grpc

from psserver.checkpoint import Checkpoint, CheckpointError, coordinator_of, name_of, plan_of, shards_of
from psserver.optimizers import Optimizer, OptimizerError, build
from psserver.service.errors import Refused, precondition
from psserver.service.job.decider import Decider
from psserver.service.store.resume_point import ResumePoint
from pswire.model.plan import Plan
from pswire.model.specs import specs_to_wire
from pswire.patience import transfer
from pswire.records import StateError
from pswire.v1 import shard_pb2


class JobModel:
    """The loop's thread owns it. `announce` is called with the plan when it is known."""

    def __init__(self, decider: Decider, announce: Callable[[Plan], None]) -> None:
        self._decider, self._announce = decider, announce

    def hold(self, plan: Plan, optimizer: Optimizer) -> None:
        """A new shard here. Raises Refused where it cannot be, with nothing changed."""
        policy = self._decider.agreement.policy
        tensors = policy.tensors
        try:
            optimizer.check_aggregator(tensors.aggregator)
            optimizer.check_local(policy.local_rule.name)
            self._decider.host.configure(plan, optimizer, tensors, self._decider.agreement.terms.checkpoints)
        except MemoryError as error:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"server 0 has no memory for this model: its part has {plan.shards[0].nbytes} bytes, and "
                f"{optimizer.name} keeps {len(optimizer.slots)} more arrays of that size",
            ) from error
        except OptimizerError as error:
            raise precondition(f"this model and the job's optimizer do not go together: {error}") from error

    def adopt(self, plan: Plan, checkpoint: str = "", entries: int = 0) -> None:
        """It is the job's. `checkpoint`: that the servers take up, behind so many entries of the log."""
        decider, agreement = self._decider, self._decider.agreement
        assert agreement.optimizer is not None
        agreement.plan, decider.assurance.optimizer = plan, agreement.optimizer
        largest = max(shard.nbytes for shard in plan.shards)
        decider.coordinator.planned(transfer(largest, 0.0))
        message = shard_pb2.Configure(
            variables=specs_to_wire(plan.variables),
            plan=plan.fingerprint,
            optimizer=json.dumps(agreement.optimizer.config),
            tensors=json.dumps(agreement.policy.tensors.config),
            checkpoint=checkpoint,
            entries=entries,
            checkpoints=agreement.terms.checkpoints,
        )
        for follower in decider.routes.followers:
            follower.configure(message)
        self._announce(plan)


def resume(decider: Decider, model: JobModel, checkpoint: Checkpoint, found: ResumePoint) -> None:
    """Coordinator, shard and log are those of the checkpoint. Raises CheckpointError."""
    about, agreement = checkpoint.manifest, decider.agreement
    optimizer = agreement.optimizer or build(about.optimizer)
    agreement.optimizer = decider.assurance.optimizer = optimizer
    agreement.terms = replace(agreement.terms, optimizer=optimizer.config)
    plan, now = plan_of(checkpoint, agreement.terms.servers), time.monotonic()
    decider.take_up(coordinator_of(checkpoint, agreement.terms, agreement.policy, now, decider.assurance))
    try:
        model.hold(plan, optimizer)
        decider.host.take_up(shards_of(checkpoint, plan)[0], about.entry + 1)
    except (Refused, StateError) as error:
        raise CheckpointError(
            f"the checkpoint of version {about.version} cannot be taken up: {error}"
        ) from error
    begun = found.mark.first_grant
    first_grant = None if begun is None else now - about.t + begun
    decider.routes.go_on(about.entry + 1, about.version, decider.coordinator.folded, first_grant)
    model.adopt(plan, name_of(about.entry, about.job), about.entry + 1)
