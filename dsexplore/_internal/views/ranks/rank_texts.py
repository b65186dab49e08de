"""What each rank of a cell printed and returned, labeled by rank; ranks with the same text share a section.

The section of the lowest rank is open, the others are collapsed. The middle of a long text is omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsexplore._internal.units import format_bytes, format_ranks
from dsexplore._internal.views.page import html

MOST = 80_000
"""Number of characters of one rank's text that are shown."""

STYLE = """
.dsx .ranks summary{cursor:pointer;font-weight:600}
.dsx .ranks pre{margin:.1em 0 .5em 1em;white-space:pre-wrap;font:var(--dsx-small)/1.4 monospace;color:var(--dsx-fg)}
.dsx .ranks pre.value{color:var(--dsx-dim)}
"""


@dataclass(frozen=True)
class RankText:
    """The text that one rank wrote."""

    output: str
    """Text written to stdout and stderr."""
    value: str = ""
    """``repr`` of the cell's last expression; empty if there is none."""


def together(texts: Mapping[int, RankText]) -> list[tuple[tuple[int, ...], RankText]]:
    """Return (ranks, text) for each distinct text, by lowest rank; ranks that wrote nothing are omitted."""
    ranks: dict[RankText, list[int]] = {}
    for rank, text in sorted(texts.items()):
        if text.output or text.value:
            ranks.setdefault(text, []).append(rank)
    return [(tuple(ranks_of_text), text) for text, ranks_of_text in ranks.items()]


def as_html(texts: Mapping[int, RankText]) -> str:
    """Return one collapsible section per distinct text, or ``""`` if no rank wrote anything."""
    folds = [_fold(ranks, text, opened=number == 0) for number, (ranks, text) in enumerate(together(texts))]
    return html.fragment(f'<div class="ranks">{"".join(folds)}</div>', STYLE) if folds else ""


def _fold(ranks: tuple[int, ...], text: RankText, opened: bool) -> str:
    """Return the section of the ranks that wrote a text."""
    printed = f"<pre>{html.escape(shortened(text.output.rstrip()), longest=0)}</pre>" if text.output.strip() else ""
    value = f'<pre class="value">{html.escape(shortened(text.value), longest=0)}</pre>' if text.value else ""
    state = " open" if opened else ""
    return f"<details{state}><summary>{format_ranks(ranks)}</summary>{printed}{value}</details>"


def as_text(texts: Mapping[int, RankText]) -> str:
    """Return the texts for a terminal, each line prefixed with its ranks."""
    lines = []
    for ranks, text in together(texts):
        label = format_ranks(ranks)
        for part in filter(None, (text.output.rstrip(), text.value)):
            lines += [f"[{label}] {html.printable(line)}" for line in shortened(part).splitlines()]
    return "\n".join(lines)


def shortened(text: str) -> str:
    """Return at most about `MOST` characters of a text; of each line, only those after its last carriage return."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")] if "\r" in text else [text]
    plain = "\n".join(lines)
    if len(plain) <= MOST:
        return plain
    half = MOST // 2
    skipped = format_bytes(len(plain) - 2 * half)
    return f"{plain[:half]}\n… {skipped} of output left out …\n{plain[-half:]}"
