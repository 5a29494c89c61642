"""A job goes on from a checkpoint, in place of a beginning."""

import time
from dataclasses import replace

from psserver.checkpoint import Checkpoint, CheckpointError, coordinator_of, name_of, plan_of, shards_of
from psserver.optimizers import build
from psserver.service.errors import Refused
from psserver.service.job.decider import Decider
from psserver.service.job.model import JobModel
from psserver.service.saving.resume_point import ResumePoint
from pswire.records import StateError


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
