"""The view of a `TraceDiff`: sentences, a bar per trace, the joined module tree, and both on one time scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from dsexplore._internal.analysis.joint_timeline import joint_timeline, shown_ranks
from dsexplore._internal.analysis.plan_difference import SAME, DifferenceSentence, PlanDifference, count_text
from dsexplore._internal.cost.cluster import HardwareLike
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.trace.schema import IN_STEPS, NO_AXIS, OUTSIDE_STEPS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import TraceDiff
from dsexplore._internal.units import format_bytes, format_change
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.theme import axis_mark, axis_number
from dsexplore._internal.views.timeline.timeline_drawing import timeline_html
from dsexplore._internal.views.trace import diff_tree, drawings, headline_view, outline
from dsexplore._internal.views.trace.byte_sizes import MESSAGE, WIRE, WORDS, column_of, summed_over
from dsexplore._internal.views.trace.diff_tree import DiffRows, signed_bytes
from dsexplore._internal.views.trace.headline_view import PER, findings_table
from dsexplore._internal.views.trace.module_tree import MOST_AXES, OTHER_AXES, drawn_axes
from dsexplore._internal.views.view import View

_BUDGET, _PAGE_BUDGET, _LEAST = 64_000, 1_500_000, 12_000
"""Bytes of the view in a notebook and as a page, and minimal bytes of its tree."""
_SMALL = 16
_MOST_FINDINGS = 4
_LINK_TEXTS = {"axes": "by module", "module": "in the tree", "finding": "findings", "time": "in time"}

STYLE = (
    diff_tree.STYLE
    + headline_view.STYLE
    + drawings.STYLE
    + """
