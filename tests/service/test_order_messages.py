"""Every order reaches another server as it was given."""

from typing import get_args

import pytest

import psserver.order_messages as messages
from psserver.decisions import orders
from tests.shard.test_orders import MEANING

ORDERS = (
    *(order for _, order in MEANING),
    orders.Hold(8, 3, None, worker="w1"),
    orders.Fold(7, 0.5, 0.25),
    orders.Apply(2, 1.0, 0.5, (orders.Fold(7, 0.5), orders.Fold(8, 0.25, 0.125))),
)


def test_none_is_forgotten() -> None:
    assert {type(order) for order in ORDERS} == set(get_args(orders.Order))


@pytest.mark.parametrize("order", ORDERS, ids=lambda made: type(made).__name__)
def test_there_and_back(order: orders.Order) -> None:
    sent = messages.ORDERS.to_wire(order)
    assert messages.ORDERS.from_wire(type(sent).FromString(sent.SerializeToString())) == order
