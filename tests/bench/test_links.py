"""`scripts/bench links`: floors, bytes counted on the link, and proof that links are shaped."""

import pytest
from click.testing import CliRunner

from benchmarks.links import cli, network
from benchmarks.links.bare import BarePeer, NotShaped
from benchmarks.links.measure import LOADS, TF, LinkRow, check_floors, floor, payload_bytes
from benchmarks.links.network import Counters, Network, bits_per_second
from benchmarks.loads import Load
from benchmarks.peers import Burst

DENSE = LOADS[0]
PARAMETERS = 1024 * 4096 + 4096 + 4096 * 3072 + 3072 + 3072 * 10 + 10


@pytest.fixture(scope="module")
def two_hosts():
    reason = network.reason_against()
    if reason is not None:
        pytest.skip(reason)
    with Network(2, "100mbit") as made:
        yield made


@pytest.fixture
def bare(two_hosts, tmp_path):
    peer = BarePeer([host.place for host in two_hosts.hosts], tmp_path)
    try:
        peer.start()
        yield peer
    finally:
        peer.close()


def test_float32_moves_four_bytes_of_each_parameter_both_ways():
    assert payload_bytes(DENSE, "float32") == (4 * PARAMETERS, 4 * PARAMETERS)


def test_codecs_move_fewer_bytes_up_than_down():
    for dtype, most in (("int8/bfloat16", 1.02), ("int4/bfloat16", 0.60), ("top-k/bfloat16", 0.06)):
        up, down = payload_bytes(DENSE, dtype)
        assert down == 2 * PARAMETERS
        assert up < most * PARAMETERS


def test_the_floor_of_two_workers_has_both_directions_at_once():
    one, two = (Load("", shapes=DENSE.shapes, workers=workers) for workers in (1, 2))
    link = Network(1, "1gbit")
    assert floor(two, "float32", link) == pytest.approx(floor(one, "float32", link))
    assert floor(two, "int8", link) == pytest.approx(2 * 4 * PARAMETERS * 8 / 1e9 / 0.9564, rel=1e-3)
    assert floor(one, "int8/int8", link, ahead=True) == floor(one, "int8/int8", link) / 2
    # 67.3 MB both ways at 0.956 of a gigabit.
    assert floor(one, "float32", link) == pytest.approx(2 * 4 * PARAMETERS * 8 / 1e9 / 0.9564, rel=1e-3)


def test_a_rate_needs_a_unit():
    assert bits_per_second("2.5gbit") == 2.5e9
    with pytest.raises(ValueError):
        bits_per_second("100")
    told = CliRunner().invoke(cli.main, ["--rates", "fast"])
    assert told.exit_code == 2


def test_a_row_that_beats_its_floor_means_that_the_link_is_not_shaped():
    row = LinkRow("1gbit", LOADS[0], TF, floor=0.5)
    row.bursts.append(Burst(steps=2, seconds=0.97, loopback=0, server_cpu=0.0))
    check_floors([row])
    row.bursts.append(Burst(steps=2, seconds=0.87, loopback=0, server_cpu=0.0))
    with pytest.raises(NotShaped, match="1.09 times"):
        check_floors([row])


def test_a_row_counts_steps_of_all_workers():
    row = LinkRow("1gbit", LOADS[1], TF, floor=0.5)
    for seconds in (2.0, 3.0):
        row.bursts.append(Burst(steps=4, seconds=seconds, loopback=0, server_cpu=0.0))
        row.moved.append(Counters(sent=4_000_000, received=8_000_000))
    assert row.seconds.median == pytest.approx(1.25)
    assert row.megabytes() == (2.0, 1.0)


def test_the_table_holds_every_peer_against_tensorflow():
    rows = []
    for peer, seconds in ((TF, 2.0), ("socket, float32", 1.0)):
        row = LinkRow("1gbit", LOADS[0], peer, floor=0.5)
        row.bursts.append(Burst(steps=1, seconds=seconds, loopback=0, server_cpu=0.0))
        row.moved.append(Counters(1, 1))
        rows.append(row)
    columns = list(cli.table("", rows).columns)
    assert list(columns[4].cells) == ["0.25", "0.50"]
    assert list(columns[5].cells) == ["1.00", "2.00"]


@pytest.mark.cluster
def test_a_link_carries_no_more_than_its_rate(bare, two_hosts):
    proof = bare.prove(two_hosts)
    # The bucket of 64 KiB passes at once, the rest of the small message does not.
    assert max(proof.up, proof.down) <= 1.02
    assert proof.small <= 1.35


@pytest.mark.cluster
def test_bytes_are_counted_on_the_link_of_the_server(bare, two_hosts):
    bare.prepare(Load("", shapes=((250_000,),)))
    before = two_hosts.hosts[0].counters()
    bare.measure(3)
    moved = two_hosts.hosts[0].counters() - before
    for count in (moved.sent, moved.received):
        assert 3e6 < count < 1.1 * 3e6


@pytest.mark.cluster
def test_a_link_that_carries_more_than_it_should_is_refused(bare, two_hosts, monkeypatch):
    monkeypatch.setattr(Network, "payload_rate", property(lambda self: 1e6))
    with pytest.raises(NotShaped):
        bare.prove(two_hosts)
