"""Which Ray cluster is meant, and what is missing in it: sentences, found out without Ray."""

import socket
from collections.abc import Callable

import pytest

from pslab.launch.engines.launcher import EngineError, Resources, WantedPlace
from pslab.launch.engines.ray import launcher
from pslab.launch.engines.ray.launcher import bundle, chosen_cluster, shortage, total
from pswire.extras import how_to_install


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_spec", lambda name: object())


def wanted(servers: int = 2, workers: int = 2, spread: bool = False, **worker: int) -> list[WantedPlace]:
    return [
        *(WantedPlace(f"server-{n}", "server", Resources(), spread) for n in range(servers)),
        *(WantedPlace(f"worker-{n}", "worker", Resources(**worker)) for n in range(workers)),
    ]


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(EngineError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("installed")
def test_without_a_cluster_it_says_how_to_have_one() -> None:
    said = sentence(lambda: chosen_cluster("", {}))
    assert "--address HOST:PORT (or RAY_ADDRESS)" in said and "ray start --head" in said


@pytest.mark.usefixtures("installed")
def test_the_command_line_counts_before_the_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert chosen_cluster(address, {"RAY_ADDRESS": "elsewhere:1"}) == address
        assert chosen_cluster("", {"RAY_ADDRESS": address}) == address
    assert chosen_cluster("", {"RAY_ADDRESS": "auto"}) == "auto"
    assert f"no Ray cluster answers at {address}: Connection refused" in sentence(
        lambda: chosen_cluster(address, {})
    )


@pytest.mark.usefixtures("installed")
def test_what_is_no_address() -> None:
    assert "run ps-lab on a node" in sentence(lambda: chosen_cluster("ray://head:10001", {}))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)
    assert how_to_install("ray") in sentence(lambda: chosen_cluster("h:1", {}))


def test_a_process_that_says_nothing_has_a_cpu() -> None:
    assert bundle(Resources()) == {"CPU": 1.0}
    assert bundle(Resources(2, 2**30, 1)) == {"CPU": 2.0, "memory": 2.0**30, "GPU": 1.0}
    assert total(wanted(2, 3, gpus=1)) == {"CPU": 5.0, "GPU": 3.0}


@pytest.mark.parametrize(
    ("asked", "nodes", "free", "words"),
    [
        (wanted(), [{"CPU": 2.0}], {"CPU": 1.0}, "1 nodes: 4 CPU wanted, 2 CPU there, 1 CPU free"),
        (
            wanted(1, 2, cpus=2, gpus=1),
            [{"CPU": 8.0}],
            {"CPU": 8.0},
            "1 nodes: 2 GPU wanted, 0 GPU there, 0 GPU free",
        ),
        (
            wanted(3, 1, spread=True),
            [{"CPU": 8.0}] * 2,
            {"CPU": 16.0},
            "2 nodes: 3 nodes wanted, one for each server (cluster.place.servers.spread), 2 there",
        ),
        (
            wanted(1, 1, cpus=5),
            [{"CPU": 4.0}] * 2,
            {"CPU": 8.0},
            "2 nodes: no node has room for worker-0, which wants 5 CPU",
        ),
        (
            [WantedPlace("server-0", "server", Resources(1, 3 << 30))],
            [{"CPU": 4.0, "memory": 2.0**30}],
            {"CPU": 4.0, "memory": 2.0**30},
            "1 nodes: 3.0 GiB of memory wanted, 1.0 GiB of memory there, 1.0 GiB of memory free",
        ),
    ],
)
def test_what_is_missing_is_said(
    asked: list[WantedPlace], nodes: list[dict[str, float]], free: dict[str, float], words: str
) -> None:
    assert shortage(asked, nodes, free) == words
