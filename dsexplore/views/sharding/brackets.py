"""Brackets beside a shard picture that name the axis and its coordinate at each cut, and lines where it cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsexplore.sharding.tensor import Placed
from dsexplore.views.page import html
from dsexplore.views.sharding.axis_cuts import AxisCuts, Run, boundaries
from dsexplore.views.sharding.axis_marks import AxisMarks
from dsexplore.views.sharding.block_titles import place_text

THICK = 19
"""Pixels that the brackets of one axis take."""
_LETTER = 5.6
_MOST = 64
"""Brackets of an axis side by side; of more, one stands for all."""
_LEAST = 5
"""Pixels of the shortest bracket that is drawn by itself."""

STYLE = """
.dsx .pic .k{border:2px solid var(--x);font:10px/13px var(--dsx-font);text-align:center;white-space:nowrap;
overflow:hidden;color:var(--dsx-fg)}
.dsx .pic .k.above{height:16px;border-bottom:0}
.dsx .pic .k.beside{width:16px;border-right:0;writing-mode:vertical-rl;line-height:12px}
.dsx .pic .k.all{border-style:dashed}
.dsx .pic .k.above.all{border-bottom:0}
.dsx .pic .k.beside.all{border-right:0}
.dsx .pic .cut{background:var(--x);z-index:1;pointer-events:none;left:0;right:0;height:2px;margin-top:-1px}
.dsx .pic .cut.up{left:auto;right:auto;top:0;bottom:0;height:auto;width:2px;margin:0 0 0 -1px}
.dsx .pic .cut.outer{height:4px;margin-top:-2px}
.dsx .pic .cut.up.outer{height:auto;width:4px;margin:0 0 0 -2px}
"""


@dataclass(frozen=True)
class Side:
    """One side of a picture: the dim that runs down, or the one that runs across."""

    tensor: Placed
    marks: AxisMarks
    first: int
    """The index at its beginning."""
    size: int
    """How many indices it shows."""
    pixels: float
    down: bool
    left: float
    """Where the outermost bracket begins, in pixels of the picture."""
    top: float

    @property
    def scale(self) -> float:
        """The length of one index, in pixels."""
        return self.pixels / self.size


def brackets(cuts: Sequence[AxisCuts], side: Side) -> str:
    """The brackets of a dim, the outermost axis furthest from the picture; ``cuts``: of `axis_cuts.axis_cuts`."""
    return "".join(_of_axis(axis, side, THICK * place) for place, axis in enumerate(cuts))


def _of_axis(cuts: AxisCuts, side: Side, inwards: float) -> str:
    axis = side.tensor.axes[cuts.number]
    lengths = [(run.stop - run.start) * side.scale for run in cuts.runs]
    kind = f"k {'beside' if side.down else 'above'} {side.marks.kind(axis.name)}"
    if len(cuts.runs) > _MOST or min(lengths) < _LEAST or any(run.place is None for run in cuts.runs):
        text = _fitting((f"{axis.name} in {axis.size:,}", f"{axis.name} ÷{axis.size:,}", axis.name), side.pixels)
        return _bracket(f"{kind} all", text, 0, side.pixels, side, inwards)
    texts = _labels(axis.name, cuts.runs, lengths)
    return "".join(
        _bracket(_look(kind, run), text, (run.start - side.first) * side.scale, length, side, inwards)
        for run, text, length in zip(cuts.runs, texts, lengths, strict=True)
    )


def _look(kind: str, run: Run) -> str:
    """The class of a bracket; that of several coordinates is dashed."""
    return f"{kind} all" if run.place is not None and run.place[1] - run.place[0] > 1 else kind


def _labels(axis: str, runs: Sequence[Run], lengths: Sequence[float]) -> list[str]:
    """``tp 0`` in each bracket that has room for it, else the number, else nothing; the name stands in one at least."""
    texts = []
    for run, length in zip(runs, lengths, strict=True):
        named = place_text(axis, run.place or (0, 1))
        texts.append(_fitting((named, named.removeprefix(f"{axis} ")), length))
    if not any(text.startswith(axis) for text in texts):
        longest = max(range(len(lengths)), key=lambda i: lengths[i])
        texts[longest] = _fitting((axis, texts[longest]), lengths[longest])
    return texts


def _fitting(texts: Sequence[str], pixels: float) -> str:
    """The first of these texts for which there is room; else nothing."""
    return next((text for text in texts if len(text) * _LETTER + 6 <= pixels), "")


def _bracket(kind: str, text: str, start: float, length: float, side: Side, inwards: float) -> str:
    left, top = (side.left + inwards, side.top + start) if side.down else (side.left + start, side.top + inwards)
    size = f"{'height' if side.down else 'width'}:{max(length - 1, 2):.1f}px"
    return f'<span class="{kind}" style="left:{left:.1f}px;top:{top:.1f}px;{size}">{html.escape(text, 40)}</span>'


def cut_lines(cuts: Sequence[AxisCuts], side: Side) -> str:
    """A line at each cut, in the colour of the outermost axis that cuts there, the thicker the further out."""
    lines = []
    for index, place in boundaries(cuts).items():
        look = ("" if side.down else " up") + (" outer" if len(cuts) > 1 and place == 0 else "")
        kind = side.marks.kind(side.tensor.axes[cuts[place].number].name)
        share = 100 * (index - side.first) / side.size
        lines.append(f'<i class="cut {kind}{look}" style="{"top" if side.down else "left"}:{share:.4g}%"></i>')
    return "".join(lines)
