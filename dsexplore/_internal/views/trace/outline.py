"""An indented tree of modules as nested ``<details>``, whose size is bounded for every model.

Rows are drawn level by level, outermost first, until the budget is spent; then the tables inside the rows are drawn. So
a model that does not fold loses its deepest rows, and a note in each parent says how many of its rows are not drawn.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.theme import axis_number
from dsexplore._internal.views.trace.folding import Fold

_MARKUP = 110
"""Approximate bytes of markup around a row."""
_SHARE_OF_ROWS = 0.65
"""Fraction of the budget for the rows; the rest is for the tables inside them."""

_NUMBERS = re.compile(r"\.\d+(?=\.|$)")
_WIDTHS = {"": 73, "delta": 88, "wide": 144, "thinbar": 78, "spine": 164}
"""Width in pixels of a column of each class, including the gap next to it."""

STYLE = """
.dsx .tree{min-width:calc(var(--dsx-width)*var(--dsx-size)/13);border-top:1px solid var(--dsx-line)}
.dsx .row{display:flex;align-items:baseline;padding:1px 4px 1px 0;gap:4px;min-height:24px}
.dsx .row.head{font-weight:600;font-size:var(--dsx-small);border-bottom:1px solid var(--dsx-line)}
.dsx .row .n{flex:1 1 0;min-width:260px;max-width:560px;overflow-wrap:break-word;position:sticky;left:0;z-index:1;
background:var(--dsx-bg);padding-left:calc(var(--d,0)*14px + 20px);text-indent:-16px}
.dsx .row:hover,.dsx .row:hover .n{background:linear-gradient(var(--dsx-shade),var(--dsx-shade)),var(--dsx-bg)}
.dsx .row .n *{text-indent:0}
.dsx .row .n::before{content:"";display:inline-block;width:16px;text-indent:0}
.dsx .tree details>summary{list-style:none}
.dsx .tree summary::-webkit-details-marker{display:none}
.dsx .tree summary .n::before{content:"▸";color:var(--dsx-dim)}
.dsx .tree details[open]>summary .n::before{content:"▾"}
.dsx .row .c{flex:0 0 5.75em;font-size:var(--dsx-small);min-width:0;text-align:right;font-variant-numeric:tabular-nums;
white-space:nowrap}
.dsx .row.head .c{overflow-wrap:anywhere;white-space:normal}
.dsx .row.head .c>*{font-size:var(--dsx-tiny)}
.dsx .row .c.z{color:var(--dsx-dim)}
.dsx .row .c.thinbar{flex-basis:6.17em;text-align:left}
.dsx .row>.c.thinbar:has(.thin){align-self:flex-start}
.dsx .row .sum{color:var(--dsx-dim);font-size:var(--dsx-tiny)}
.dsx .row .c.delta{flex-basis:7em}
.dsx .row .c.wide{flex-basis:11em;text-align:left;padding-left:8px;overflow:hidden;text-overflow:ellipsis}
.dsx .tree .own{padding:0 4px 4px calc(var(--d,0)*14px + 36px)}
.dsx .tree .rest{padding:1px 4px 1px calc(var(--d,0)*14px + 36px)}
"""


class Source(Protocol):
    """Supplier of a tree's rows."""

    def roots(self) -> list[Fold]:
        """Return the topmost rows."""

    def children(self, row: int) -> list[Fold]:
        """Return the rows inside ``row``."""

    def line(self, fold: Fold, times: int) -> str:
        """Return the `label` and the cells of a row, which stands for ``times`` modules, including folds above it."""

    def inside(self, row: int, times: int) -> str:
        """Return the HTML of an opened row above the rows inside it; empty if there is none."""


@dataclass
class _OutlineRow:
    """A row that is drawn."""

    fold: Fold
    depth: int
    times: int
    """Number of modules that it stands for, including folds above it."""
    parent: int
    """Index of the row that contains it; −1 for a root."""
    line: str
    """HTML of its cells."""
    tables: str = ""
    """HTML shown in the opened row, above the rows inside it."""
    hidden: int = 0
    """Number of rows inside it that are not drawn."""
    children: list[str] = field(default_factory=list)
    """HTML of the rows inside it, last first."""


@dataclass(frozen=True)
class Outline:
    """The tree of modules as HTML, and how much of it is omitted."""

    html: str
    hidden: int
    """Number of rows that are not drawn, without those inside them."""
    closed: bool
    """True if some rows are drawn without their tables."""


def outline(source: Source, titles: list[tuple[str, str, str]], budget: int, label: str, small: int = 0) -> Outline:
    """Draw a tree of modules within a budget of bytes.

    Args:
        source: supplier of the rows.
        titles: (title, explanation, class) per column after the first; see `cell` for the classes.
        budget: approximate size in bytes; the first row is drawn in any case.
        label: name of the tree for screen readers.
        small: number of rows up to which the tree is fully expanded.
    """
    budget_of_rows = int(budget * _SHARE_OF_ROWS)
    rows, unused, hidden_roots = _rows(source, budget_of_rows)
    closed = _fill(source, rows, budget - budget_of_rows + unused)
    body: list[str] = []
    for row in reversed(rows):
        siblings = rows[row.parent].children if row.parent >= 0 else body
        siblings.append(_row_html(row, is_small=len(rows) <= small))
    width = 290 + sum(_WIDTHS[kind] for _, _, kind in titles)
    heads = " ".join(
        f'<span class="{f"c {kind}" if kind else "c"}" title="{html.escape(explanation)}">'
        f"{html.name(title, longest=18)}</span>"
        for title, explanation, kind in titles
    )
    drawn = "".join(reversed(body)) + (_hidden_rows(hidden_roots, 0) if hidden_roots else "")
    return Outline(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}">'
        f'<div class="tree" style="--dsx-width:{width}">'
        f'<div class="row head"><span class="n">module</span> {heads}</div>{drawn}</div></div>',
        hidden_roots + sum(row.hidden for row in rows),
        closed,
    )


