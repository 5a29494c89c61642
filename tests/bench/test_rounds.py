"""The benchmark's own arithmetic and fairness, on peers that only pretend."""

from dataclasses import dataclass, field

import pytest

from benchmarks.kinds import GRPC, TF
from benchmarks.loads import Load, even
from benchmarks.measures.rounds import SHORT, Row, TooFewBytes, measure
from benchmarks.measures.samples import Samples, collected
from benchmarks.peers import Burst, calibrated
from benchmarks.report import chart, tables
from benchmarks.report.results import Results

LOAD = Load("1 MB", even(1, 4), targets={GRPC: 2})


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


class StillLimits:
    def measure(self, seconds: float) -> dict[str, float]:
        return {"socket": 2.0, "memcpy": 8.0}


def rows(slow: float = 0.01, fast: float = 0.0025, share: float = 1.0) -> tuple[Row, list[str]]:
    diary: list[str] = []
    peers = [Pretender(TF, slow, diary), Pretender(GRPC, fast, diary, share)]
    row = measure(LOAD, peers, SHORT, StillLimits(), lambda text: None)
    return row, diary


def test_peers_take_turns_and_the_first_one_changes():
    _, diary = rows()
    assert diary[-8:] == [TF, GRPC, GRPC, TF, TF, GRPC, f"{TF} released", f"{GRPC} released"]


def test_rates_and_ratios():
    row, _ = rows()
    assert row.rate(TF).median == pytest.approx(100)
    assert row.rate(GRPC).per(row.rate(TF)).median == pytest.approx(4)
    assert row.moved(GRPC).median == pytest.approx(2 * 1e6 * 400 / 1e9)


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


def test_tables_chart_and_results(tmp_path):
    row, _ = rows()
    table = tables.ratios("transport", [row])
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert cells[0] == "1 MB"
    assert cells[1] == "100 ±0%"
    assert cells[2] == "400 ±0%\n4.00x (aim 2x)"
    assert chart.draw({"transport": [row]}, tmp_path / "chart.png", "a title")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    results = Results("short", {"cores": 2}, {"transport": [row]}, row.limits)
    text = results.write(tmp_path).read_text()
    assert '"multiple_of_tf": 4.0' in text


def test_no_chart_without_anything_to_compare(tmp_path):
    assert not chart.draw({"scaling": [Row(LOAD)]}, tmp_path / "chart.png", "a title")
