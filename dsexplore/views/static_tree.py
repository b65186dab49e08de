"""The module tree as nested ``<details>``: one line per module, its collectives and parameters when opened."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from dsexplore.trace import schema
from dsexplore.trace.model import Tables
from dsexplore.units import format_bytes
from dsexplore.views import html
from dsexplore.views.fold import Fold, Folding, ranges
from dsexplore.views.module_tree import NO_AXIS, OTHER_AXES, ModuleTree, module_tree

BUDGET = 36_000
"""Characters that the tree takes in a notebook, about; a folded model of any depth stays below."""
MOST_TABLE_ROWS = 12

STYLE = """
.dsx .tree{min-width:var(--dsx-width);border-top:1px solid var(--dsx-line)}
.dsx .row{display:flex;align-items:baseline;padding:1px 4px;gap:4px}
.dsx .row:hover{background:var(--dsx-shade)}
.dsx .row.head{font-weight:600;border-bottom:1px solid var(--dsx-line)}
.dsx .row .n{flex:1 1 0;min-width:200px;overflow-wrap:break-word;
padding-left:calc(var(--d,0)*14px + 16px);text-indent:-16px}
.dsx .row .n *{text-indent:0}
.dsx .row .n::before{content:"";display:inline-block;width:16px;text-indent:0}
.dsx .tree details>summary{list-style:none}
.dsx .tree summary::-webkit-details-marker{display:none}
.dsx .tree summary .n::before{content:"▸";color:var(--dsx-dim)}
.dsx .tree details[open]>summary .n::before{content:"▾"}
.dsx .row .c{flex:0 0 66px;font-size:12px;min-width:0;overflow-wrap:anywhere;text-align:right;
font-variant-numeric:tabular-nums;white-space:nowrap}
.dsx .row .c.z{color:var(--dsx-dim)}
.dsx .times{border:1px solid var(--dsx-line);border-radius:3px;padding:0 4px;font-size:11px}
.dsx .tree .own{padding:0 4px 4px calc(var(--d,0)*14px + 32px)}
.dsx .imp{border:1px dashed currentColor;border-radius:3px;padding:0 3px;font-size:11px}
"""

_PHASE_HEADS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
    "other": "other",
}


@dataclass
class _Drawing:
    """What one drawing carries along."""

    tree: ModuleTree
    folding: Folding
    tables: Tables
    phases: list[int]
    budget: int
    cut: bool = False


def tree_html(tables: Tables, budget: int = BUDGET, known: tuple[ModuleTree, Folding] | None = None) -> str:
    """The tree, drawn from the top until the budget of characters is spent, which it then says.

    Args:
        tables: what was recorded.
        budget: characters, about.
        known: the tree and its folding, where they were made already.
    """
    tree = known[0] if known else module_tree(tables)
    if not len(tree):
        return '<p class="dim">No modules ran and nothing was sent.</p>'
    phases = [i for i in range(len(schema.PHASES)) if tree.own_counts[:, i].any()]
    drawing = _Drawing(tree, known[1] if known else Folding(tree, tables), tables, phases, budget)
    columns = 3 + len(tree.axes) + len(phases)
    rows = "".join(_fold_html(drawing, fold, 0, 1) for fold in drawing.folding.roots())
    more = '<p class="dim">Only the first modules are drawn: explore() shows all, to_html(path) more.</p>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="module tree">'
        f'<div class="tree" style="--dsx-width:{230 + columns * 70}px">{_head(drawing)}{rows}</div></div>'
        + (more if drawing.cut else "")
    )


def _head(drawing: _Drawing) -> str:
    axes = [axis if axis in (NO_AXIS, OTHER_AXES) else f"on {axis}" for axis in drawing.tree.axes]
    titles = ["count", "bytes", *axes, *(_PHASE_HEADS[schema.PHASES[i]] for i in drawing.phases), "params"]
    cells = "".join(f'<span class="c">{html.name(title, 12)}</span> ' for title in titles)
    return f'<div class="row head"><span class="n">module</span> {cells}</div>'


def _fold_html(drawing: _Drawing, fold: Fold, depth: int, times: int) -> str:
    if drawing.budget <= 0:
        drawing.cut = True
        return ""
    tree, row = drawing.tree, fold.first
    times *= len(fold.rows)
    line = _line(drawing, fold, depth, times)
    own = _own_html(drawing, row, times, depth)
    drawing.budget -= len(line) + len(own) + 60
    inside = own + "".join(_fold_html(drawing, child, depth + 1, times) for child in drawing.folding.children(row))
    if not inside:
        return f'<div class="row" style="--d:{depth}">{line}</div>'
    container = len(tree.children(row)) and not own
    opened = " open" if (depth < 2 and len(tree.children(row))) or (container and depth < 4) else ""
    return f'<details{opened}><summary class="row" style="--d:{depth}">{line}</summary>{inside}</details>'


def _line(drawing: _Drawing, fold: Fold, depth: int, times: int) -> str:
    tree, row = drawing.tree, fold.first
    many = f' <span class="times">×{len(fold.rows)}</span>' if len(fold.rows) > 1 else ""
    kind = tree.types[row]
    shown_type = f' <span class="dim">{html.name(kind, 60)}</span>' if kind and kind != tree.labels[row] else ""
    sizes = [
        int(tree.phase_bytes[row].sum()),
        *tree.axis_bytes[row],
        *tree.phase_bytes[row][drawing.phases],
    ]
    cells = [_cell(int(tree.counts[row].sum()) * times, f"{int(tree.counts[row].sum()) * times:,}")]
    cells += [_cell(int(size) * times, format_bytes(int(size) * times)) for size in (*sizes, tree.local_bytes[row])]
    return f'<span class="n">{html.name(fold.label)}{many}{shown_type}</span> {" ".join(cells)}'


def _cell(value: int, text: str) -> str:
    return f'<span class="c">{text}</span>' if value else '<span class="c z">–</span>'


def _own_html(drawing: _Drawing, row: int, times: int, depth: int) -> str:
    module = drawing.tree.names[row]
    body = ""
    if drawing.tree.own_counts[row].any():
        body += events_html(drawing.tables.events.filter(pl.col("owner") == module))
    body += parameters_html(module, drawing.tables.parameters.filter(pl.col("module") == module))
    each = f'<p class="dim">Each of the {times}; named here: {html.name(module)}</p>' if times > 1 and body else ""
    return f'<div class="own" style="--d:{depth}">{each}{body}</div>' if body else ""


def events_html(events: pl.DataFrame) -> str:
    """The collectives of some modules, equal ones on one line."""
    keys = ("op", "axis", "group_size", "phase", "message_bytes", "dtype", "shape", "implicit", "cause", "source")
    events = events.group_by(*keys).agg(pl.len().alias("count"), pl.col("seq").min()).sort("seq", *keys[:4])
    rows = [
        (
            html.name(event["op"]) + (' <span class="imp">implicit</span>' if event["implicit"] else ""),
            html.name(event["axis"] or "–"),
            html.escape(event["phase"]),
            f"{event['count']:,}",
            format_bytes(event["message_bytes"] * event["count"]),
            html.escape(f"{event['dtype']}{list(event['shape'] or ())}", 48),
            html.name(event["cause"] or "–"),
            html.name(event["source"].partition(" ← ")[0] or "–"),
        )
        for event in events.head(MOST_TABLE_ROWS).iter_rows(named=True)
    ]
    head = ("collective", "axis", "phase", "count", "bytes", "tensor", "cause", "source")
    return html.table(head, rows, left=(0, 1, 2, 5), wrap=(6, 7)) + _more(events.height, "kinds of collective")


def parameters_html(module: str, parameters: pl.DataFrame) -> str:
    """The parameters that a module itself holds, and how each is placed."""
    if parameters.is_empty():
        return ""
    same = (
        "name",
        "global_shape",
        "local_shape",
        "dtype",
        "placements",
        "mesh",
        "local_bytes",
        "shared_with",
        "requires_grad",
    )
    found = parameters.group_by(*same, maintain_order=True).agg(pl.col("rank"))
    several = parameters["rank"].n_unique() > 1
    rows = [
        (
            html.name(row["name"].removeprefix(f"{module}."))
            + ("" if row["requires_grad"] else ' <span class="dim">frozen</span>'),
            html.escape(list(row["global_shape"] or ())),
            html.escape(list(row["local_shape"] or ())) + (_of_ranks(row["rank"]) if several else ""),
            html.escape(row["dtype"]),
            html.name(row["placements"] or "plain tensor"),
            html.name(row["mesh"] or "–"),
            format_bytes(row["local_bytes"]),
            f"same as {html.name(row['shared_with'])}" if row["shared_with"] else "",
        )
        for row in found.head(MOST_TABLE_ROWS).iter_rows(named=True)
    ]
    head = ["parameter", "global shape", "local shape", "dtype", "placements", "mesh", "bytes/rank"]
    if any(row[-1] for row in rows):
        head.append("shared")
    return html.table(head, [row[: len(head)] for row in rows], left=(0, 1, 2, 3, 4, 5, 7)) + _more(
        found.height, "parameters"
    )


def _of_ranks(ranks: list[int]) -> str:
    return f' <span class="dim">rank {ranges(ranks)}</span>'


def _more(rows: int, what: str) -> str:
    return f'<p class="dim">… and {rows - MOST_TABLE_ROWS:,} more {what}.</p>' if rows > MOST_TABLE_ROWS else ""
