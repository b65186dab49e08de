"""Bandwidths of collectives as nccl-tests defines them (``doc/PERFORMANCE.md``).

Example: 8 ranks all-reduce a tensor of 17179869184 B (16 GiB) in 61974 µs. algbw is 17.18e9 B / 0.061974 s =
277.21 GB/s. In a ring, each byte crosses a link 2 × 7/8 times, so busbw is 485.12 GB/s. It is the rate of the links,
and can be compared with the hardware for any number of ranks.
"""

from __future__ import annotations

import math

from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.collectives import bus_factor

_PLAIN_OPS = {
    "all_reduce_coalesced": "all_reduce",
    "inference_all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_base": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_gather_object": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast_object_list": "broadcast",
    "gather_object": "gather",
    "scatter_object_list": "scatter",
    "isend": "send",
    "irecv": "recv",
    "send_object_list": "send",
    "recv_object_list": "recv",
    "monitored_barrier": "barrier",
}


def plain_op(spelling: str) -> str:
    """Return the plain op: ``"all_gather"`` for ``"all_gather_into_tensor"``; an unknown name is returned unchanged."""
    return _PLAIN_OPS.get(spelling, spelling)


@names_arguments
def bandwidth(op: str, message_bytes: float, seconds: float, group_size: int) -> tuple[float, float]:
    """Return ``(algbw, busbw)`` in GB/s; 1 GB = 1e9 bytes.

    Args:
        op: plain op (``all_gather``) or name of a function (``all_gather_into_tensor``). An unknown name has the bus
            factor 1.
        message_bytes: bytes of the whole buffer, S in nccl-tests: the tensor of all_reduce, broadcast, reduce, send
            and recv; the output of all_gather; the input of reduce_scatter; n times the part of a rank for all_to_all,
            gather and scatter. For an uneven all_to_all, the larger of what the rank sends and receives.
        seconds: duration of the collective.
        group_size: number of ranks in the process group, not in the world.

    Raises:
        UsageError: a negative size, a time that is not positive, or a group without ranks.

    Examples:
        >>> dist.bandwidth("all_reduce", 1e9, seconds=0.1, group_size=4)
        (10.0, 15.0)
    """
    if not (message_bytes >= 0 and math.isfinite(message_bytes)):
        raise UsageError(f"message_bytes {message_bytes} is not a size: give bytes, 0 or more")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise UsageError(f"seconds {seconds} is not a duration: give a time above 0")
    algbw = message_bytes / seconds / 1e9
    return algbw, algbw * bus_factor(plain_op(op), group_size)


def rate_text(gb_per_s: float) -> str:
    """Return a rate in GB/s as text with three digits: ``0.0125`` → ``"12.5 MB/s"``; 1 MB = 1e6 bytes."""
    for unit, scale in (("TB/s", 1e3), ("GB/s", 1.0), ("MB/s", 1e-3)):
        rounded = float(f"{gb_per_s / scale:.3g}")
        if rounded >= 1:
            return f"{rounded:g} {unit}"
    return f"{gb_per_s / 1e-6:.3g} kB/s"
