"""The view of a `NumericsReport`: verdict, ranks, the first wrong tensor, and the modules with their errors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from dsexplore._internal.numerics.numeric_records import PHASES
from dsexplore._internal.numerics.numerics_report import NumericsReport, place_of, share_text
from dsexplore._internal.units import format_ranks
from dsexplore._internal.views.numerics.difference_picture import STYLE as PICTURE
from dsexplore._internal.views.numerics.difference_picture import difference_picture
from dsexplore._internal.views.numerics.module_errors import ErrorCell, Node, error_tree
from dsexplore._internal.views.page import html, theme
from dsexplore._internal.views.view import View

_LOWEST, _HIGHEST = -17, 1
"""Exponents of ten at the ends of the scale of errors."""
_TICKS = ((-16, "1e-16"), (-8, "1e-8"), (0, "100 %"))
"""(exponent, label) of each tick."""
_MOST_LINES = 12

STYLE = f"""
.dsx .num-node>summary,.dsx .num-leaf{{display:grid;grid-template-columns:minmax(9em,2fr) repeat(4,minmax(5em,1fr));
gap:0 8px;align-items:center;padding:1px 0}}
.dsx .num-node>summary{{list-style:none;min-height:24px}}
.dsx .num-node>summary::-webkit-details-marker{{display:none}}
.dsx .num-node>summary .num-name::before{{content:"▸";color:var(--dsx-dim);padding-right:3px}}
.dsx .num-node[open]>summary .num-name::before{{content:"▾"}}
.dsx .num-head{{font-weight:600;font-size:var(--dsx-small)}}
.dsx .num-scale{{border-bottom:1px solid var(--dsx-line);font-size:var(--dsx-tiny);color:var(--dsx-dim)}}
.dsx .num-scale .num-ticks{{position:relative;display:block;height:calc(var(--dsx-size)*1.3)}}
.dsx .num-ticks i{{position:absolute;top:0;font-style:normal;transform:translateX(-50%);white-space:nowrap}}
.dsx .num-ticks i:first-child{{transform:none}}
.dsx .num-ticks i:last-child{{transform:translateX(-80%)}}
.dsx .num-name{{font-family:var(--dsx-mono);font-size:var(--dsx-small);overflow-wrap:anywhere}}
.dsx .num-track{{position:relative;display:block;height:calc(var(--dsx-size)*1.2);background:var(--dsx-shade)}}
.dsx .num-track i{{position:absolute;top:0;bottom:0}}
.dsx .num-band{{left:0;background:var(--dsx-line);overflow:hidden;text-align:right}}
.dsx .num-band em{{display:block;padding-right:4px;font-style:normal;font-size:var(--dsx-tiny);white-space:nowrap;
line-height:calc(var(--dsx-size)*1.2)}}
.dsx .num-node[open]>summary .num-inside{{visibility:hidden}}
.dsx .num-mark{{width:3px;background:var(--dsx-fg);forced-color-adjust:none}}
.dsx .num-wrong{{width:7px;background:{theme.ALARM};forced-color-adjust:none}}
.dsx .num-track b{{position:absolute;top:0;padding-right:4px;font-size:var(--dsx-tiny);white-space:nowrap}}
.dsx .num-track b{{line-height:calc(var(--dsx-size)*1.2)}}
.dsx .num-first>.num-name,.dsx .num-first>summary>.num-name{{font-weight:700;text-decoration:underline}}
.dsx .num-here{{outline:2px solid var(--dsx-fg);outline-offset:1px}}
@media (max-width:560px){{.dsx .num-node>summary,.dsx .num-leaf{{grid-template-columns:repeat(4,1fr);gap:0 3px}}
.dsx :is(.num-node>summary,.num-leaf)>:first-child{{grid-column:1/-1}}
.dsx :is(.num-track b,.num-band em,.num-ticks i:not(:last-child)){{display:none}}
.dsx .num-head{{font-size:var(--dsx-tiny)}}}}
"""


class NumericsView(View):
    """The view of a `NumericsReport`."""

    title = "Same numbers"

    def __init__(self, report: NumericsReport) -> None:
        self._report = report
        self._step = report.step if report.step is not None else _last_step(report.tensors)
        self._tree = error_tree(report, self._step)

    def text(self) -> str:
        """Return the verdict, a line for each of the first tensors that differ, and the notes."""
        report = self._report
        lines = [html.plain(report.verdict(), longest=0)]
        wrong = report.tensors.filter(~pl.col("same") & (pl.col("step") == self._step))
        for row in wrong.head(_MOST_LINES).iter_rows(named=True):
            where = row["name"] if row["phase"] in ("gradient", "optimizer") else row["module"] or report.model
            ranks = format_ranks(row["ranks"])
            line = f"{row['phase']} of {where}: {_number(row['error'])} on {ranks}"
            lines.append(f"  {html.plain(line, longest=0)}")
        if wrong.height > _MOST_LINES:
            lines.append(f"  … and {wrong.height - _MOST_LINES:,} more tensors: see to_frame()")
        lines += [f"note: {html.plain(note, longest=0)}" for note in report.notes]
        return "\n".join(lines)

    def html(self) -> str:
        """Return the verdict, the ranks, the first wrong tensor, and the modules with the error of each phase."""
        report = self._report
        what = f"{report.model} on {report.mesh} ({report.world_size} local ranks) against one process"
        verdict, _, reason = report.verdict().partition(" (" if report.same else ". ")
        parts = [html.notes([what])]
        parts.append(html.verdict(f"{verdict}."))
        parts.append(f"<p>{html.escape(reason, longest=0)}</p>" if reason and not report.same else "")
        parts.append(self._ranks())
        if report.difference is not None and report.phase is not None:
            name = report.parameter or ("parameters" if report.phase in ("gradient", "optimizer") else "output")
            where = place_of(report.phase, report.module or "", name, report.model)
            parts.append(difference_picture(report.difference, where))
        names = "".join(f"<span>{phase}</span>" for phase in PHASES)
        parts.append(f'<div class="num-leaf num-head"><span>module, step {self._step}</span>{names}</div>')
        parts.append(f'<div class="num-leaf num-scale" aria-hidden="true"><span></span>{_scale() * len(PHASES)}</div>')
        parts += self._rows(self._tree, 0)
        parts.append(html.notes([self._foot(), *report.notes]))
        return html.fragment("".join(parts), STYLE + html.RANKS_STYLE + PICTURE)

    def _ranks(self) -> str:
        report = self._report
        if not report.ranks:
            return ""
        return f"<p>Ranks that differ there: {html.rank_boxes(range(report.world_size), report.ranks)}</p>"

    def _foot(self) -> str:
        """Return the sentences on how to read the marks that are drawn."""
        cells = list(_all_cells(self._tree))
        compared = self._report.tensors.filter(pl.col("compared")).height
        sentences = [f"{compared:,} tensors compared. Each mark is the error of a module's worst rank and tensor,"]
        sentences.append("relative to the reference's root mean square (log scale from 1e-17). Grey: rounding errors.")
        if any(cell.is_wrong for cell in cells):
            sentences.append("Red: larger errors.")
        if any(cell.is_part for cell in cells):
            sentences.append("A thin mark outside grey: partial sums, or rows in another order, which is no error.")
        sentences.append("Gradients of outputs are compared up to one factor, the scale of the loss.")
        return " ".join(sentences)

    def _cell(self, node: Node, phase: str) -> str:
        """Return the mark of a module's error, or of the largest one inside, which an opened row hides."""
        cell = node.worst(phase)
        if cell is None:
            return '<span class="dim">–</span>'
        classes, where = ["num-track"], phase
        if phase not in node.cells:
            classes.append("num-inside")
            where = f"{phase}, largest inside"
        if (node.path, phase) == (self._report.module, self._report.phase):
            classes.append("num-here")
        band = "rounding" if node is self._tree and phase == self._first_phase else ""
        title = html.escape(_spoken(cell, where), longest=0)
        return f'<span class="{" ".join(classes)}" title="{title}">{_track(cell, band)}</span>'

    @property
    def _first_phase(self) -> str:
        """First phase with errors, in whose column the grey band is labeled."""
        return next((phase for phase in PHASES if self._tree.worst(phase) is not None), "")

    def _rows(self, node: Node, depth: int) -> Iterator[str]:
        """Yield the HTML of a module and of the modules inside it; those around the first wrong tensor are open."""
        first = self._report.module
        name = node.label if depth else self._report.model
        cells = "".join(self._cell(node, phase) for phase in PHASES)
        indent = f'<span class="num-name" style="padding-left:{min(depth, 8) * 10}px">{html.parted(name)}</span>'
        mark = " num-first" if node.path == first else ""
        if not node.children:
            yield f'<div class="num-leaf{mark}">{indent}{cells}</div>'
            return
        holds = first is not None and (not node.path or first == node.path or first.startswith(f"{node.path}."))
        state = " open" if holds or not depth else ""
        yield f'<details class="num-node{mark}"{state}><summary>{indent}{cells}</summary>'
        for child in node.children:
            yield from self._rows(child, depth + 1)
        yield "</details>"


