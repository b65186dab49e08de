"""A virtualised tree table: any number of rows, of which only those in sight are in the page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import traitlets

from dsexplore.views.page import theme
from dsexplore.views.widgets import script, style
from dsexplore.views.widgets.answering_widget import AnsweringWidget

TREE_SCRIPTS = ("follow.js", "dom.js", "rows.js", "tree.js")


class TreeWidget(AnsweringWidget):
    """Rows in preorder with numeric columns; the browser filters by name, sorts, folds and unfolds by itself."""

    _esm = script(*TREE_SCRIPTS, render="alone(tree)")
    _css = style("tree.css") + theme.AXIS_STYLE

    labels = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """One per row, the parent's name left out."""
    types = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """The distinct module types; ``type_of`` points into it."""
    notes = traitlets.Dict().tag(sync=True)
    """Row → text shown behind the name, such as placements; sparse."""
    folded = traitlets.Dict().tag(sync=True)
    """First row of a fold → [label, its rows]."""
    titles: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[title, unit, explanation] per column; unit: ``bytes``, ``seconds``, ``count``, or ``bar``, of the one before."""
    axes = traitlets.Int(0).tag(sync=True)
    """The number of columns after the bar's that are its parts."""
    structure = traitlets.Bytes(b"").tag(sync=True)
    """int32, four per row: parent, end of the subtree, index of the type, 1 where the row is hidden by a fold."""
    values = traitlets.Bytes(b"").tag(sync=True)
    """float32, (distinct columns, rows)."""
    columns: traitlets.List[int] = traitlets.List(traitlets.Int()).tag(sync=True)
    """For each of `titles` the index into `values`; −1 where all is zero."""
    height = traitlets.Int(420).tag(sync=True)
    """Pixels that the rows take at most."""
    selected = traitlets.Int(-1).tag(sync=True, echo_update=False)
    folding = traitlets.Bool(True).tag(sync=True, echo_update=False)

    def set_values(self, columns: npt.NDArray[np.float64]) -> None:
        """Show other numbers in the same rows; of equal columns only one is sent, and none that is all zero."""
        places: dict[bytes, int] = {bytes(4 * columns.shape[1]): -1}
        found = [places.setdefault(column.tobytes(), len(places) - 1) for column in columns.astype(np.float32)]
        with self.hold_sync():
            self.columns, self.values = found, b"".join(content for content, place in places.items() if place >= 0)
