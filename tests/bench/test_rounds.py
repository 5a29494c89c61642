"""The benchmark's own arithmetic and fairness, on peers that only pretend."""

import json
from dataclasses import dataclass, field

import pytest

from benchmarks import links, report, steps
from benchmarks.kinds import GRPC, INT8, TF
from benchmarks.loads import MATRICES, Load, even
from benchmarks.peers import Burst, calibrated
from benchmarks.rounds import Pace, Row, TooFewBytes, check_bytes, measure
from benchmarks.samples import Samples, collected

LOAD = Load("1 MB", even(1, 4))


@dataclass
class Pretender:
    """Takes `pace` seconds per step and moves `share` of the bytes that it should."""

    name: str
    pace: float
    diary: list[str]
    share: float = 1.0
    label: str = "a pretender"
    steps: list[int] = field(default_factory=list)

    def prepare(self, load: Load) -> None:
        self.nbytes = load.nbytes

    def measure(self, steps: int) -> Burst:
        self.diary.append(self.name)
        self.steps.append(steps)
        return Burst(steps, steps * self.pace, round(2 * self.nbytes * steps * self.share), 0.0)

    def release(self) -> None:
        self.diary.append(f"{self.name} released")


def rows(slow: float = 0.01, fast: float = 0.0025, share: float = 1.0) -> tuple[Row, list[str]]:
    diary: list[str] = []
    peers = [Pretender(TF, slow, diary), Pretender(GRPC, fast, diary, share)]
    row = measure(LOAD, peers, Pace(0.4, 3), lambda text: None)
    check_bytes(row)
    return row, diary


def test_peers_take_turns_and_the_first_one_changes():
    _, diary = rows()
    assert diary[-8:] == [TF, GRPC, GRPC, TF, TF, GRPC, f"{TF} released", f"{GRPC} released"]


def test_rates_and_ratios():
    row, _ = rows()
    assert row.rate(TF).median == pytest.approx(100)
    assert row.rate(GRPC).per(row.rate(TF)).median == pytest.approx(4)


def test_drift_of_the_machine_cancels_in_a_ratio():
    slowing = Samples((100.0, 50.0, 25.0))
    assert Samples((200.0, 100.0, 50.0)).per(slowing).values == (2, 2, 2)
    assert collected([3.0]).spread == 0
    with pytest.raises(ValueError, match="at least one sample"):
        collected([])


def test_a_peer_that_moved_too_little_is_no_peer():
    with pytest.raises(TooFewBytes, match="must move"):
        rows(share=0.5)


@pytest.mark.parametrize(("pace", "steps"), [(1e-4, 4000), (0.05, 8), (3.0, 4)])
def test_bursts_last_as_long_as_they_should(pace, steps):
    peer = Pretender(TF, pace, [])
    peer.prepare(LOAD)
    assert calibrated(peer, seconds=0.4, least=4) == steps


def test_tables_and_results(tmp_path):
    row, _ = rows()
    table = report.ratios("steps", [row])
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert cells == ["1 MB", "100 ±0%", "400 ±0%\n4.00x"]
    written = json.loads(report.write_results(tmp_path, rows=[steps.samples_of(row)]).read_text())
    assert written["machine"]["cores"] and len(written["rows"][0]["peers"][TF]) == len(row.bursts[TF])


def test_a_link_has_a_floor_that_no_peer_beats():
    # Both ways, one after the other: 2 MB at 1 MB/s; with two workers both directions at once.
    assert links.floor(LOAD, GRPC, 1e6) == pytest.approx(2.0)
    assert links.floor(Load("", LOAD.shapes, workers=2), GRPC, 1e6) == pytest.approx(2.0)
    assert links.floor(MATRICES, INT8, 1e6) < links.floor(MATRICES, GRPC, 1e6) / 3
    row, _ = rows(slow=3.0, fast=2.5)
    assert links.table("8mbit", 1e6, [row]).row_count == 2
    row, _ = rows()
    with pytest.raises(links.NotShaped, match="expected at least 2 s a step"):
        links.table("8mbit", 1e6, [row])
