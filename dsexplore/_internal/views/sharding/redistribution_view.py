"""The view of a `Redistribution`: a tensor before and after, and what is sent in between."""

from __future__ import annotations

from dsexplore._internal.sharding.layout import Sharding, dtype_name
from dsexplore._internal.sharding.redistribution import Redistribution, Step
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.sharding import rank_grid, shard_picture
from dsexplore._internal.views.sharding.drawn_mesh import DrawnMesh, axis_class
from dsexplore._internal.views.sharding.rank_grid import meanings
from dsexplore._internal.views.view import View

_BLOCKS = 64
_NOTE = (
    "The steps are those of torch's planner. Bytes are those of rank 0 of the mesh, which sends most. A message is the "
    "whole buffer of the collective, padded if shards are uneven."
)

STYLE = """
.dsx .way{display:flex;flex-wrap:wrap;gap:4px 28px;align-items:flex-start}
.dsx .way>div{max-width:min(100%,560px);min-width:0}
.dsx .way p{max-width:380px}
"""


class RedistributionView(View):
    """The view of a `Redistribution`."""

    title = "Redistribute"

    def __init__(self, redistribution: Redistribution) -> None:
        self._shown = redistribution

    def text(self) -> str:
        """Return the cost of the redistribution, and a line per step."""
        return "\n".join(
            [
                f"Redistribute: {_what(self._shown)}: {self._shown.verdict()}",
                *(f"  {_line(step)}" for step in self._shown.steps),
            ]
        )

    def html(self) -> str:
        """Return the ranks, the tensor before, the steps, and the tensor after.

        Choosing a rank highlights its shards in both tensors.
        """
        shown = self._shown
        both = Sharding(shown.name, shown.mesh, [shown.before, shown.after])
        drawn_mesh = DrawnMesh(both)
        body = (
            f"<p><b>Redistribute</b> {html.escape(_what(shown), longest=0)}</p>"
            + html.verdict(shown.verdict())
            + rank_grid.rank_grid(drawn_mesh, both.tensors)
            + f'<div class="way">{_part("before", shown.before, drawn_mesh)}{_steps(shown, drawn_mesh)}'
            + f"{_part('after', shown.after, drawn_mesh)}</div>{html.notes([_NOTE])}"
        )
        style = shard_picture.STYLE + rank_grid.STYLE + STYLE + rank_grid.lit_style(drawn_mesh, both.tensors)
        return html.fragment(body, style)


def _what(shown: Redistribution) -> str:
    """Return the tensor, its placements before and after, and the mesh, in one line."""
    tensor = shown.before
    placed = [", ".join(map(str, placed_tensor.placements)) for placed_tensor in (tensor, shown.after)]
    mesh = ", ".join(f"{axis.name}={axis.size}" for axis in tensor.axes)
    return (
        f"{html.plain(shown.name)} {tensor.shape} {dtype_name(tensor.dtype)} from {placed[0]} to {placed[1]} on {mesh}"
    )


def _line(step: Step) -> str:
    """Return a step as one line: the change of a placement, and what is sent for it."""
    change = f"{html.plain(step.axis, longest=30)}: {step.before}→{step.after}"
    if not step.op:
        return f"{change}, each of {step.ranks:,} ranks slices its part, nothing is sent"
    sizes = f"{format_bytes(step.message_bytes)} message, {format_bytes(step.wire_bytes)} on the wire"
    return f"{change} by {step.op} of {step.ranks:,} ranks, {sizes}"


def _part(title: str, tensor: PlacedTensor, drawn_mesh: DrawnMesh) -> str:
    """Return the tensor before or after: what each placement does, and the picture."""
    placed = zip(tensor.axes, tensor.placements, meanings(tensor), strict=True)
    placements = "; ".join(
        f"{shard_picture.swatch(placement, axis_class(axis.name))} {html.name(axis.name, longest=30)}: "
        f"{html.escape(meaning)}"
        for axis, placement, meaning in placed
    )
    picture = shard_picture.picture_html(tensor, drawn_mesh, _BLOCKS, with_zoom=False)
    return f"<div><p><b>{title}</b></p><p>{placements}</p>{picture}</div>"


def _steps(shown: Redistribution, drawn_mesh: DrawnMesh) -> str:
    """Return the steps as a table."""
    if not shown.steps:
        return ""
    columns = (
        Column("step", lambda row: str(row[0])),
        text(
            "axis",
            lambda row: f'<span class="axis {axis_class(row[1].axis)}">{html.name(row[1].axis, longest=30)}</span>',
        ),
        Column("ranks", lambda row: f"{row[1].ranks:,}"),
        text("change", lambda row: f"<code>{row[1].before}</code> → <code>{row[1].after}</code>"),
        text("collective", lambda row: html.name(row[1].op) if row[1].op else "each rank slices its part"),
        Column("message bytes", lambda row: format_bytes(row[1].message_bytes) if row[1].op else "–"),
        Column("wire bytes", lambda row: format_bytes(row[1].wire_bytes) if row[1].op else "–"),
    )
    return f"<div><p><b>→ in order</b></p>{table(columns, enumerate(shown.steps, 1))}</div>"
