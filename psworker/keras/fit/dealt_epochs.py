"""Keras' epochs where the coordinator deals the data: an epoch ends when the next part belongs to another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psworker.keras.fit.data import DealtData
from psworker.keras.fit.steps import Steps


class DealtEpochs:
    """Trains on the parts that come with the grants, epoch by epoch."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        # Keras stops only because the next part belongs to another epoch.
        self._pausing = False
        # This worker had a part of the epoch that Keras is in.
        self.trained = False
        # What the metrics count: batches of one epoch of the job, in one generation of it.
        self._counting: tuple[str, int] | None = None

    def begin(self) -> None:
        """Join the job before Keras counts its epochs.

        Where others have gone through some, this fit, and its history, begin with the one that the job is in.
        """
        steps, model = self._steps, self._steps.model
        if steps.dealt is None:
            return
        steps.types = steps.dealt.types
        steps.prepare(steps.dealt.first)
        steps.hold()
        part = steps.grant.part if steps.grant is not None else None
        if part is not None and steps.dealt.keras_epoch(part.epoch) > (model._initial_epoch or 0):
            model._initial_epoch = steps.dealt.keras_epoch(part.epoch)

    def train(self, dealt: DealtData) -> Mapping[str, Any]:
        """Train on the parts that came with the grants, until one belongs to another epoch than Keras is in."""
        steps, model = self._steps, self._steps.model
        steps.hold()
        # Compiled metrics have no result before their first batch, which an eager step makes.
        unbuilt = model._compile_metrics is not None and not model._compile_metrics.built
        logs: Mapping[str, Any] = {} if unbuilt else model.get_metrics_result()
        for _ in range(model.steps_per_execution):
            grant = steps.grant
            if grant is None or model.stop_training:
                break
            assert grant.part is not None
            if grant.part.epoch <= dealt.epoch:
                self.trained = True
                self._count_once(grant.part.epoch)
                unit = steps.link.unit(grant)
                logs = steps(dealt.batch(unit), dealt.work.count * unit.epoch + unit.number)
        grant = steps.grant
        if grant is not None and grant.part is not None and grant.part.epoch > dealt.epoch:
            self.pause()
        return logs

    def _count_once(self, epoch: int) -> None:
        """Reset the metrics where the job has gone back to a checkpoint: batches that they counted are dealt again."""
        counting = (self._steps.link.info.job, epoch)
        if counting != self._counting:
            self._counting = counting
            self._steps.model.reset_metrics()

    def pause(self) -> None:
        """Let Keras end the epoch here, and continue with the next one."""
        self._pausing = not self._steps.model.stop_training
        self._steps.model.stop_training = True

    def end_epoch(self) -> None:
        """Let Keras continue after the end of an epoch."""
        if self._pausing:
            self._steps.model.stop_training = self._pausing = False
