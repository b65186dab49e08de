"""DTensor placements as short text, formatted and parsed: ``S(0)``, ``R``, ``P``, and ``_S(0, 2)`` when strided."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsexplore._internal.errors import UsageError

Kind = Literal["shard", "strided", "replicate", "partial"]

_EXAMPLE = "write Shard(0), Replicate() or Partial(), or the text 'S(0)', 'R', 'P'"
_SHARD = re.compile(r"(?:S|Shard)\(\s*(?:dim\s*=\s*)?(-?\d+)\s*\)")
_STRIDED = re.compile(
    r"(?:_S|_StridedShard)\(\s*(?:dim\s*=\s*)?(-?\d+)\s*,\s*(?:(?:sf|split_factor)\s*=\s*)?(-?\d+)\s*\)"
)
_REPLICATE = re.compile(r"R|Replicate(?:\(\s*\))?")
_PARTIAL = re.compile(r"(?:P|Partial)(?:\(\s*['\"]?(\w*)['\"]?\s*\))?")


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of a tensor on one mesh axis."""

    kind: Kind
    dim: int = 0
    """The dim that is split; not negative once the placement belongs to a tensor."""
    pieces: int = 1
    """The split factor of a strided shard: number of pieces into which the dim is split before this axis splits
    each."""
    reduce_op: str = ""
    """Reduction of partial values: sum, avg, max, …"""

    @property
    def cuts(self) -> bool:
        """True if each rank holds only a part of a dim's indices."""
        return self.kind in ("shard", "strided")

    def __str__(self) -> str:
        """Return the short text: ``S(dim)``, ``_S(dim, split_factor)``, ``R``, ``P`` for a sum, else ``P(avg)`` etc."""
        if self.kind == "shard":
            return f"S({self.dim})"
        if self.kind == "strided":
            return f"_S({self.dim}, {self.pieces})"
        if self.kind == "replicate":
            return "R"
        return "P" if self.reduce_op == "sum" else f"P({self.reduce_op})"


def short(placement: Any) -> str:
    """Return the short text of one of torch's placements; an unknown kind's own text."""
    return str(_plain(placement) or placement)


def readable(text: str) -> str:
    """Return placements as text with strided shards in words, as torch's name of them is private.

    Examples:
        >>> readable("_S(0, 4), S(0)")
        'S(0) strided, S(0)'
    """
    return _STRIDED.sub(r"S(\1) strided", text)


def joined(placements: Sequence[Any]) -> str:
    """Return several placements as text, one per mesh axis in mesh order: ``"S(0), R"``."""
    return ", ".join(short(placement) for placement in placements)


def change(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Return a redistribute as text: ``"S(0)→R"``; on a mesh of several axes ``"(R, P)→(R, R)"``."""
    if len(before) == len(after) == 1:
        return f"{short(before[0])}→{short(after[0])}"
    return f"({joined(before)})→({joined(after)})"


def _plain(placement: Any) -> Placement | None:
    """Return one of torch's placements as a `Placement`; None for another object."""
    name = type(placement).__name__
    if name == "_StridedShard":
        return Placement("strided", placement.dim, placement.split_factor)
    if name == "Shard":
        return Placement("shard", placement.dim)
    if name == "Replicate":
        return Placement("replicate")
    if "Partial" in name:
        return Placement("partial", reduce_op=str(getattr(placement, "reduce_op", "sum")))
    return None


def read(placement: Any, what: str = "") -> Placement:
    """Convert one placement to a `Placement`.

    Args:
        placement: torch's object, a `Placement`, or text.
        what: the name of the tensor, for the message.

    Raises:
        UsageError: an object of another type, or an unknown kind of placement.
    """
    of = f"{what}: " if what else ""
    text = placement.strip() if isinstance(placement, str) else short(placement)
    if match := _SHARD.fullmatch(text):
        return Placement("shard", int(match[1]))
    if match := _STRIDED.fullmatch(text):
        if int(match[2]) < 1:
            raise UsageError(f"{of}placement {text}: a split factor counts pieces, so it is 1 or more")
        return Placement("strided", int(match[1]), int(match[2]))
    if _REPLICATE.fullmatch(text):
        return Placement("replicate")
    if match := _PARTIAL.fullmatch(text):
        return Placement("partial", reduce_op=match[1] or "sum")
    raise UsageError(f"{of}{placement!r} is not a placement: {_EXAMPLE}")


def read_all(placements: Any, what: str = "") -> tuple[Placement, ...]:
    """Convert placements in mesh order: one, several, or text such as ``"S(0), R"``.

    Raises:
        UsageError: one of them is not a placement.
    """
    if isinstance(placements, str):
        parts = re.split(r",(?![^(]*\))", placements) if placements.strip() else []
        return tuple(read(part, what) for part in parts)
    several = placements if isinstance(placements, Iterable) else [placements]
    return tuple(read(placement, what) for placement in several)
