"""A virtualised tree table: any number of rows, of which only the visible ones are in the page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import traitlets

from dsexplore.views.page import theme
from dsexplore.views.widgets import script, style
from dsexplore.views.widgets.answering_widget import AnsweringWidget

TREE_SCRIPTS = ("follow.js", "dom.js", "rows.js", "tree.js")


class TreeWidget(AnsweringWidget):
    """Rows in preorder with numeric columns; the browser filters by name, sorts and folds without the kernel."""

    _esm = script(*TREE_SCRIPTS, render="alone(tree)")
    _css = style("tree.css") + theme.AXIS_STYLE

    labels = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """Name of each row, without the parent's name."""
    types = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """Distinct module types, which ``structure`` indexes."""
    notes = traitlets.Dict().tag(sync=True)
    """{row: text after the name, such as placements}; sparse."""
    folded = traitlets.Dict().tag(sync=True)
    """{first row of a fold: [label, its rows]}."""
    titles: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[title, unit, explanation] per column.

    The unit is ``bytes``, ``seconds``, ``count``, or ``bar``: a bar of the previous column.
    """
    axes = traitlets.Int(0).tag(sync=True)
    """Number of columns after the bar's that are parts of the bar."""
    structure = traitlets.Bytes(b"").tag(sync=True)
    """int32, four per row: parent, end of the subtree, index of the type, 1 if the row is hidden by a fold."""
    values = traitlets.Bytes(b"").tag(sync=True)
    """float32 of shape (distinct columns, rows)."""
    columns: traitlets.List[int] = traitlets.List(traitlets.Int()).tag(sync=True)
    """Index into `values` for each of `titles`; −1 if the column is all zero."""
    height = traitlets.Int(420).tag(sync=True)
    """Maximal height of the rows in pixels."""
    selected = traitlets.Int(-1).tag(sync=True, echo_update=False)
    folding = traitlets.Bool(True).tag(sync=True, echo_update=False)

    def set_values(self, columns: npt.NDArray[np.float64]) -> None:
        """Show other numbers in the same rows; equal columns are sent once, all-zero columns are not sent."""
        places: dict[bytes, int] = {bytes(4 * columns.shape[1]): -1}
        found = [places.setdefault(column.tobytes(), len(places) - 1) for column in columns.astype(np.float32)]
        with self.hold_sync():
            self.columns, self.values = found, b"".join(content for content, place in places.items() if place >= 0)
