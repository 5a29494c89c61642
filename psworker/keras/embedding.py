"""`RemoteEmbedding`: a layer whose rows are a sparse table on parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from pswire.model.tables import RULES, TableSpec
from pswire.model.variables import PlanError
from psworker.backends import ModelError
from psworker.backends.lookups import LayerLookups, Reader, remote_of
from psworker.keras.translate import translate
from psworker.optimizers import TranslationError


@keras.saving.register_keras_serializable(package="psworker")
class RemoteEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """An embedding of any int64 ids, with rows of `dim` numbers on the servers. It has no weights of its own.

    `ids -> [*, dim]`, as `keras.layers.Embedding`, dense or ragged. `mask_id`: an id that has no row; its place
    is zeros, and the layer makes Keras' mask of it. `GlobalAveragePooling1D` of ids that are all masked is NaN.

    `table`: the table's name, by default the layer's; layers of one table share its rows. `initializer`: "uniform",
    "normal" or "zeros", one with numbers ({"name": "uniform", "low": -0.1, "high": 0.1}), or Keras' RandomUniform,
    RandomNormal or Zeros. A row is drawn from `seed`, the table and its id, when the first gradient for it is applied.
    `optimizer`: the servers' rule for the rows, a Keras optimizer or settings ({"name": "rowwise-adagrad",
    "learning_rate": 0.05}); by default that of the job. `admit`: the chance that a gradient for an id without a row
    makes one. `evict`: which rows go, {"age": versions, "every": versions} (`pswire.model.tables.TableSpec`).

    Its rows are trained within `distribute` and in a `Job`, on the TensorFlow backend. Elsewhere a call needs a reader
    (`read_rows`), or raises ModelError. `Distributed.export` makes a plain Keras model. Raises ValueError for arguments
    that make no sense, ModelError for another backend, TranslationError for an optimizer that servers do not have.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        initializer: Any = "uniform",
        optimizer: Any = None,
        mask_id: int | None = None,
        table: str | None = None,
        seed: int = 0,
        admit: float = 1.0,
        evict: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ModelError(
                f"RemoteEmbedding needs Keras' TensorFlow backend, and this is {keras.backend.backend()}: expected "
                "KERAS_BACKEND=tensorflow"
            )
        super().__init__(name=name, **kwargs)
        rules = {
            "admit": admit,
            **{f"evict_{rule}": number for rule, number in (evict or {}).items()},
        }
        self.remote = LayerLookups(
            table_spec(table or name, dim, initializer, optimizer, seed, rules), mask_id
        )
        self.supports_masking = mask_id is not None
        # Ids are not numbers to be rounded, and the number of rows differs from batch to batch.
        self.autocast = self.supports_jit = False

    def build(self, input_shape: Any = None) -> None:
        """Nothing to build."""

    def call(self, inputs: Any) -> Any:
        """Look ids up."""
        from psworker.backends.tensorflow.rows import look_up

        return keras.ops.cast(look_up(self.remote, inputs), self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Mask the places of `mask_id`."""
        if not self.supports_masking:
            return None
        return keras.ops.not_equal(inputs, self.remote.mask_id)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Ids to rows."""
        ragged = bool(getattr(inputs, "ragged", False))
        shape = (*inputs.shape, self.remote.table.dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal layer."""
        table = self.remote.table.to_json()
        own = {
            "dim": self.remote.table.dim,
            "initializer": table["initializer"],
            "optimizer": table["optimizer"],
            "mask_id": self.remote.mask_id,
            "table": self.remote.table.name,
            "seed": self.remote.table.seed,
            "admit": self.remote.table.admit,
            "evict": {
                rule.removeprefix("evict_"): table[rule]
                for rule in RULES
                if rule in table and rule.startswith("evict_")
            },
        }
        return {**super().get_config(), **own}


def table_spec(
    name: str, dim: int, initializer: Any, optimizer: Any, seed: int, rules: Mapping[str, Any] | None = None
) -> TableSpec:
    """Describe a table. `rules`: of admission and eviction. Raises ValueError, TranslationError."""
    found: dict[str, Any] = {"name": name, "dim": dim, "seed": seed, **(rules or {})}
    found["initializer"], drawn = _initializer(initializer)
    if drawn is not None:
        found["seed"] = drawn
    if optimizer is not None:
        found["optimizer"] = _optimizer(optimizer)
    try:
        return TableSpec.from_json(found)
    except PlanError as error:
        raise ValueError(str(error)) from error


def _initializer(given: Any) -> tuple[Any, int | None]:
    """Return the servers' initializer, and the seed that a Keras one was given."""
    kinds = keras.initializers
    if isinstance(given, kinds.RandomUniform | kinds.RandomNormal):
        numbers = ("minval", "maxval") if isinstance(given, kinds.RandomUniform) else ("mean", "stddev")
        names = ("low", "high") if isinstance(given, kinds.RandomUniform) else numbers
        known = {name: float(getattr(given, number)) for name, number in zip(names, numbers, strict=True)}
        seed = given.get_config()["seed"]
        return {"name": "uniform" if names[0] == "low" else "normal", **known}, seed
    if isinstance(given, kinds.Zeros):
        return "zeros", None
    if isinstance(given, str | Mapping):
        return given, None
    raise ValueError(
        f"initializer: a row is drawn on the servers, by itself: expected uniform, normal or zeros, or Keras' "
        f"RandomUniform, RandomNormal or Zeros, got {type(given).__name__}"
    )


def _optimizer(given: Any) -> Mapping[str, Any]:
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Mapping):
        return given
    if given.use_ema or given.gradient_accumulation_steps or given.clipnorm or given.global_clipnorm:
        raise TranslationError(
            "the optimizer of a table updates the rows of a batch, on the servers: expected none of use_ema, "
            "gradient_accumulation_steps, clipnorm and global_clipnorm"
        )
    return translate(given)


def read_rows(model: Any, reader: Reader | None) -> None:
    """Let the remote layers of a model read their rows with `reader` where they are not trained; None: no more.

    `reader`: a function from a table's name and ids to rows and their version, such as a session's `lookup`.
    """
    for layer in model._flatten_layers():
        if (remote := remote_of(layer)) is not None:
            remote.reader = reader
