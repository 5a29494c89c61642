"""`Remote`: a model and its optimizer on parameter servers, for training loops of one's own.

A model with several optimizers (a GAN) has a `Remote` for each: an optimizer is a job.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from pswire.addresses import Address
from pswire.transport.codecs import codec_named
from psworker.connecting import connect
from psworker.engine import Grant
from psworker.errors import PayloadRefused, Unsupported, Voided
from psworker.keras.translate import TranslationError, translate, warn_of_clipping, worker_clips
from psworker.local import NONFINITE_LIMIT
from psworker.loop import Diverged
from psworker.servers import EmbeddedServer, find_servers
from psworker.session import Session
from psworker.tensorflow.casts import payload_of, tensor_of
from psworker.tensorflow.flats import FlatLayout
from psworker.tensorflow.variables import collect


class RemoteError(Unsupported, RuntimeError):
    """A call that does not fit the loop's `pull`, `apply`, `pull`, `apply`; nothing was sent."""


class Remote:
    """The loop: `while remote.pull() is not None: ...; remote.apply(gradients)`. Close it, or use `with`.

    `model`: a built Keras model, or a layer. `optimizer`: one of Keras', or its name; what can be said to
    `distribute` about optimizers holds here. `hosts`, `policy`, `seed`, `out`, `name`, `task_index`,
    `wire_dtype`, `transport`, `server_timeout`: as in `distribute`; without any servers one is started here.

    Raises TranslationError, and what `psworker.connect` raises. Not thread-safe.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        hosts: str | Sequence[Address] | None = None,
        *,
        policy: str | None = None,
        seed: int | None = None,
        out: str | Path | None = None,
        name: str | None = None,
        task_index: int | None = None,
        wire_dtype: str | None = None,
        transport: str | None = None,
        server_timeout: float = 60.0,
    ) -> None:
        self.model = model
        self._optimizer = keras.optimizers.get(optimizer)
        _check(self._optimizer)
        self._variables = collect(model)
        trained = zip(model.trainable_variables, self._variables.specs, strict=False)
        named = [(variable, spec.name) for variable, spec in trained]
        place = find_servers(hosts, os.environ, policy=policy, seed=seed, out=out)
        config = translate(self._optimizer, named, servers=1 if place is None else len(place.hosts))
        self._clips = worker_clips(self._optimizer, config)
        self._server = (
            EmbeddedServer(config, policy or "sync", seed or 0, None if out is None else Path(out))
            if place is None
            else None
        )
        addresses = (self._server.address,) if self._server is not None else place.hosts  # type: ignore[union-attr]
        dtype = wire_dtype or (place.wire_dtype if place is not None else "") or "float32"
        specs = list(zip(self._variables.specs, self._variables.values(), strict=True))
        try:
            self.session: Session = connect(
                addresses,
                specs,
                name=name,
                task_index=task_index if place is None or task_index is not None else place.task_index,
                wire_dtype=dtype,
                server_timeout=server_timeout,
                transport=transport or (place.transport if place is not None else "") or "auto",
                optimizer=config,
            )
        except BaseException:
            self._end_server()
            raise
        warn_of_clipping(self._optimizer, config, self.session.worker_count)
        self._layout = FlatLayout(self.session.plan, self._variables)
        self._dtypes = [tensor_of(np.empty(0, codec_named(dtype).array_dtype)).dtype] * len(addresses)
        self._grant: Grant | None = None
        self._before: list[Any] = []
        self._batch = self.session.next_batch
        self._rate = _rate(self._optimizer)
        self.version = 0
        self.fates: dict[str, int] = {}
        # How many gradients in a row were not finite.
        self._bad = 0

    def pull(self) -> int | None:
        """The granted version into the model's variables; its number, or None when the job is over.

        Called again before `apply` it is the same version again, without what changed the variables meanwhile.
        """
        while self._grant is None and (grant := self.session.ready()) is not None:
            self._grant = grant
        if self._grant is None:
            return None
        try:
            with self.session.view_flat(self._grant) as flats:
                for variable, value in zip(
                    self._variables.variables,
                    self._layout.cut([tensor_of(flat) for flat in flats]),
                    strict=True,
                ):
                    variable.assign(value)
        except Voided:
            self.session.abandon(self._grant, "cancelled")
            self._grant = None
            return self.pull()
        self._before = [tf.identity(v) for v in self._variables.variables[self._variables.trainable :]]
        self.version = self._grant.version
        return self.version

    def apply(self, gradients: Sequence[Any], *, samples: int = 1, loss: float = math.nan) -> bool:
        """Contribute gradients for `model.trainable_variables`, in order (None: zero), to the pulled version.

        `samples`: over how many they were averaged. The changes of state (BatchNorm's averages) since `pull` go
        along. False where they did not count: the ticket was cancelled, or a number is not finite.
        Raises RemoteError without a `pull` before, or for another number of gradients; Diverged (a SessionError)
        for the tenth in a row that are not finite, as `fit` does.
        """
        grant = self._grant
        if grant is None:
            raise RemoteError(
                "apply() without pull(): gradients are computed from a version, which pull() brings"
            )
        trainable, state = self._split(gradients)
        self._grant = None
        norm = float(tf.linalg.global_norm(trainable))
        payloads = [payload_of(parts) for parts in self._layout.join([*trainable, *state], self._dtypes)]
        rate = self._changed_rate()
        try:
            if not math.isfinite(norm):
                raise PayloadRefused(f"the gradient's norm is {norm}")
            self.session.contribute(
                grant,
                payloads,
                samples=samples,
                loss=float(loss),
                batch=self._batch,
                ready=True,
                learning_rate=rate,
            )
        except (Voided, PayloadRefused) as error:
            refused = isinstance(error, PayloadRefused)
            self.session.abandon(grant, "nonfinite" if refused else "cancelled")
            self._bad += refused
            if self._bad >= NONFINITE_LIMIT:
                raise Diverged(
                    f"{self._bad} gradients in a row were not finite: lower the learning rate, or look for a division "
                    "by zero or log(0) in the loss"
                ) from error
            return False
        finally:
            self._batch += 1
        self._bad = 0
        self._rate = self._rate if rate is None else rate
        self._count_fates()
        return True

    def _split(self, gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        trained = self._variables.variables[: self._variables.trainable]
        if len(gradients) != len(trained):
            raise RemoteError(
                f"expected {len(trained)} gradients, one for each trainable variable, got {len(gradients)}"
            )
        found = [
            tf.zeros(variable.shape) if one is None else tf.cast(tf.convert_to_tensor(one), tf.float32)
            for variable, one in zip(trained, gradients, strict=True)
        ]
        state = [
            tf.cast(variable, tf.float32) - tf.cast(before, tf.float32)
            for variable, before in zip(
                self._variables.variables[self._variables.trainable :], self._before, strict=True
            )
        ]
        return (self._optimizer._clip_gradients(found) if self._clips else found), state

    def _count_fates(self) -> None:
        for disposition in self.session.dispositions():
            # The initial values, which the first worker gives, are no contribution.
            if disposition.fate != "applied" or disposition.version:
                self.fates[disposition.fate] = self.fates.get(disposition.fate, 0) + 1

    def _changed_rate(self) -> float | None:
        rate = _rate(self._optimizer)
        return None if rate is None or rate == self._rate or self.session.worker_index else rate

    def close(self) -> None:
        """This worker has no more data; waits for the others, and leaves the job's last version in the model."""
        session = self.session
        self._grant = None
        try:
            stop = session.stop or session.done()
            self._count_fates()
            if stop.success:
                flats = [tensor_of(flat) for flat in session.pull_final()]
                for variable, value in zip(self._variables.variables, self._layout.cut(flats), strict=True):
                    variable.assign(value)
        finally:
            session.close()
            self._end_server()

    def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Others must not wait for a contribution that will not come.
            self.session.close(kind.__name__)
            self._end_server()


def _check(optimizer: Any) -> None:
    refused: Mapping[str, object] = {
        "gradient_accumulation_steps": optimizer.gradient_accumulation_steps,
        "use_ema": optimizer.use_ema,
        "loss_scale_factor": optimizer.loss_scale_factor,
    }
    for setting, value in refused.items():
        if value:
            raise TranslationError(
                f"{setting} is what distribute() does within fit; in a loop of your own it is yours: leave it out"
            )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise TranslationError(
            "LossScaleOptimizer: in a loop of your own unscale the gradients before apply()"
        )


def _rate(optimizer: Any) -> float | None:
    rate = optimizer._learning_rate
    return float(rate.numpy()) if isinstance(rate, keras.Variable) else None
