"""What error feedback means for training: the laws of its residual, in steps of SGD."""

import numpy as np
import pytest

from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.blocks import INT4, INT8, TOP_K, BlockCodec
from tests.promises import promise

CODECS = (INT8, INT4, TOP_K)
LAYOUT = make_plan([VariableSpec("w", (4, 256))], 1).shards[0]
SIZE = LAYOUT.elements


def trained(codec: BlockCodec | None, steps: int, *, lost_every: int = 0) -> float:
    """Descend a quadratic in whose flat directions gradients are small. Return its value; the residual is lost every so
    many steps, as when a worker's process is started again."""
    random = np.random.default_rng(3)
    curvature = np.geomspace(0.02, 1, SIZE).astype(np.float32)
    random.shuffle(curvature)
    x = np.ones(SIZE, np.float32)
    encoder, decoded = None if codec is None else codec.encoder(LAYOUT), np.empty(SIZE, np.float32)
    for step in range(1, steps + 1):
        gradient = curvature * x
        if codec is not None and encoder is not None:
            codec.decoder(LAYOUT, decoded).feed(encoder.encode(step, gradient).data)
            encoder.keep(step)
            gradient = decoded
            if lost_every and step % lost_every == 0:
                encoder = codec.encoder(LAYOUT)
        x = x - np.float32(0.02) * gradient
    return float(np.sum(curvature * x * x) / 2)


@promise("Weights less the residual are those of plain SGD.")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_weights_less_the_residual_are_those_of_plain_sgd(codec: BlockCodec) -> None:
    """x - rate e, for gradients that do not depend on x (S. U. Stich et al. 2018, the virtual sequence)."""
    random, rate = np.random.default_rng(1), 0.1
    encoder, decoded = codec.encoder(LAYOUT), np.empty(SIZE, np.float32)
    plain, x = np.zeros(SIZE), np.zeros(SIZE)
    for ticket in range(1, 30):
        gradient = random.normal(size=SIZE).astype(np.float32)
        codec.decoder(LAYOUT, decoded).feed(encoder.encode(ticket, gradient).data)
        encoder.keep(ticket)
        plain -= rate * gradient
        x -= rate * decoded
        np.testing.assert_allclose(x - rate * encoder.residual, plain, rtol=0, atol=1e-5)


def test_a_lost_residual_costs_top_k_the_more_the_oftener_and_int8_nothing() -> None:
    float32 = trained(None, 400)
    assert trained(INT8, 400, lost_every=10) == pytest.approx(float32, rel=0.01)
    often, seldom, never = (trained(TOP_K, 400, lost_every=every) for every in (10, 100, 0))
    assert often > 1.5 * seldom > 1.5 * never
    assert never < 1.5 * float32
