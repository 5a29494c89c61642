"""TensorFlow's ParameterServerStrategy as a peer: one parameter server, its workers, its chief."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.loads import Load
from benchmarks.peers import Burst, watched
from benchmarks.peers.child import HERE, Child, Place
from benchmarks.peers.ours import CPU_ONLY

SERVER = "benchmarks.programs.tensorflow.server"
CHIEF = "benchmarks.programs.tensorflow.chief"


class Cluster:
    """A parameter server, `workers` workers and a chief, each a process of its own."""

    def __init__(self, workers: int, logs: Path, program: str = CHIEF, places: Sequence[Place] = ()) -> None:
        """`program`: the module of the chief. `places`: of the server and of each worker; the chief runs beside the
        first worker."""
        self._children: list[Child] = []
        places = places or [HERE] * (workers + 1)
        try:
            # All at once: loading TensorFlow is most of it.
            tasks = [("ps", 0), *(("worker", index) for index in range(workers))]
            for (job, index), place in zip(tasks, places, strict=True):
                self._start(f"tf{workers}-{job}-{index}", ["-m", SERVER, job, str(index)], logs, place)
            self.chief = self._start(f"tf{workers}-chief", ["-m", program], logs, places[1])
            ports = [child.receive()["port"] for child in self._children[:-1]]
            addresses = [f"{place.address}:{port}" for place, port in zip(places, ports, strict=True)]
            self.chief.ask("connect", servers=addresses[:1], workers=addresses[1:], own=places[1].address)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, arguments: list[str], logs: Path, place: Place) -> Child:
        self._children.append(Child(name, arguments, logs / f"{name}.log", CPU_ONLY, place=place))
        return self._children[-1]

    @property
    def server(self) -> int:
        """Process id of the parameter server."""
        return self._children[0].pid

    @property
    def others(self) -> list[int]:
        """Process ids of the workers and the chief."""
        return [child.pid for child in self._children[1:]]

    def close(self) -> None:
        # The chief first: it would report lost workers otherwise.
        for child in reversed(self._children):
            child.close()


class Clusters:
    """One cluster per number of workers, started when it is first needed and kept: idle ones cost nothing."""

    def __init__(self, logs: Path, places: Sequence[Place] = ()) -> None:
        """`places`: of the server and of each worker that there may be; all here when empty."""
        self._logs, self._places = logs, places
        self._clusters: dict[int, Cluster] = {}

    def of(self, workers: int) -> Cluster:
        if workers not in self._clusters:
            self._clusters[workers] = Cluster(workers, self._logs, places=self._places[: workers + 1])
        return self._clusters[workers]

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()


class Theirs:
    """One strategy cluster; each step is one scheduled function."""

    def __init__(self, name: str, label: str, clusters: Clusters) -> None:
        self.name, self.label = name, label
        self._clusters = clusters
        self._cluster: Cluster | None = None

    def prepare(self, load: Load) -> None:
        if load.servers != 1:
            raise ValueError(f"{self.label}: measured with one server only, got {load.servers}")
        self._cluster = self._clusters.of(load.workers)
        self._cluster.chief.ask("prepare", load=self.name, shapes=load.shapes)

    def measure(self, steps: int) -> Burst:
        cluster = self._cluster
        assert cluster is not None, "prepare comes first"
        return watched([cluster.server], lambda: [cluster.chief.ask("measure", load=self.name, steps=steps)])

    def release(self) -> None:
        assert self._cluster is not None, "prepare comes first"
        self._cluster.chief.ask("release", load=self.name)
        self._cluster = None
