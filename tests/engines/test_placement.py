"""Which process is put on which node."""

import os
from pathlib import Path

import pytest

from pslab.launch.engines.launcher import EngineError, PlaceError, Resources, Task, WantedPlace
from pslab.launch.engines.slurm import SlurmLauncher, addresses, counts
from pslab.launch.engines.ssh import parse
from pslab.launch.remote.places import Node, Places


def wanted(
    servers: int, workers: int, *, spread: bool = False, apart: bool = False, cpus: int = 0
) -> list[WantedPlace]:
    resources = Resources(cpus=cpus)
    return [
        *(
            WantedPlace(f"server-{n}", "server", resources, spread, apart, f"server-{n ^ 1}")
            for n in range(servers)
        ),
        *(WantedPlace(f"worker-{n}", "worker", resources) for n in range(workers)),
    ]


def on(nodes: list[Node], wishes: list[WantedPlace]) -> dict[str, str]:
    return {name: node.name for name, node in Places(nodes, wishes).node.items()}


def test_servers_are_together_and_workers_where_most_is_free() -> None:
    nodes = [Node(f"n{n}", cpus=4) for n in (1, 2, 3)]
    places = on(nodes, wanted(2, 6))
    assert [places["server-0"], places["server-1"]] == ["n1", "n1"]
    assert [places[f"worker-{n}"] for n in range(6)] == ["n2", "n3", "n2", "n3", "n2", "n3"]


def test_servers_that_are_spread_have_a_node_each_or_the_run_none() -> None:
    nodes = [Node(f"n{n}", cpus=4) for n in (1, 2)]
    places = on(nodes, wanted(2, 0, spread=True))
    assert places == {"server-0": "n1", "server-1": "n2"}
    with pytest.raises(PlaceError, match="no room for server-2 of 3 .* without another server"):
        Places(nodes, wanted(3, 0, spread=True))


@pytest.mark.parametrize(("nodes", "places"), [(1, "n1 n1 n1"), (2, "n1 n2 n1"), (4, "n1 n2 n3")])
def test_servers_with_copies_are_apart_where_there_are_nodes_enough(nodes: int, places: str) -> None:
    found = on([Node(f"n{n + 1}", cpus=8) for n in range(nodes)], wanted(3, 0, apart=True))
    assert list(found.values()) == places.split()


def test_a_node_without_room_has_no_copy() -> None:
    nodes = [Node("n1", cpus=8), Node("n2", cpus=1), Node("n3", cpus=8)]
    assert list(on(nodes, wanted(3, 0, apart=True, cpus=2)).values()) == ["n1", "n3", "n1"]


def moves(places: Places, *names: str) -> list[str]:
    """The node on which each is afterwards; with an exclamation mark if there is no other one."""
    return [("" if places.move(name) else "!") + places.node[name].name for name in names]


def test_a_copy_whose_node_is_lost_goes_to_a_free_one_or_to_one_without_its_partner() -> None:
    nodes = [Node(f"n{n + 1}", cpus=8) for n in range(4)]
    assert moves(Places(nodes, wanted(3, 0, apart=True)), "server-0") == ["n4"]
    # Server 2 votes, and is not the partner of server 0.
    assert moves(Places(nodes[:3], wanted(3, 0, apart=True)), "server-0") == ["n3"]
    assert moves(Places(nodes[:2], wanted(2, 0, apart=True)), "server-0") == ["n2"]


def test_all_copies_of_a_lost_node_go_elsewhere_and_none_to_one_lost_before() -> None:
    places = Places([Node(f"n{n}", cpus=8) for n in (1, 2, 3)], wanted(4, 0, apart=True))
    assert moves(places, "server-0", "server-3") == ["n3", "n2"]
    assert moves(places, "server-1", "server-3") == ["n3", "n3"]


def test_without_another_node_a_copy_stays_and_lost_nodes_count_again() -> None:
    places = Places([Node(f"n{n}", cpus=8) for n in (1, 2)], wanted(2, 0, apart=True))
    assert moves(places, "server-0", "server-0", "server-0") == ["n2", "!n2", "n1"]
    alone = Places([Node("n1", cpus=2), Node("n2", cpus=1)], wanted(2, 1, apart=True))
    assert moves(alone, "server-0") == ["!n1"]
    spread = Places([Node(f"n{n}", cpus=8) for n in (1, 2)], wanted(2, 0, spread=True))
    assert moves(spread, "server-1") == ["!n2"]


def test_a_server_that_moves_within_an_allocation_shares_the_memory_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command, does in {"srun": "", "scontrol": 'test "$2" != hostnames || echo n1 n2'}.items():
        (tmp_path / command).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    allocation = {"SLURM_JOB_ID": "1", "SLURM_JOB_CPUS_PER_NODE": "8(x2)", "SLURM_MEM_PER_NODE": "100"}
    launcher = SlurmLauncher(tmp_path, 1.0, allocation)
    launcher.reserve(wanted(2, 0, apart=True))
    words = launcher.step(Node("n2"), Task("server-1", ["x"], {}))
    assert "--mem=100M" in words and "--overlap" not in words
    assert launcher.place_again("server-1") == "on n1"
    words = launcher.step(Node("n1"), Task("server-1", ["x"], {}))
    assert "--mem=50M" in words and "--overlap" in words


def test_what_does_not_fit_is_said_with_what_there_is() -> None:
    nodes = [Node("n1", cpus=4), Node("n2", cpus=2)]
    with pytest.raises(PlaceError) as refused:
        Places(nodes, wanted(1, 2, cpus=3))
    assert str(refused.value) == (
        "no room for worker-0 of 3 processes: wanted 3 cpus; still available: n1 1 of 4 cpus, n2 2 of 2 cpus"
    )


def test_hosts_take_the_workers_that_they_are_listed_with() -> None:
    hosts = [parse("h0"), parse("me@h1:3")]
    places = on(hosts, wanted(2, 4))
    assert places["server-0"] == places["server-1"] == "h0"
    assert sorted(places[f"worker-{n}"] for n in range(4)) == ["h0", "me@h1", "me@h1", "me@h1"]
    with pytest.raises(PlaceError, match="still available: h0 0 of 1 workers, me@h1 0 of 3 workers"):
        Places(hosts, wanted(1, 5))


@pytest.mark.parametrize("text", ["", "h1:", "h1:x", "h 1", "-oProxyCommand=x", "-l", "-l@h", "::1"])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(EngineError, match="expected a machine such as"):
        parse(text)


def test_an_ipv6_host() -> None:
    assert parse("[fe80::1%eth0]:2") == Node("[fe80::1%eth0]", workers=2)


def test_what_slurm_says_of_its_nodes() -> None:
    assert counts("2(x3),4") == [2, 2, 2, 4] and counts("72") == [72] and counts("") == []
    shown = "NodeName=n01 Arch=x86_64 CoresPerSocket=1\n   NodeAddr=10.0.0.1 NodeHostName=n01\n\n"
    shown += "NodeName=n02 Arch=x86_64\n   NodeAddr=fe80::2 NodeHostName=n02\n"
    assert addresses(shown) == {"n01": "10.0.0.1", "n02": "fe80::2"}
