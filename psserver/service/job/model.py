"""The model of a job: held by this server's shard, and named to the other servers."""

import json
from collections.abc import Callable

import grpc

from psserver.optimizers import Optimizer, OptimizerError
from psserver.service.errors import Refused, precondition
from psserver.service.job.decider import Decider
from pswire.model.plan import Plan
from pswire.model.specs import specs_to_wire
from pswire.patience import transfer
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
