"""In `fit` of a model with remote tables: the keys of batches, found one batch ahead, and the rows of a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras

from pswire.model.tables import Keys, TableSpec
from psworker.backends.keras.step import FitError, unwrapped
from psworker.backends.lookups import LookedUp, tables_of

# Begins to find the ids of a batch, and returns what finds them, for any thread.
Find = Callable[[Any], Callable[[], LookedUp]]


def checked_tables(model: Any) -> tuple[TableSpec, ...]:
    """Return the tables of a compiled model's layers. Raises FitError for a compilation that cannot train them."""
    tables = tables_of(model._flatten_layers())
    if tables and unwrapped(model.optimizer).use_ema:
        raise FitError("use_ema averages dense weights, and no rows of tables: leave it out")
    if tables and unwrapped(model.optimizer).gradient_accumulation_steps:
        names = ", ".join(table.name for table in tables)
        raise FitError(
            f"the batches of one contribution have different rows of {names}: expected larger batches instead of "
            "gradient_accumulation_steps"
        )
    return tables


def check_callbacks(model: Any, callbacks: Sequence[Any]) -> None:
    """Raise FitError for a callback that would bring back some weights of a model with tables, and no rows."""
    for each in callbacks:
        if (
            isinstance(each, keras.callbacks.EarlyStopping)
            and each.restore_best_weights
            and tables_of(model._flatten_layers())
        ):
            raise FitError(
                "EarlyStopping(restore_best_weights=True) brings back the dense weights of its best epoch, and tables "
                "go on: expected restore_best_weights=False, and ModelCheckpoint(save_best_only=True) for the model"
            )


class Lookups:
    """Finds the keys of batches, in a thread of its own, while the batch before is computed."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._thread = ThreadPoolExecutor(1, "ids-ahead")
        self._begun: tuple[Any, Future[LookedUp]] | None = None

    def begin(self, data: Any) -> Future[LookedUp]:
        """Begin with a batch, unless that has happened."""
        if self._begun is None or self._begun[0] is not data:
            self._begun = data, self._thread.submit(self._find(data))
        return self._begun[1]

    def of(self, data: Any) -> LookedUp:
        """Return a batch with its keys."""
        return self.begin(data).result()

    def keys(self, data: Any) -> Mapping[str, Keys]:
        """Return the keys of the batch that follows; none for None."""
        return {} if data is None else self.of(data).keys


class OneAhead:
    """The batches of Keras' iterators, with a look at the next one."""

    def __init__(self) -> None:
        self._of: Iterator[Any] | None = None
        self._seen: list[Any] = []

    def over(self, iterator: Iterator[Any]) -> OneAhead:
        """Go over this iterator; what was seen of another one is forgotten."""
        if iterator is not self._of:
            self._of, self._seen = iterator, []
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        assert self._of is not None
        return self._seen.pop() if self._seen else next(self._of)

    def following(self) -> Any:
        """Return the next batch, which stays the next one; None at the end."""
        if not self._seen and self._of is not None:
            self._seen = [each for each in [next(self._of, None)] if each is not None]
        return self._seen[0] if self._seen else None
