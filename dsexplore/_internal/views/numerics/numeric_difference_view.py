"""The view of a `NumericDifference`: the sentence, and the tensors that differ in program order."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.analysis.numeric_difference import NumericDifference
from dsexplore._internal.units import format_ranks
from dsexplore._internal.views.page import html
from dsexplore._internal.views.view import View

HEAD = ("step", "phase", "module", "tensor", "ranks", "norm in A", "norm in B")
_MOST_ROWS = 20


class NumericDifferenceView(View):
    """The view of a `NumericDifference`."""

    title = "Where values part"

    def __init__(self, difference: NumericDifference) -> None:
        self._difference = difference
        rows = difference.to_frame()
        beyond = rows.filter(~pl.col("same"))
        self._rows = rows.filter(~pl.col("same_bits")) if beyond.is_empty() and difference.by_rank else beyond

    def text(self) -> str:
        """Return the lines of the difference."""
        return html.plain(str(self._difference), 0)

    def html(self) -> str:
        """Return the sentence, and a table of the first tensors that differ."""
        parts = [f"<p><b>{html.escape(str(self._difference), 0)}</b></p>"]
        if self._rows.height:
            rows = [
                (
                    *map(str, (row["step"], row["phase"])),
                    *(html.parted(row[name]) for name in ("module", "name")),
                    format_ranks(row["ranks"]),
                    *(f"{row[name]:.4g}" for name in ("norm_before", "norm_after")),
                )
                for row in self._rows.head(_MOST_ROWS).iter_rows(named=True)
            ]
            parts.append(html.table(HEAD, rows, left=(1, 2, 3, 4)))
        if self._rows.height > _MOST_ROWS:
            parts.append(f'<p class="dim">… and {self._rows.height - _MOST_ROWS:,} more: see to_frame()</p>')
        how = "rank by rank" if self._difference.by_rank else "as whole tensors, the sum of all ranks' parts"
        parts.append(f'<p class="dim">Summaries of outputs and gradients, compared {how}.</p>')
        return html.fragment("".join(parts))