.dsx .plans{display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:3px 8px;align-items:center}
"""
)


class TraceDiffView(View):
    """The view of a `TraceDiff`."""

    title = "Trace diff"

    def __init__(self, diff: TraceDiff) -> None:
        self._diff = diff
        self._difference: PlanDifference = diff.headline()

    def text(self) -> str:
        """Return totals of both traces, the sentences of the difference, and the ops that differ."""
        rows = self._difference.to_frame()
        lines = [f"TraceDiff: {_totals(self._diff, self._difference)}"]
        lines.append(f"  {what_differs(self._diff)}")
        lines += [f"  {html.plain(sentence.text, longest=400)}" for sentence in self._difference.sentences]
        change = [
            (pl.col(f"{size}_after") - pl.col(f"{size}_before")).sum().alias(size) for size in ("count", "wire_bytes")
        ]
        by_op = rows.filter(IN_STEPS).group_by("op", "axis").agg(*change)
        if by_op.height:
            lines.append("  Changes per rank and step, in collectives and wire bytes:")
        for op, axis, count, size in by_op.sort("op", "axis").head(8).iter_rows():
            signed = f"{'+' if count >= 0 else '−'}{count_text(abs(count))}"
            lines.append(
                f"  {html.plain(op, longest=40):<16} {html.plain(axis, longest=24) or '–':<10} "
                f"{signed:>9}  {signed_bytes(size)}"
            )
        return "\n".join(lines)

    def html(self, budget: int = _BUDGET, sizes: str = WIRE, hardware: HardwareLike | None = None) -> str:
        """Return the sentences, the differing part of the joined tree, findings, and both traces on one time scale.

        Args:
            budget: approximate size in bytes; the tree gets what the other parts leave.
            sizes: bytes that the tree shows, ``"wire"`` or ``"message"``.
            hardware: machine for which the tree shows predicted seconds of both traces; None for none.
        """
        column_of(sizes)
        head = f"<p>Trace diff: {html.escape(_totals(self._diff, self._difference), longest=0)}</p>"
        names = {sentence: _anchor(sentence) for sentence in self._difference.sentences}
        places = {sentence.module: names[sentence] for sentence in names if sentence.about == "module"}
        both = self._predicted(hardware)
        head += _steps(both) + f"<p>{html.prose(what_differs(self._diff), longest=300)}</p>"
        rows = DiffRows(self._diff, self._difference, sizes=sizes, anchors=places, predictions=both)
        if not rows.roots():
            return html.fragment(head + html.note(SAME))
        legend = diff_tree.key() + self._sizes_note(sizes)
        ids = {sentence.about: anchor for sentence, anchor in names.items()}
        below = self._findings(ids.get("finding", "")) + self._in_time(ids.get("time", ""))
        around = head + _headline(self._difference, names, rows.tree.axes) + legend + below
        room = max(budget - len(html.fragment(around, STYLE).encode()), _LEAST)
        drawn = outline.outline(rows, rows.titles(), budget=room, label="module tree of the differences", small=_SMALL)
        drawn_names = {
            sentence: anchor for sentence, anchor in names.items() if anchor not in rows.anchors.unused.values()
        }
        head += _headline(self._difference, drawn_names, rows.tree.axes) + legend
        cut = (
            "Not everything is drawn: <code>to_frame()</code> has every row, <code>to_html(path)</code> draws more."
            if drawn.hidden or drawn.closed
            else "Modules that are the same in both are not shown."
        )
        tree = f'<div id="{ids["axes"]}">{drawn.html}</div>' if "axes" in ids else drawn.html
        drawn_view = html.fragment(f'{head}{tree}<p class="dim">{cut}</p>{below}', STYLE)
        return html.with_unique_ids(drawn_view, names.values())

    def page(self, sizes: str = WIRE, hardware: HardwareLike | None = None) -> str:
        """Return a document with many more modules than a notebook's output holds.

        Args:
            sizes: bytes to show, ``"wire"`` or ``"message"``.
            hardware: machine for which the tree shows predicted seconds of both traces; see `Trace.predict`.
        """
        return html.page(self.title, self.html(_PAGE_BUDGET, sizes, hardware))

    def explore(self, lanes: str | None = None, color_by: str | None = None) -> Any:
        """Return the static view with a live timeline of one step of both traces on one scale.

        ``.selection`` is the `Trace` of what is selected, ``.before`` and ``.after`` that of each side.

        Args:
            lanes: values of ``lanes`` of `TraceDiff.timeline`.
            color_by: values of ``color_by`` of `TraceDiff.timeline`.

        Raises:
            UsageError: There are no such lanes, or no such ``color_by``.
        """
        from dsexplore._internal.views.trace.diff_explorer import DiffExplorer  # anywidget is loaded when asked for

        return DiffExplorer(self._diff, lanes, color_by)

    def _predicted(self, hardware: HardwareLike | None) -> tuple[Prediction, ...]:
        """Return the predictions of both traces, or an empty tuple without a cluster."""
        if hardware is None:
            return ()
        return self._diff.before.predict(hardware), self._diff.after.predict(hardware)

    def _sizes_note(self, sizes: str) -> str:
        """Return a sentence on which sizes the tree shows, and per what."""
        other = MESSAGE if sizes == WIRE else WIRE
        means = self._difference.means
        return (
            f'<p class="dim">Sizes are {WORDS[sizes]}, per rank and step{f" ({means})" if means else ""}; those of '
            f"{' and '.join(OUTSIDE_STEPS)} are per rank, and only in their own columns. "
            f'<code>to_html(path, sizes="{other}")</code> shows the others.</p>'
        )

    def _findings(self, anchor: str) -> str:
        """Return sections of the findings that only one trace has; ``anchor`` is the id of the first section."""
        sections = ""
        for side, findings in (("B", self._difference.findings_new), ("A", self._difference.findings_gone)):
            if len(findings):
                title = f"Findings of {side} alone: {len(findings):,}{PER}"
                body = f"<div>{findings_table(findings, _MOST_FINDINGS)}</div>"
                sections += drawings.part(title, body, anchor="" if sections else anchor)
        return sections

    def _in_time(self, anchor: str) -> str:
        """Return a section with the last step of both traces, one above the other."""
        before, after = self._diff.before.tables, self._diff.after.tables
        axes = {*before.events["axis"].unique(), *after.events["axis"].unique()}
        timeline = joint_timeline(before, after, colors="axis" if len(axes) <= MOST_AXES else "phase")
        if timeline.spans.is_empty():
            return ""
        title = f"In time: the last step of {shown_ranks(timeline)}, both on one scale"
        return drawings.part(title, f"<div>{timeline_html(timeline)}</div>", True, anchor)


def _anchor(sentence: DifferenceSentence) -> str:
    """Return the id of the element that a sentence links to: its module's row, the findings or the timeline."""
    return html.content_id("difference", sentence.about, sentence.text)


def _link(sentence: DifferenceSentence, names: Mapping[DifferenceSentence, str]) -> str:
    """Return a link to the row or the section that a sentence is about; empty if it is not drawn."""
    if sentence not in names:
        return ""
    return f' <a class="to" href="#{names[sentence]}">{_LINK_TEXTS[sentence.about]}</a>'


class PlanDifferenceView(View):
    """The view of a `PlanDifference`: its sentences, and the bars of both traces."""

    title = "Headline of a diff"

    def __init__(self, difference: PlanDifference) -> None:
        self._difference = difference

    def text(self) -> str:
        """Return the sentences."""
        return "\n".join(html.plain(line, longest=400) for line in self._difference.lines())

    def html(self) -> str:
        """Return the sentences, and one bar per trace on one scale."""
        if not self._difference.sentences:
            return html.fragment(html.verdict(self._difference.verdict()))
        sides = (self._difference.before, self._difference.after)
        names = dict.fromkeys(axis or NO_AXIS for side in sides for axis in side.to_frame()["axis"])
        return html.fragment(_headline(self._difference, {}, drawn_axes(list(names))), STYLE)