def label(fold: Fold, full: str, kind: str, mark: str = "", times: int = 1, anchor: str = "") -> str:
    """Return the first column: name, numbers of `multiplicity`, the type unless it equals the name, and a mark.

    Args:
        fold: the modules of the row.
        full: fully qualified name of its first module, for the tooltip.
        kind: type of the module.
        mark: HTML after the name.
        times: number of modules that the row stands for, including folds above it.
        anchor: id for links to the row.
    """
    type_name = f' <span class="dim">{html.name(kind, longest=60)}</span>' if kind and kind != fold.label else ""
    hover = f' title="{html.escape(full)}"' if full not in ("", fold.label) else ""
    element_id = f' id="{anchor}"' if anchor else ""
    name = f"<bdi>{html.prose(fold.label, longest=html.LONGEST_NAME)}</bdi>"
    return f'<span class="n"{element_id}{hover}>{name}{multiplicity(fold, times)}{type_name}{mark}</span>'


def multiplicity(fold: Fold, times: int) -> str:
    """Return ``×N`` for a row of N folded modules, and the number of modules that its numbers sum; else ``""``."""
    folded = f' <span class="times">×{len(fold.rows)}</span>' if len(fold.rows) > 1 else ""
    spoken = f"the numbers are the sum of {times:,} modules"
    return folded + (f' <span class="sum" title="{spoken}">Σ {times:,}</span>' if times > 1 else "")


def cell(text: str, kind: str = "") -> str:
    """Return the HTML of one column; ``kind``: ``z`` for no value, ``delta`` for a change, ``wide`` for text."""
    return f' <span class="{f"c {kind}" if kind else "c"}">{text}</span>'


def number_cell(value: float, format_value: Callable[[float], str]) -> str:
    """Return the HTML of one column with a number; a dash for 0."""
    return cell(format_value(value)) if value else cell("–", "z")


def thin_bar(axes: Sequence[str], sizes: Iterable[float], whole: float) -> str:
    """Return a bar with a segment per mesh axis; ``whole``: bytes of a bar as wide as its column."""
    shares = ((axis, 100 * size / whole) for axis, size in zip(axes, sizes, strict=True) if size)
    parts = "".join(f'<i class="a{axis_number(axis)}" style="width:{share:.3g}%"></i>' for axis, share in shares)
    return f'<span class="thin">{parts}</span>'


def of_each(module: str, times: int, body: str) -> str:
    """Return the tables of a module, after a sentence that says that each of ``times`` modules has them."""
    if times == 1 or not body:
        return body
    note = f"This is one of {times:,} equal modules, {html.name(module)}; the row above shows the sum of all."
    return f"{html.note(note)}{body}"


class Anchors:
    """The ids that sentences link to; each id goes to the first row at the place of its module in the model."""

    def __init__(self, of_modules: Mapping[str, str]) -> None:
        self.unused = {_place(module): anchor for module, anchor in of_modules.items()}
        """{place in the model: id}, for places whose row is not drawn yet."""

    def take(self, module: str) -> str:
        """Return the id of a module's row and mark it as used; empty for most rows."""
        return self.unused.pop(_place(module), "") if self.unused else ""


def _place(module: str) -> str:
    """Return a module's name with ``*`` for the numbers of layers: ``layers.*.mlp``."""
    return _NUMBERS.sub(".*", module)


def _rows(source: Source, budget: int) -> tuple[list[_OutlineRow], int, int]:
    """Return the rows that fit, outermost first; the unused bytes; and the number of roots that do not fit."""
    rows: list[_OutlineRow] = []
    hidden_roots = 0
    waiting = deque((fold, 0, 1, -1) for fold in source.roots())
    while waiting:
        fold, depth, times, parent = waiting.popleft()
        if budget > 0:
            times *= len(fold.rows)
            line = source.line(fold, times)
            budget -= len(line.encode()) + _MARKUP
            waiting.extend((child, depth + 1, times, len(rows)) for child in source.children(fold.first))
            rows.append(_OutlineRow(fold, depth, times=times, parent=parent, line=line))
        elif parent >= 0:
            rows[parent].hidden += 1
        else:
            hidden_roots += 1
    return rows, max(budget, 0), hidden_roots


def _fill(source: Source, rows: list[_OutlineRow], budget: int) -> bool:
    """Add the tables inside the rows until one does not fit; return True if one did not."""
    for row in rows:
        inside = source.inside(row.fold.first, row.times)
        budget -= len(inside.encode()) + _MARKUP // 2
        if budget < 0 and inside:
            return True
        row.tables = inside
    return False


def _row_html(row: _OutlineRow, is_small: bool) -> str:
    """Return a row with everything inside it; in a small tree every row is open, else only the outermost ones."""
    tables = f'<div class="own" style="--d:{row.depth}">{row.tables}</div>' if row.tables else ""
    inside = tables + "".join(reversed(row.children)) + (_hidden_rows(row.hidden, row.depth) if row.hidden else "")
    if not inside:
        return f'<div class="row" style="--d:{row.depth}">{row.line}</div>'
    open_depth = 2 if tables else 4
    state = " open" if is_small or (row.children and row.depth < open_depth) else ""
    return f'<details{state}><summary class="row" style="--d:{row.depth}">{row.line}</summary>{inside}</details>'


def _hidden_rows(count: int, depth: int) -> str:
    return f'<div class="rest dim" style="--d:{depth}">… {count:,} more, not drawn</div>'
