"""How long one collective takes on a cluster."""

from __future__ import annotations

from dataclasses import replace

from dsexplore._internal.cost.cluster import Cluster, HardwareLike
from dsexplore._internal.cost.collectives.collective_curve import Curve, curve
from dsexplore._internal.cost.collectives.collective_mechanism import GroupShape
from dsexplore._internal.cost.collectives.measured_points import contradictions
from dsexplore._internal.cost.range import Range
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.collectives import OPS
from dsexplore._internal.user_warnings import warn


@names_arguments
def collective_time(
    op: str,
    message_bytes: float,
    world_size: int,
    ranks_per_node: int | None = None,
    hardware: HardwareLike = "h100",
    *,
    aligned: bool = True,
) -> Range:
    """Return the seconds that a collective takes once all ranks have begun it.

    Args:
        op: a name from `trace.collectives.OPS`.
        message_bytes: message bytes S, the whole buffer as nccl-tests counts it.
        world_size: ranks of the process group.
        ranks_per_node: how many of the group's ranks share a node, or an NVLink domain of several nodes: 8 of 8 for a
            mesh axis of stride 1, 1 of 8 for one of stride 8. By default as many as a job of `world_size` has
            there, 8 on a DGX H100. If ranks are not a multiple of it, the last node counts as full.
        hardware: a GPU (``"h100"`` means ``"dgx-h100"``), a cluster, the path of a cluster's file, or a `Cluster`.
        aligned: whether the group's ranks have the same places on each node, as those of a mesh axis have where its
            stride or the group fills nodes: on a network with rails others cross the switches above these.

    Returns:
        the expected time, and the range that holds four of five measured times; its ``why`` says what is not known.

    Raises:
        UsageError: an unknown op or hardware, a negative size, or an impossible number of ranks.

    Examples:
        >>> time = collective_time("all_reduce", 1 << 30, world_size=16)
        >>> print(f"{time.expected * 1e3:.1f} ms")
        4.5 ms
        >>> time.why
        'all_reduce between nodes was never measured on a network like this'
    """
    if not message_bytes >= 0:
        raise UsageError(f"message_bytes {message_bytes} is not a size: give bytes, 0 or more")
    machine = _machine(hardware)
    curve = collective_curve(op, world_size, ranks_per_node, machine, aligned=aligned)
    if curve is None:
        return Range.exactly(0.0)
    time = curve.at(message_bytes)
    per_node = machine.domain_of_job(world_size) if ranks_per_node is None else ranks_per_node
    return replace(time, why=f"{op} {_where(machine, per_node < world_size)} {time.why}")


def _machine(hardware: HardwareLike) -> Cluster:
    """Return the cluster; warn of measured times in its file that its bandwidths contradict."""
    if isinstance(hardware, Cluster):
        return hardware
    machine = Cluster.load(hardware)
    for doubt in contradictions(machine):
        warn(doubt)
    return machine


def _where(machine: Cluster, is_across: bool) -> str:
    """Return between or inside what the ranks of a group are, in words."""
    if machine.topology == "host":
        return "between machines" if is_across else "between processes of a machine"
    return f"between {machine.domain_kind}s" if is_across else f"in one {machine.domain_kind}"


def collective_curve(
    op: str,
    world_size: int,
    ranks_per_node: int | None = None,
    hardware: HardwareLike = "h100",
    *,
    aligned: bool = True,
) -> Curve | None:
    """Return the times of a collective at all sizes, with their known error; None for a group of one rank.

    Raises:
        UsageError: as `collective_time`.
    """
    machine = _machine(hardware)
    if op not in OPS:
        raise UsageError(f"op {op!r} is not a collective: name one of {', '.join(OPS)}")
    if world_size < 1:
        raise UsageError(f"world_size {world_size} is not a number of ranks: give the size of the group, 1 or more")
    per_node = min(world_size, machine.domain_of_job(world_size) if ranks_per_node is None else ranks_per_node)
    if not 1 <= per_node <= machine.ranks_per_domain:
        raise UsageError(
            f"ranks_per_node {per_node} does not fit {machine.name}: give a number from 1 to {machine.ranks_per_domain}"
        )
    if world_size == 1:
        return None
    group = GroupShape(-(-world_size // per_node), per_node, aligned)
    if group.nodes > 1 and machine.network is None:
        raise UsageError(
            f"{machine.name} is one {machine.domain_kind} of {machine.ranks_per_domain} ranks, without a network: a "
            f"group of {world_size} ranks with {per_node} of them on each node does not fit"
        )
    return curve(machine, op, group)