def _headline(difference: PlanDifference, names: Mapping[DifferenceSentence, str], axes: list[str]) -> str:
    """Return the bars of A and B on one scale and the sentences, which link to the ids in ``names``."""
    sentences = [(sentence.text, _link(sentence, names)) for sentence in difference.sentences]
    verdict = "".join(html.verdict(text, longest=600, more=link) for text, link in sentences[:1])
    said = "".join(f"<p>{html.prose(text, longest=600)}{link}</p>" for text, link in sentences[1:])
    return f'<div class="headline">{verdict}{_bars(difference, axes)}{said}</div>'


def _bars(difference: PlanDifference, axes: list[str]) -> str:
    """Return one bar per trace on one scale, of wire bytes per rank and step by axis, and the bytes of each axis."""
    sums_of_sides = []
    for side in (difference.before, difference.after):
        sums = dict.fromkeys(axes, 0.0)
        for axis, size in side.to_frame().select("axis", "wire_bytes").iter_rows():
            name = axis or NO_AXIS
            sums[name if name in sums else OTHER_AXES] += size
        sums_of_sides.append(sums)
    before, after = sums_of_sides
    top = max(sum(before.values()), sum(after.values()))
    if not top:
        return ""
    marks = {axis: (f"a{axis_number(axis)}", html.escape(axis_mark(axis).letter)) for axis in axes}
    rows = "".join(
        f"<b>{name}</b>{html.stacked_bar(((*marks[axis], size, '') for axis, size in sums.items()), top)}"
        f"<span>{format_bytes(sum(sums.values()))}</span> "
        for name, sums in (("A", before), ("B", after))
    )
    words = " · ".join(
        f"{html.axis_key(axis, longest=40)} {format_bytes(before[axis])} → {format_bytes(after[axis])}"
        for axis in axes
        if before[axis] or after[axis]
    )
    return (
        f'<div class="plans">{rows}</div>'
        f'<p class="dim" style="font-size:var(--dsx-small)">Wire bytes per rank and step, A → B: {words}</p>'
    )


def _steps(both: tuple[Prediction, ...]) -> str:
    """Return a sentence on the predicted step times; ``both`` is empty if nothing is predicted."""
    if not both:
        return ""
    before, after = both
    change = after.step.expected / before.step.expected - 1 if before.step.expected else 0.0
    steps = html.prose(
        f"A {before.step}, B {after.step} per step on {before.cluster.title} ({format_change(change)})", longest=300
    )
    return f'<p><span class="tag">predicted</span> {steps}</p>'


def _totals(diff: TraceDiff, difference: PlanDifference) -> str:
    """Return the changes of collectives and bytes in steps, what they are per, and the changes outside steps."""
    sides = difference.before, difference.after
    frames = [side.to_frame().select("count", "wire_bytes", "message_bytes").sum() for side in sides]
    (count, wire, message), (counts, wires, messages) = (frame.row(0) for frame in frames)
    outside = [[side.start_up_bytes, side.no_grad_bytes, side.between_bytes] for side in sides]
    apart = "".join(
        f"; {phase}: {signed_bytes(b - a)} on the wire"
        for phase, a, b in zip(OUTSIDE_STEPS, *outside, strict=True)
        if abs(b - a) >= 0.5  # bytes
    )
    more = f"{'+' if counts >= count else '−'}{count_text(abs(counts - count))}"
    return (
        f"{count_text(count)} → {count_text(counts)} collectives ({more}), "
        f"{signed_bytes(wires - wire)} on the wire ({signed_bytes(messages - message)} in messages), "
        f"{_per_text(diff, difference)}{apart}"
    )


def what_differs(diff: TraceDiff) -> str:
    """Return a sentence on how mesh, ranks, modules and parameters differ."""
    before, after = _program(diff.before.tables), _program(diff.after.tables)
    changes = [f"{name} {before[name]} → {after[name]}" for name in before if before[name] != after[name]]
    if not changes:
        return "A and B have the same mesh, ranks, modules and parameters: only the calls differ."
    return f"From A to B: {', '.join(changes)}."


def _program(tables: Tables) -> dict[str, str]:
    """Return mesh, ranks, modules, and the size of all parameters, each counted once, as texts."""
    parameters = tables.parameters.filter(pl.col("shared_with") == "").unique("name")
    return {
        "mesh": html.plain(tables.info.mesh or "none", longest=60),
        "ranks": f"{tables.info.world_size:,}",
        "modules": f"{tables.modules.height:,}",
        "parameters": format_bytes(int(parameters["global_bytes"].sum())),
    }


def _per_text(diff: TraceDiff, difference: PlanDifference) -> str:
    """Return what the totals are summed over, or per what they are means."""
    before, after = (summed_over(trace.tables) for trace in (diff.before, diff.after))
    if not difference.means:
        return before if before == after else f"A {before}, B {after}"
    return f"per rank and step ({difference.means})"
