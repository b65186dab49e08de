"""The collectives by torch's plain names, and how many bytes each one moves.

There are two sizes, both in bytes and per rank. *Message bytes* S is the whole buffer, as nccl-tests counts it. *Wire
bytes* is the least that a rank must send: S × the bus factor (nccl-tests, ``doc/PERFORMANCE.md``). A send has all of
its S on the wire, a recv nothing:

| op | S | bus factor for n ranks |
|---|---|---|
| all_reduce | the tensor | 2(n−1)/n |
| all_gather | the output | (n−1)/n |
| reduce_scatter | the input | (n−1)/n |
| all_to_all | n × the per-rank part; uneven: the larger of what the rank sends and receives | (n−1)/n |
| gather, scatter | n × the per-rank part | (n−1)/n |
| broadcast, reduce, send, recv | the tensor | 1 |
| barrier | 0 | 1 |

In a group of one rank nothing is sent, and every factor is 0.

Worked example: an all_gather of 4 shards of 1 MiB has S = 4 MiB, and each rank sends its shard three times
around the ring: 3 MiB = 4 MiB × 3/4.
"""

from __future__ import annotations

from dsexplore._internal.errors import UsageError

OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
)

PREFIXES_OF_OTHER_OPS = ("unknown:", "switched_off:")
"""Beginnings of the names of further ops: unknown ones, and those that a switch of dsexplore turned off."""

_IN_PARTS = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Ops in which each rank keeps its own part and sends the others."""


def _bus_fraction(op: str, group_size: int) -> tuple[int, int]:
    """Return the bus factor as (numerator, denominator).

    Raises:
        UsageError: a group size below 1.
    """
    if group_size < 1:
        raise UsageError(f"group_size {group_size} is not a number of ranks: give the size of the group, 1 or more")
    if op == "all_reduce":
        return 2 * (group_size - 1), group_size
    if op in _IN_PARTS:
        return group_size - 1, group_size
    return int(group_size > 1), 1


def bus_factor(op: str, group_size: int) -> float:
    """Return the bytes that a rank must send, as a multiple of the message bytes S; 0 in a group of one rank.

    Args:
        op: name of the collective, from `OPS`; any other op has the bus factor 1.
        group_size: number of ranks in the process group, which for a subgroup is not the world size.

    Raises:
        UsageError: a group size below 1.
    """
    numerator, denominator = _bus_fraction(op, group_size)
    return numerator / denominator


def wire_bytes_if_known(op: str, message_bytes: int | None, group_size: int) -> int | None:
    """Return `wire_bytes`; None if they depend on a size that is unknown.

    Args:
        op: name of the collective.
        message_bytes: message bytes S; None if unknown.
        group_size: number of ranks in the process group; 0 if unknown.
    """
    if message_bytes == 0 or op == "recv":
        return 0
    if message_bytes is None or not group_size:
        return message_bytes if op == "send" else None
    return wire_bytes(op, message_bytes, group_size)


def wire_bytes(op: str, message_bytes: int, group_size: int) -> int:
    """Return `bus_factor` × S in whole bytes, rounded up; 0 for a recv, whose bytes the matching send counts.

    Raises:
        UsageError: a group size below 1.
    """
    numerator, denominator = _bus_fraction(op, group_size)
    return 0 if op == "recv" else -(-message_bytes * numerator // denominator)
