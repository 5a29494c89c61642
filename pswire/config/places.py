"""[cluster.place]: what each process is to have of its node."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pswire.config.sections import Section
from pswire.sizes import parse_size

Count = Annotated[int, Field(ge=0, le=65536)]


def _size(text: str) -> str:
    try:
        if text:
            parse_size(text)
    except ValueError as error:
        raise PydanticCustomError("size", "{problem}", {"problem": str(error)}) from error
    return text


class ServerPlace(Section):
    """[cluster.place] servers"""

    cpus: Count = 0
    """of each server; 0: what the engine gives"""

    memory: Annotated[str, AfterValidator(_size)] = ""
    """of each server, such as `4GiB`; empty: what the engine gives"""

    spread: bool = False
    """every server on a node of its own; otherwise on as few as have room"""

    @property
    def bytes(self) -> int:
        """Of `memory`; 0: not said."""
        return parse_size(self.memory) if self.memory else 0


class WorkerPlace(Section):
    """[cluster.place] workers"""

    cpus: Count = 0
    """of each worker; 0: what the engine gives"""

    gpus: Count = 0
    """of each worker"""


class PlaceSection(Section):
    """[cluster.place]: read by `ps-lab run` with an engine that has nodes; an engine refuses what it cannot honour."""

    servers: ServerPlace = ServerPlace()
    """what each server is to have"""

    workers: WorkerPlace = WorkerPlace()
    """what each worker is to have"""

    place_timeout: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 60.0
    """seconds that the run waits for room; then it says what is wanted and what there is, and ends with exit code 3"""

    @property
    def demands(self) -> dict[str, Any]:
        """What is asked for, by dotted key: `servers.cpus`, `workers.gpus` and so on."""
        parts = (("servers", self.servers), ("workers", self.workers))
        said = {f"{role}.{key}": value for role, part in parts for key, value in part}
        return {key: value for key, value in said.items() if value}
