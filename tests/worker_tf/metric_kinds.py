"""Every metric class of Keras, made with data on which it can be measured."""

import inspect
from typing import Any

import keras
import numpy as np

metrics, losses = keras.metrics, keras.losses
CLASSES, SAMPLES = 3, 24
RANDOM = np.random.default_rng(45)
X = RANDOM.normal(size=(SAMPLES, 4)).astype("f")
CLASS = np.arange(SAMPLES, dtype="i") % CLASSES
ONE_HOT = np.eye(CLASSES, dtype="f")[CLASS]

# Of a kind of output: its units and activation, a loss, and the targets.
REGRESSION = (1, "softplus", "mse", np.abs(X.sum(axis=1, keepdims=True)) + 0.1)
BINARY = (1, "sigmoid", "binary_crossentropy", (X[:, :1] > 0).astype("f"))
SPARSE = (CLASSES, "softmax", "sparse_categorical_crossentropy", CLASS)
CATEGORICAL = (CLASSES, "softmax", "categorical_crossentropy", ONE_HOT)

BINARIES = (
    *("AUC", "BinaryAccuracy", "BinaryCrossentropy", "BinaryIoU", "FalseNegatives", "FalsePositives"),
    *("Hinge", "Precision", "PrecisionAtRecall", "Recall", "RecallAtPrecision", "SensitivityAtSpecificity"),
    *("SpecificityAtSensitivity", "SquaredHinge", "TrueNegatives", "TruePositives"),
)
CATEGORICALS = (
    *("CategoricalAccuracy", "CategoricalCrossentropy", "CategoricalHinge", "CosineSimilarity", "F1Score"),
    *("ConcordanceCorrelation", "FBetaScore", "OneHotIoU", "OneHotMeanIoU", "PearsonCorrelation"),
    *("TopKCategoricalAccuracy", "KLDivergence"),
)
SPARSES = (
    *("IoU", "MeanIoU", "SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"),
    "SparseTopKCategoricalAccuracy",
)
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{name: {"num_classes": CLASSES, "sparse_y_pred": False} for name in ("IoU", "MeanIoU")},
    **{name: {"num_classes": CLASSES} for name in ("OneHotIoU", "OneHotMeanIoU")},
    "MeanRelativeError": {"normalizer": np.ones((1, 1), "f")},
    "MeanMetricWrapper": {"fn": losses.mean_absolute_error},
    **{name: {"recall": 0.5} for name in ("PrecisionAtRecall",)},
    **{name: {"precision": 0.5} for name in ("RecallAtPrecision",)},
    **{name: {"specificity": 0.5} for name in ("SensitivityAtSpecificity",)},
    **{name: {"sensitivity": 0.5} for name in ("SpecificityAtSensitivity",)},
    **{name: {"k": 2} for name in ("TopKCategoricalAccuracy", "SparseTopKCategoricalAccuracy")},
}
for _name in ("IoU", "OneHotIoU"):
    ARGUMENTS[_name]["target_class_ids"] = [0, 1]
ARGUMENTS["BinaryIoU"] = {"target_class_ids": [0, 1]}


# Keras compiles no model with these: a `test_step` or a layer updates them.
UPDATED_BY_HAND = ("Mean", "Sum")


def kinds() -> dict[str, Any]:
    """All classes by name, but for the abstract one."""
    found = {value for value in vars(metrics).values() if inspect.isclass(value)}
    return {
        each.__name__: each
        for each in sorted(found, key=lambda each: each.__name__)
        if each is not metrics.Metric
    }


KINDS = kinds()


def made(name: str) -> Any:
    """A new metric of this class, and of this name."""
    return KINDS[name](**{"name": name, **ARGUMENTS.get(name, {})})


def names(group: str) -> list[str]:
    """The classes that are measured on this kind of output: each is in one group."""
    others = {*BINARIES, *CATEGORICALS, *SPARSES, *UPDATED_BY_HAND}
    named = {"binary": BINARIES, "categorical": CATEGORICALS, "sparse": SPARSES}
    return list(named[group]) if group in named else [name for name in KINDS if name not in others]


GROUPS = {"binary": BINARY, "categorical": CATEGORICAL, "sparse": SPARSE, "regression": REGRESSION}


def build(group: str) -> Any:
    """A small model with an output of this kind."""
    units, activation, _, _ = GROUPS[group]
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation)])
