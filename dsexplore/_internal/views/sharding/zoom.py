"""The magnified part of a picture that has too many shards to draw one by one, and the sizes of pictures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dsexplore._internal.sharding.chunks import Range, held_ranges
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.views.sharding.shard_blocks import (
    Panel,
    Picture,
    ShardBlock,
    Stretch,
    block_of,
    cuts_of,
    single_places,
)

WIDTH, HEIGHT, THINNEST = 520, 240, 36
"""Maximal width and height of a picture, and minimal length of a side, in pixels."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Size of a picture in pixels, and the shape of what it shows."""

    width: float
    height: float
    rows: int
    """Number of indices from top to bottom."""
    columns: int
    """Number of indices from left to right."""

    @property
    def stretched(self) -> float:
        """Factor by which the thin side is drawn too thick."""
        ratio = (self.width / self.columns) / (self.height / self.rows)
        return max(ratio, 1 / ratio)


def frame_of(rows: int, columns: int, down: int = 1, across: int = 1) -> Frame:
    """Return the frame of a part of a tensor in true proportions; a side too thin for its labels is stretched.

    Args:
        rows: number of indices from top to bottom.
        columns: number of indices from left to right.
        down: number of blocks from top to bottom.
        across: number of blocks from left to right.
    """
    scale = min(WIDTH / columns, HEIGHT / rows)
    width = 2 * THINNEST if across == 1 else min(across, 16) * THINNEST
    height = max(THINNEST, min(down, 16) * 15)
    return Frame(max(columns * scale, width), max(rows * scale, height), rows, columns)


def picture_frame(tensor: PlacedTensor, drawn: Picture) -> Frame:
    """Return the frame of a tensor's picture: a strip for one dim, a square for none."""
    rows = tensor.shape[drawn.rows] if drawn.rows is not None else 1
    columns = tensor.shape[drawn.columns] if drawn.columns is not None else 1
    if drawn.rows is None:
        return Frame(WIDTH if tensor.shape else 44, 36, rows, columns)
    down, across = (len({side(block) for block in drawn.panels[0].blocks}) for side in (rows_of, columns_of))
    return frame_of(rows, columns, down, across)


def rows_of(block: ShardBlock) -> tuple[Range, ...]:
    return block.rows


def columns_of(block: ShardBlock) -> tuple[Range, ...]:
    return block.columns


def orders(panel: Panel) -> tuple[dict[int, int], dict[int, int]]:
    """Return {index at which a stretch begins: number of stretches before it}, for rows and for columns."""
    down = sorted({start for block in panel.blocks for start, _ in block.rows})
    across = sorted({start for block in panel.blocks for start, _ in block.columns})
    return {start: i for i, start in enumerate(down)}, {start: i for i, start in enumerate(across)}


SHARDS = 5
"""Number of shards of a dim in a zoom."""
_MOST_SEARCHED = 65_536
"""Maximal number of shards of a dim among which a rank's is searched."""


@dataclass(frozen=True, slots=True)
class Zoom:
    """A window of a picture, and the picture of its content."""

    rows: Range
    columns: Range
    picture: Picture
    shards: str = "the first shards"
    """Name of its shards, for the heading."""


def zoom(
    tensor: PlacedTensor, drawn: Picture, at: Sequence[int] | None = None, shards: str = "the first shards"
) -> Zoom | None:
    """Return a window on some shards of the folded dims; None if no dim is folded, or shards are not contiguous.

    Args:
        tensor: the tensor that is drawn.
        drawn: picture of the whole tensor.
        at: mesh coordinates of the rank whose shards are in the middle; None for the first shards.
        shards: name of the shards, for the heading.
    """
    down, across = (
        _shards(tensor, dim, stretches, at)
        for dim, stretches in ((drawn.rows, drawn.down), (drawn.columns, drawn.across))
    )
    if down is None and across is None:
        return None
    rows, columns = _extent(down), _extent(across)
    if rows is None:
        rows = _other_range(columns, HEIGHT / WIDTH, dim=drawn.rows, tensor=tensor, at=at)
    if columns is None:
        columns = _other_range(rows, WIDTH / HEIGHT, dim=drawn.columns, tensor=tensor, at=at)
    shown_rows = _clipped(down or drawn.down, rows)
    shown_columns = _clipped(across or drawn.across, columns)
    places = drawn.panels[0].places
    others = [Stretch((), places)] if places else []
    blocks = tuple(block_of(row, column, others) for row in shown_rows for column in shown_columns)
    panel = Panel(drawn.panels[0].fixed, blocks, places)
    picture = Picture(drawn.rows, drawn.columns, panels=(panel,), down=tuple(shown_rows), across=tuple(shown_columns))
    return Zoom(rows, columns, picture, shards)