def _all_cells(node: Node) -> Iterator[ErrorCell]:
    yield from node.cells.values()
    for child in node.children:
        yield from _all_cells(child)


def _scale() -> str:
    labels = "".join(f'<i style="left:{_place(10.0**exponent):.3g}%">{label}</i>' for exponent, label in _TICKS)
    return f'<span class="num-ticks">{labels}</span>'


def _spoken(cell: ErrorCell, where: str) -> str:
    """Return an error as text, with the largest rounding error."""
    text = f"{where}: error {_number(cell.error)}, rounding up to {_number(cell.allowed)}"
    if cell.measured is not None and cell.rounding is not None:
        text += f"; in the program's own dtypes {_number(cell.measured)}, the reference {_number(cell.rounding)}"
    return text


def _track(cell: ErrorCell, band: str) -> str:
    """Return the mark of an error, on the grey band of rounding errors; ``band``: text on the band."""
    mark, place = "num-wrong" if cell.is_wrong else "num-mark", f"{_place(cell.error):.3g}%"
    label = f'<b style="right:max(100% - {place},7px)">{_number(cell.error)}</b>' if cell.is_wrong else ""
    return (
        f'<i class="num-band" style="width:{_place(cell.allowed):.3g}%"><em>{band}</em></i>'
        f'<i class="{mark}" style="left:min({place},calc(100% - 7px))"></i>{label}'
    )


def _place(error: float) -> float:
    """Return the position of an error on the scale, in percent."""
    if error <= 0:
        return 0.0
    exponent = _HIGHEST if math.isinf(error) or math.isnan(error) else math.log10(error)
    return 100 * min(max((exponent - _LOWEST) / (_HIGHEST - _LOWEST), 0.0), 1.0)


def _number(error: float | None) -> str:
    if error is None or math.isnan(error):
        return "unknown"
    return "∞" if math.isinf(error) else share_text(error)


def _last_step(tensors: pl.DataFrame) -> int:
    last = tensors["step"].max()
    return last if isinstance(last, int) else 0
