"""The launcher's end of a pipe to the keeper on a node of Ray."""

from contextlib import suppress
from typing import Any

# Seconds of one question for news: the answer comes as soon as there are any.
PATIENCE = 10.0


class ActorPipe:
    """As `pslab.launch.keeping.kept.Pipe`. The actor may still wait for its place: then `read` waits for it."""

    def __init__(self, actor: Any) -> None:
        """`actor`: a handle of `pslab.launch.engines.ray.actor.KeeperActor`."""
        # Here and not above: what imports this module need not have Ray.
        import ray
        from ray.exceptions import RayError

        self._ray, self._error = ray, RayError
        self._actor = actor
        self._lost = ""

    def write(self, content: bytes) -> None:
        """Raises OSError where nobody takes it."""
        try:
            taken = self._ray.get(self._actor.write.remote(content))
        except self._error as error:
            raise OSError(told(error)) from error
        if not taken:
            raise OSError("the keeper has ended")

    def read(self) -> bytes:
        """What there is, at least a byte; nothing at the end."""
        while True:
            try:
                found = self._ray.get(self._actor.read.remote(PATIENCE))
            except self._error as error:
                self._lost = told(error)
                return b""
            if found is not None:
                return bytes(found)

    def kill(self) -> None:
        """The actor's end is the keeper's, which ends the process."""
        with suppress(self._error, ValueError):
            self._ray.kill(self._actor)

    def close(self) -> str:
        """Once `read` has ended. The place is free for another actor then."""
        self.kill()
        return self._lost


def told(error: Exception) -> str:
    """Ray's first sentence: the lines behind it are about Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
