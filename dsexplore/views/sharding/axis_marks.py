"""`AxisMarks`: one colour per mesh axis in all pictures of a sharding."""

from __future__ import annotations

from collections.abc import Iterable

from dsexplore.sharding.mesh import Mesh
from dsexplore.sharding.tensor import Placed
from dsexplore.views.page.theme import AXES

STYLE = "".join(f".dsx .x{i}{{--x:{mark.colour};--o:{i * 3}px}}\n" for i, mark in enumerate(AXES))


class AxisMarks:
    """The number of each axis, by name; the class ``x<number>`` gives an element the axis's colour as ``--x``.

    Args:
        mesh: whose axes these are.
        tensors: what is drawn.
        first: axes in the order in which another view beside these pictures numbers them; empty for none.
    """

    def __init__(self, mesh: Mesh, tensors: Iterable[Placed], first: Iterable[str] = ()) -> None:
        own = (axis.name for tensor in tensors for axis in tensor.axes)
        names = dict.fromkeys((*first, *mesh.axes, *own))
        self._numbers = {name: min(number, len(AXES) - 1) for number, name in enumerate(names)}

    def number(self, axis: str) -> int:
        """The number of an axis; all after the fifth share the last."""
        return self._numbers[axis]

    def kind(self, axis: str) -> str:
        """The class of an element in the axis's colour."""
        return f"x{self._numbers[axis]}"

    def colour(self, axis: str) -> str:
        """The axis's colour, for figures."""
        return AXES[self._numbers[axis]].colour
