"""How long kernels computed on a profiled GPU while something else ran there.

Worked example: kernels compute from 0 to 10 µs and, on another stream, from 5 to 20 µs. A collective from 15 to 30 µs
overlaps with 5 µs of computation, and is exposed for the other 10: nothing of the program ran then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace.importers.profiler_file import Event

Times = npt.NDArray[np.float64]


class ComputeTime:
    """The computation in one file, by device.

    Args:
        kernels: compute kernels with ``pid`` (the GPU's number, as text), ``ts`` and ``dur`` in microseconds; rows with
            a null are left out.
    """

    def __init__(self, kernels: pl.DataFrame) -> None:
        devices = kernels.drop_nulls().partition_by("pid", as_dict=True, include_key=False)
        self._devices = {device: _covered(of_device.to_numpy()) for (device,), of_device in devices.items()}

    def exposed(self, events: Sequence[Event]) -> list[int | None]:
        """Return for each event the ns in which its GPU computed nothing; None if that GPU has no compute kernels."""
        found: list[int | None] = [None] * len(events)
        for device, known in self._devices.items():
            own = [at for at, event in enumerate(events) if str(event.get("pid")) == device and "dur" in event]
            begin, took = (np.array([float(events[at][name]) for at in own]) for name in ("ts", "dur"))
            computed = np.interp(begin + took, *known) - np.interp(begin, *known)
            alone = np.rint((took - computed) * 1_000).clip(min=0)
            for at, exposed in zip(own, alone.astype(np.int64).tolist(), strict=True):
                found[at] = exposed
        return found


def _covered(spans: Times) -> tuple[Times, Times]:
    """Return moments, and the total compute time before each; linear between two moments, constant outside.

    Args:
        spans: of shape [kernels, 2], begin and duration.
    """
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    begin, end = spans[:, 0], np.maximum.accumulate(spans.sum(axis=1))
    is_first = np.append(True, begin[1:] > end[:-1])
    begins = begin[is_first]
    ends = end[np.append(is_first[1:], True)]
    long = ends - begins
    total = np.cumsum(long)
    return np.stack([begins, ends], axis=1).ravel(), np.stack([total - long, total], axis=1).ravel()
