"""The view of a `Sharding`: pictures of its tensors, the effect of each axis, and what ranks hold."""

from __future__ import annotations

import math
from typing import Any

import torch

from dsexplore._internal.sharding.layout import Sharding, dtype_name, index_text
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.views.page import html
from dsexplore._internal.views.sharding import parameter_list
from dsexplore._internal.views.sharding.drawn_mesh import DrawnMesh
from dsexplore._internal.views.sharding.rank_grid import STYLE as rank_grid_style
from dsexplore._internal.views.sharding.rank_grid import (
    axis_table,
    held_table,
    lit_style,
    meanings,
    rank_grid,
    rank_table,
)
from dsexplore._internal.views.sharding.shard_picture import STYLE, picture_html
from dsexplore._internal.views.view import View


class ShardingView(View):
    """The view of a `Sharding`."""

    title = "Sharding"

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding

    def text(self) -> str:
        """Return the tensor and the effect of each axis; for a model, the verdict and its largest tensors."""
        shown, verdict = self._sharding, f"  {html.plain(self._sharding.verdict(), longest=0)}"
        if len(shown) == 1:
            (tensor,) = shown.tensors
            head = f"Sharding: {_headline(shown, tensor)}"
            return "\n".join([head, verdict, *_axis_lines(tensor), *_held_lines(shown, tensor)])
        return "\n".join([f"Sharding: {_model_headline(shown)}", verdict, *parameter_list.text_lines(shown)])

    def html(self) -> str:
        """Return the verdict, pictures, tables and bars as HTML."""
        return self.picture(self._sharding.verdict())

    def picture(self, verdict: str = "") -> str:
        """Return the view as HTML with another verdict, or without one."""
        shown = self._sharding
        verdict_html = html.verdict(verdict) if verdict else ""
        drawn_mesh = DrawnMesh(shown)
        lit = lit_style(drawn_mesh, shown.tensors)
        notes = html.notes(shown.notes, longest=600)
        if len(shown) == 1:
            (tensor,) = shown.tensors
            head = f"<p><b>Sharding</b> {html.escape(_headline(shown, tensor), longest=0)}</p>{verdict_html}"
            body = (
                axis_table(tensor, drawn_mesh) + rank_grid(drawn_mesh, shown.tensors) + picture_html(tensor, drawn_mesh)
            )
            style = STYLE + rank_grid_style + lit
            return html.fragment(head + notes + body + held_table(shown, tensor) + rank_table(shown, tensor), style)
        head = f"<p><b>Sharding</b> {html.escape(_model_headline(shown), longest=0)}</p>{verdict_html}"
        style = STYLE + rank_grid_style + parameter_list.STYLE + lit
        return html.fragment(head + notes + parameter_list.model_html(drawn_mesh), style)

    def figure(
        self,
        kind: str | None = None,
        tensor: str | None = None,
        optimizer: str | int = "AdamW",
        state_dtype: torch.dtype | None = None,
        gradient_dtype: torch.dtype | None = None,
    ) -> Any:
        """Return a figure of bytes by rank, or of the shards of one tensor.

        Args:
            kind: ``"memory"`` for bytes by rank, or ``"shards"`` for the picture of one tensor; None for ``"shards"``
                of a single tensor, else ``"memory"``.
            tensor: name of the tensor for ``"shards"``; None for the only one.
            optimizer: optimizer whose states count for ``"memory"``, see `Sharding.memory`.
            state_dtype: data type of the optimizer's states, see `Sharding.memory`.
            gradient_dtype: data type of the gradients, see `Sharding.memory`.

        Raises:
            UsageError: There is no such kind, tensor or optimizer.
        """
        from dsexplore._internal.views.sharding.sharding_figures import sharding_figure  # plotly

        return sharding_figure(
            self._sharding,
            kind,
            tensor=tensor,
            optimizer=optimizer,
            state_dtype=state_dtype,
            gradient_dtype=gradient_dtype,
        )

    def explore(self) -> Any:
        """Return a choice of tensor and rank; the rank's shards and those around them are magnified."""
        from dsexplore._internal.views.sharding.sharding_explorer import (
            explorer,  # ipywidgets are loaded when asked for
        )

        return explorer(self._sharding, self)


def _headline(shown: Sharding, tensor: PlacedTensor) -> str:
    """Return name, shape, dtype, size and mesh of a tensor, in one line."""
    return (
        f"{html.plain(tensor.name)} {tensor.shape} {dtype_name(tensor.dtype)}, {format_bytes(tensor.nbytes)}, "
        f"on {_mesh_text(shown)}"
    )


def _model_headline(shown: Sharding) -> str:
    """Return name, size and mesh of a model, in one line."""
    size = sum(tensor.nbytes for tensor in shown.tensors)
    elements = sum(tensor.numel for tensor in shown.tensors)
    return (
        f"{html.plain(shown.title)}: {len(shown):,} tensors, {elements:,} elements, {format_bytes(size)}, "
        f"on {_mesh_text(shown)}"
    )


def _mesh_text(shown: Sharding) -> str:
    count = shown.mesh.size
    return f"{html.plain(shown.mesh)} ({format_count(count, 'rank')})"


def _axis_lines(tensor: PlacedTensor) -> list[str]:
    """Return a line per axis with its placement and its effect."""
    return [
        f"  {html.plain(axis.name, longest=24):<8} {placement!s:<9} {meaning}"
        for axis, placement, meaning in zip(tensor.axes, tensor.placements, meanings(tensor), strict=True)
    ]


def _held_lines(shown: Sharding, tensor: PlacedTensor) -> list[str]:
    """Return a line for each of the first shapes of shards, with an example."""
    lines = []
    for group in shown.shapes(tensor)[:6]:
        size = format_bytes(math.prod(group.value) * tensor.dtype.itemsize)
        index = index_text(tensor.ranges(group.first))
        example = f"; rank {shown.mesh.rank(group.first)} has {index}" if math.prod(group.value) else ""
        lines.append(f"  {format_count(group.count, 'rank')} hold {group.value}, {size} each{example}")
    return lines
