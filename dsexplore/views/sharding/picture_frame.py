"""The size of a shard picture in pixels, and the order of what it shows."""

from __future__ import annotations

from dataclasses import dataclass

from dsexplore.sharding.chunks import Range
from dsexplore.sharding.tensor import Placed
from dsexplore.views.sharding.shard_blocks import Block, Panel, Picture

WIDTH, HEIGHT, THINNEST = 520, 240, 36
"""Pixels that a picture may take, and the least that a side gets."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a picture in pixels, and the shape of what it shows."""

    width: float
    height: float
    rows: int
    columns: int

    @property
    def stretched(self) -> float:
        """The factor by which the thin side is drawn too thick."""
        ratio = (self.width / self.columns) / (self.height / self.rows)
        return max(ratio, 1 / ratio)


def frame_of(rows: int, columns: int, down: int = 1, across: int = 1) -> Frame:
    """True proportion within the room that there is; a side too thin for its labels is stretched.

    Args:
        rows: indices that run down.
        columns: indices that run across.
        down: stretches that the rows are drawn in.
        across: stretches that the columns are drawn in.
    """
    scale = min(WIDTH / columns, HEIGHT / rows)
    width = 2 * THINNEST if across == 1 else min(across, 16) * THINNEST
    height = max(THINNEST, min(down, 16) * 15)
    return Frame(max(columns * scale, width), max(rows * scale, height), rows, columns)


def picture_frame(tensor: Placed, drawn: Picture) -> Frame:
    """The frame of a picture: a matrix, a strip for one dim, a square for none."""
    rows = tensor.shape[drawn.rows] if drawn.rows is not None else 1
    columns = tensor.shape[drawn.columns] if drawn.columns is not None else 1
    if drawn.rows is None:
        return Frame(WIDTH if tensor.shape else 44, 36, rows, columns)
    down, across = (len({each(block) for block in drawn.panels[0].blocks}) for each in (rows_of, columns_of))
    return frame_of(rows, columns, down, across)


def rows_of(block: Block) -> tuple[Range, ...]:
    return block.rows


def columns_of(block: Block) -> tuple[Range, ...]:
    return block.columns


def orders(panel: Panel) -> tuple[dict[int, int], dict[int, int]]:
    """The order of the stretches, down and across: index at which one begins → how many begin before it."""
    down = sorted({start for block in panel.blocks for start, _ in block.rows})
    across = sorted({start for block in panel.blocks for start, _ in block.columns})
    return {start: i for i, start in enumerate(down)}, {start: i for i, start in enumerate(across)}
