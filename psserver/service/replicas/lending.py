"""Arrays of a copy that a server of the same machine reads where they lie, so that they need not travel."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from psserver.service.replicas.bodies import LARGE
from pswire.transport import segments
from pswire.transport.segments import Floats, Place, Segment, SegmentError

Arrays = Mapping[str, NDArray[Any]]

#: Segments of one copy, at most: each is an open file.
MOST: Final = 64


class Lent:
    """Memory that another process can map, for copies of large arrays. `room`: as many arrays as the system gives, to
    be filled; they are lent as long as this object lives."""

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        """Make room for the flat ones of the arrays that are float32 and large."""
        self.room: list[Floats] = []
        self._places: dict[int, Place] = {}
        for values in arrays:
            if values.dtype != np.float32 or values.ndim != 1 or values.nbytes < LARGE:
                continue
            try:
                segment = Segment(values.nbytes, writable=False)
            except SegmentError:
                # What is left travels.
                return
            lent = segments.floats(segment.memory)
            self.room.append(lent)
            self._places[id(lent)] = segment.place
            if len(self.room) == MOST:
                return

    def divided(self, arrays: Arrays) -> tuple[dict[str, list[Any]], Arrays]:
        """Return the places of those of the arrays that lie in `room`, as JSON, by name; and the other arrays."""
        places = {name: self._places.get(id(values.base)) for name, values in arrays.items()}
        lie = {
            name: [place.pid, place.fd, place.token.hex(), place.nbytes]
            for name, place in places.items()
            if place is not None
        }
        return lie, {name: values for name, values in arrays.items() if name not in lie}


def borrowed(places: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays that another process has lent; they stay valid when it ends. Raises SegmentError if it has
    ended already, and ValueError or TypeError for what `divided` did not return."""
    found: dict[str, NDArray[Any]] = {}
    for name, (pid, fd, token, nbytes) in places.items():
        place = Place(int(pid), int(fd), bytes.fromhex(token), int(nbytes))
        found[name] = segments.floats(segments.open_segment(place, writable=False))
    return found
