"""`Placement`: DTensor placements, parsed from and formatted as short text: ``S(0)``, ``R``, ``P``, ``_S(0, 2)``."""

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
    """Dim that is split; negative values are allowed until the placement belongs to a tensor."""
    pieces: int = 1
    """Split factor of a strided shard: number of pieces of the dim, each of which this axis splits."""
    reduce_op: str = ""
    """Reduction of partial values: sum, avg, max, …; empty for other kinds."""

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
    """Return the short text of one of torch's placements; for an unknown kind, its ``str``."""
    return str(_plain(placement) or placement)


def readable(text: str) -> str:
    """Return the text of placements with strided shards in words, as torch's name for them is private.

    Examples:
        >>> readable("_S(0, 4), S(0)")
        'S(0) strided, S(0)'
    """
    return _STRIDED.sub(r"S(\1) strided", text)


def joined(placements: Sequence[Any]) -> str:
    """Return the short text of several placements, one per mesh axis in mesh order: ``"S(0), R"``."""
    return ", ".join(short(placement) for placement in placements)


def change(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Return the text of a redistribution: ``"S(0)→R"``, or on a mesh of several axes ``"(R, P)→(R, R)"``."""
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
        what: name of the tensor, for the error; empty for none.

    Raises:
        UsageError: the object is no placement, or one of an unknown kind.
    """
    prefix = f"{what}: " if what else ""
    text = placement.strip() if isinstance(placement, str) else short(placement)
    if match := _SHARD.fullmatch(text):
        return Placement("shard", int(match[1]))
    if match := _STRIDED.fullmatch(text):
        if int(match[2]) < 1:
            raise UsageError(f"{prefix}placement {text}: the split factor is a number of pieces: give 1 or more")
        return Placement("strided", int(match[1]), int(match[2]))
    if _REPLICATE.fullmatch(text):
        return Placement("replicate")
    if match := _PARTIAL.fullmatch(text):
        return Placement("partial", reduce_op=match[1] or "sum")
    raise UsageError(f"{prefix}{placement!r} is not a placement: {_EXAMPLE}")


def read_all(placements: Any, what: str = "") -> tuple[Placement, ...]:
    """Convert placements, one per mesh axis in mesh order: one object, several, or text such as ``"S(0), R"``.

    Args:
        placements: the placements.
        what: name of the tensor, for the error; empty for none.

    Raises:
        UsageError: one of them is not a placement.
    """
    if isinstance(placements, str):
        parts = re.split(r",(?![^(]*\))", placements) if placements.strip() else []
        return tuple(read(part, what) for part in parts)
    several = placements if isinstance(placements, Iterable) else [placements]
    return tuple(read(placement, what) for placement in several)
