"""The view of a `NumericDifference`: its verdict, and the tensors that differ, in program order."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.analysis.numeric_difference import NumericDifference
from dsexplore._internal.units import format_ranks
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.view import View

_MOST_ROWS = 20


class NumericDifferenceView(View):
    """The view of a `NumericDifference`."""

    title = "Where values differ"

    def __init__(self, difference: NumericDifference) -> None:
        self._difference = difference
        rows = difference.to_frame()
        beyond = rows.filter(~pl.col("same"))
        self._rows = rows.filter(~pl.col("same_bits")) if beyond.is_empty() and difference.by_rank else beyond

    def text(self) -> str:
        """Return the lines of the difference."""
        return html.plain(str(self._difference), longest=0)

    def html(self) -> str:
        """Return the verdict, and a table of the first tensors that differ."""
        columns = (
            Column("step", lambda row: str(row["step"])),
            text("phase", lambda row: row["phase"]),
            text("module", lambda row: html.parted(row["module"])),
            text("tensor", lambda row: html.parted(row["name"])),
            text("ranks", lambda row: format_ranks(row["ranks"])),
            Column("norm in A", lambda row: f"{row['norm_before']:.4g}"),
            Column("norm in B", lambda row: f"{row['norm_after']:.4g}"),
        )
        parts = [f"<p><b>{html.escape(self._difference, longest=0)}</b></p>"]
        if self._rows.height:
            rows, hidden = self._rows.head(_MOST_ROWS).iter_rows(named=True), self._rows.height - _MOST_ROWS
            parts.append(table(columns, rows, hidden=hidden, more="more: see to_frame()"))
        how = "rank by rank" if self._difference.by_rank else "as whole tensors, summed over the ranks"
        parts.append(html.note(f"Summaries of outputs and gradients, compared {how}."))
        return html.fragment("".join(parts))
