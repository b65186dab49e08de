"""Where the ranks of a group did not call the same: another op, size, root or dtype under one sequence number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsexplore.analysis.hangs.rank_calls import Call, GroupId, Instance, Job

Signature = tuple[str, int | None, int | None, str, int | None]
"""Op, elements handed in, elements got, dtype, root: None and empty where ranks may differ, or it is not known."""

_REDUCED = frozenset({"broadcast", "reduce"})
_OF_ANY_SIZE = frozenset({"all_to_all", "gather", "scatter"})


@dataclass(frozen=True)
class Mismatch:
    """The first collective of a group in which its ranks parted."""

    instance: Instance
    classes: tuple[tuple[int, ...], ...]
    """The ranks that called the same, those of the most ranks first."""
    field: str
    """The property that differs: ``op``, ``size``, ``root`` or ``dtype``."""
    is_harmful: bool
    """Whether ranks hang in it or after it; one that all ranks got through, and that is not followed by others, is not
    why the job hangs."""

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that called otherwise than the most; empty where no side has the most."""
        first, *rest = self.classes
        if len(first) <= max(len(others) for others in rest):
            return ()
        return tuple(sorted(rank for others in rest for rank in others))


def mismatches(job: Job) -> list[Mismatch]:
    """The first mismatch of each group, in the order of groups."""
    by_group: dict[GroupId, list[Instance]] = defaultdict(list)
    for instance in job.instances.values():
        if instance.id.pair is None and len(instance.calls) > 1:
            by_group[instance.id.group].append(instance)
    found = []
    for instances in by_group.values():
        instances.sort(key=lambda instance: (instance.id.number, instance.id.part))
        differing = [instance for instance in instances if _field(instance)]
        if differing:
            found.append(_described(differing[0], instances, differing))
    return sorted(found, key=lambda mismatch: min(call.position for call in mismatch.instance.calls.values()))


def _described(first: Instance, instances: list[Instance], differing: list[Instance]) -> Mismatch:
    hang = any(instance.pending for instance in instances if instance.id.number >= first.id.number)
    got_through = not first.pending and differing[-1] is not instances[-1]
    classes: dict[object, list[int]] = defaultdict(list)
    for rank, call in sorted(first.calls.items()):
        classes[signature(call)].append(rank)
    sides = sorted(map(tuple, classes.values()), key=lambda ranks: (-len(ranks), ranks))
    if len(sides) == 1:  # an all_to_all whose sums differ: nobody says who is wrong
        sides = [(rank,) for rank in sorted(first.calls)]
    return Mismatch(first, tuple(sides), _field(first), hang and not got_through)


def signature(call: Call) -> Signature:
    """The properties of a call that must agree on all ranks of a group."""
    if call.op == "barrier":
        return (call.op, None, None, "", None)
    if call.op in _OF_ANY_SIZE:
        return (call.op, None, None, call.dtype if call.op == "all_to_all" else "", call.root)
    if call.op == "all_reduce":
        return (call.op, call.sent or call.received, call.received, call.dtype, None)
    if call.op in _REDUCED:
        size = call.sent if call.sent else call.received
        return (call.op, size, None, call.dtype, call.root)
    if call.op == "all_gather":
        return (call.op, call.sent if call.has_equal_parts else None, call.received, call.dtype, None)
    if call.op == "reduce_scatter":
        return (call.op, call.sent, call.received if call.has_equal_parts else None, call.dtype, None)
    return (call.op, call.sent, call.received, call.dtype, None)


def _field(instance: Instance) -> str:
    """The property in which the ranks' calls differ; empty where none does."""
    calls = instance.calls.values()
    unlike = {(call.op, call.sent, call.received, call.dtype, call.root, call.has_equal_parts): call for call in calls}
    found = _differing([signature(call) for call in unlike.values()]) if len(unlike) > 1 else ""
    if found:
        return found
    return "size" if _sums_differ(instance) or any(map(_is_torn, instance.pending)) else ""


def _differing(signatures: Sequence[Signature]) -> str:
    ops, sent, received, dtypes, roots = zip(*signatures, strict=True)
    if _differ(ops):
        return "op"
    if _differ(sent) or _differ(received):
        return "size"
    if _differ(roots):
        return "root"
    return "dtype" if _differ(dtype or None for dtype in dtypes) else ""


def _is_torn(call: Call) -> bool:
    """Whether what a rank hands in does not fit what it gets, whatever the others call."""
    parts, sent, received = len(call.group.ranks), call.sent, call.received
    if sent is None or received is None:
        return False
    if call.op == "all_reduce":
        return sent != received
    if parts < 2 or not call.has_equal_parts or call.op not in ("all_gather", "reduce_scatter"):
        return False
    return sent * parts != received if call.op == "all_gather" else sent != received * parts


def _differ(values: Iterable[object]) -> bool:
    return len({value for value in values if value is not None}) > 1


def _sums_differ(instance: Instance) -> bool:
    """Whether the ranks of an all_to_all send more or less, all together, than they get."""
    calls = list(instance.calls.values())
    if calls[0].op != "all_to_all" or len(calls) < len(instance.id.group.ranks):
        return False
    sent, received = [call.sent for call in calls], [call.received for call in calls]
    if None in sent or None in received:
        return False
    return sum(filter(None, sent)) != sum(filter(None, received))
