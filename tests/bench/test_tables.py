"""The benchmark of tables: what a step must move, and bursts over a link."""

import pytest
from click.testing import CliRunner

from benchmarks.peers import Burst
from benchmarks.tables import cli, load
from benchmarks.tables.cli import Ours, Row, payload_bytes
from tests.machines import network
from tests.machines.network import HEADERS, Counters, Network

DENSE = 4 * ((26 * 16 + 13) * 64 + 64 + 64 + 1)


def test_a_step_moves_keys_twice_and_rows_and_variables_both_ways() -> None:
    up, down = 8 + 4 * 16 + 8, 4 * 16
    assert payload_bytes(1000) == 1000 * (up + down) + 2 * DENSE


def test_headers_of_frames_are_no_payload() -> None:
    moved = Counters(5000, 4000, 4, 3) - Counters(1000, 1000, 1, 1)
    assert moved.payload == 7000 - 5 * HEADERS


def test_a_row_is_what_frames_carry_of_what_a_step_needs() -> None:
    row = Row("ours")
    row.add(Burst(steps=2, seconds=0.5, loopback=0, server_cpu=0.02, worker_cpu=0.04))
    row.add_bytes(Counters(2 * int(payload_bytes(10)), 0), unique=20, steps=2)
    assert (row.rate, row.server_ms, row.other_ms) == (4.0, [10.0], [20.0])
    assert row.share == [pytest.approx(1)]


def test_a_rate_needs_a_unit() -> None:
    told = CliRunner().invoke(cli.main, ["--link", "fast"])
    assert told.exit_code == 2
    assert "expected a rate such as 100mbit" in told.output


@pytest.mark.nightly
def test_steps_over_a_link_move_two_percent_more_than_they_need_at_most(tmp_path) -> None:
    reason = network.reason_against()
    if reason is not None:
        pytest.skip(reason)
    pytest.importorskip("tensorflow")
    with Network(2, "1gbit") as made:
        places = [host.place for host in made.hosts]
        ours = Ours("ours", tmp_path, 1000, places, servers=1, workers=1)
        try:
            ours.measure(4)
            before = made.hosts[0].counters()
            burst = ours.measure(20)
            moved = made.hosts[0].counters() - before
        finally:
            ours.close()
    assert ours.unique > 20 * load.BATCH
    assert 0.99 < moved.payload / burst.steps / payload_bytes(ours.unique / burst.steps) < 1.02