def _shards(
    tensor: PlacedTensor, dim: int | None, stretches: Sequence[Stretch], at: Sequence[int] | None
) -> list[Stretch] | None:
    """Return consecutive shards: those around a rank's, or without a rank the first ones that are folded.

    None if no stretch of the dim is folded, or if the rank's shard was not found.
    """
    if at is None or dim is None or not any(stretch.folded > 1 for stretch in stretches):
        return _first_shards(tensor, dim, stretches)
    numbers, cuts = cuts_of(tensor, dim)
    every = itertools.islice(itertools.product(*(range(cut.parts) for cut in cuts)), _MOST_SEARCHED)
    held = ((tuple(held_ranges(tensor.shape[dim], cuts, places)), places) for places in every)
    coordinates = [int(tensor.axes[number](at)) for number in numbers]
    in_order = sorted((ranges, places) for ranges, places in held if len(ranges) == 1)
    mine = [i for i, (_, places) in enumerate(in_order) if list(places) == coordinates]
    if not mine:
        return None
    first = min(max(mine[0] - SHARDS // 2, 0), max(len(in_order) - SHARDS, 0))
    around = [Stretch(ranges, single_places(numbers, places)) for ranges, places in in_order[first : first + SHARDS]]
    return around if len(around) > 1 else None


def _first_shards(tensor: PlacedTensor, dim: int | None, stretches: Sequence[Stretch]) -> list[Stretch] | None:
    """Return consecutive shards from the start of a dim's first folded stretch, or None if there is none."""
    folded = next((stretch for stretch in stretches if stretch.folded > 1), None)
    if dim is None or folded is None:
        return None
    numbers, cuts = cuts_of(tensor, dim)
    folded_range = dict(folded.places)
    indices = [range(*folded_range.get(i, (0, cut.parts))) for i, cut in zip(numbers, cuts, strict=True)]
    shards: list[Stretch] = []
    end = folded.ranges[0][0]
    for at in itertools.islice(itertools.product(*indices), 8 * SHARDS):
        ranges = held_ranges(tensor.shape[dim], cuts, at)
        if len(ranges) != 1 or ranges[0][0] != end:
            continue
        shards.append(Stretch(tuple(ranges), single_places(numbers, at)))
        end = ranges[0][1]
        if len(shards) == SHARDS:
            break
    return shards if len(shards) > 1 else None


def _extent(stretches: Sequence[Stretch] | None) -> Range | None:
    """Return the range from the first to the last index; None without stretches."""
    return None if stretches is None else (stretches[0].ranges[0][0], stretches[-1].ranges[0][1])


def _other_range(
    window: Range | None, ratio: float, dim: int | None, tensor: PlacedTensor, at: Sequence[int] | None
) -> Range:
    """Return the indices of the dim that is not folded, so many that the window has the proportions of a picture.

    Args:
        window: indices of the folded dim.
        ratio: length of the range relative to the window.
        dim: the dim; None if the picture has none.
        tensor: the tensor.
        at: mesh coordinates of the rank at whose shard the range begins; None for the first index.
    """
    if dim is None or window is None:
        return 0, 1
    length = tensor.shape[dim]
    wide = min(length, max(1, round((window[1] - window[0]) * ratio)))
    ranges = tensor.ranges(tuple(at))[dim] if at is not None else ()
    first = min(ranges[0][0], length - wide) if ranges else 0
    return first, first + wide


def _clipped(stretches: Sequence[Stretch], window: Range) -> list[Stretch]:
    """Return the parts of stretches inside a window; stretches outside are omitted."""
    low, high = window
    clipped = []
    for stretch in stretches:
        ranges = [(max(start, low), min(stop, high)) for start, stop in stretch.ranges]
        inside = tuple((start, stop) for start, stop in ranges if start < stop)
        if inside:
            clipped.append(Stretch(inside, stretch.places, stretch.folded))
    return clipped
