"""Copies of tensors between a device and the host: through page-locked memory, beside the computation.

Without a GPU none of this runs; `tests/frameworks/test_lanes.py` puts another `DeviceLane` in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from psworker.backends import BUCKET


class DeviceLane(Protocol):
    """The way between one device and the host."""

    def fetch(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to copy a tensor to the host, behind what computes it. The result waits for the copy, in any thread."""

    def send(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Copy `values` of the host, whose memory is used again behind this call, and cast them on the device."""


class CudaLane:
    """On a stream of its own, so that a gradient leaves while others are computed or copied.

    PyTorch keeps page-locked memory for the next copy of its size.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def fetch(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            target.copy_(tensor, non_blocking=True)
            landed = self._stream.record_event()
        # Its memory is not used again before the copy is done.
        tensor.record_stream(self._stream)

        def landing() -> torch.Tensor:
            landed.synchronize()
            return target

        return landing

    def send(self, values: torch.Tensor, into: torch.Tensor) -> None:
        for part, place in pairs_of(values, into):
            staged = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
            staged.copy_(part)
            # The next bucket is staged while this one is on its way.
            if place.dtype == part.dtype:
                place.copy_(staged, non_blocking=True)
            else:
                place.copy_(staged.to(place.device, non_blocking=True))


def pairs_of(values: torch.Tensor, into: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of views, flat and of at most BUCKET elements; one pair where `into` has gaps."""
    if not into.is_contiguous():
        return [(values.view(into.shape), into)]
    return list(zip(values.view(-1).split(BUCKET), into.view(-1).split(BUCKET), strict=True))


# By the kind of a device; on others PyTorch copies by itself.
LANES: dict[str, Callable[[torch.device], DeviceLane]] = {"cuda": CudaLane}
_OPEN: dict[Any, DeviceLane] = {}


def lane_of(device: torch.device) -> DeviceLane | None:
    """Return the lane of a device; None where there is nothing to copy, or no lane."""
    make = LANES.get(device.type)
    if make is None:
        return None
    key = make, device
    if key not in _OPEN:
        _OPEN[key] = make(device)
    return _OPEN[key]
