"""The headline of a trace: one bar of what a rank sends in a step, by axis, and the sentences below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsexplore.analysis.headline import Headline, Sentence
from dsexplore.units import format_bytes, format_seconds
from dsexplore.views.page import html
from dsexplore.views.page.theme import AXES, AXIS_STYLE
from dsexplore.views.trace.module_tree import NO_AXIS, OTHER_AXES
from dsexplore.views.view import View

STYLE = (
    """
.dsx .headline{margin:2px 0 8px;max-width:1000px}
.dsx .headline .bar{height:18px;border:1px solid var(--dsx-line)}
.dsx .headline .bar span{line-height:17px}
.dsx .headline p{font-size:calc(var(--dsx-size)*14/13);margin:.25em 0;overflow-wrap:anywhere}
.dsx.dsx .headline .key{font-size:var(--dsx-tiny)}
.dsx .answers{max-width:1000px;margin-bottom:8px}
.dsx .headline .to{font-size:var(--dsx-small);margin-left:4px;color:var(--dsx-link);background:none;border:0;padding:0;
text-decoration:underline;cursor:pointer;font-family:inherit}
"""
    + AXIS_STYLE
)

_WORD = {"axes": "by module and axis", "module": "its row", "finding": "findings", "time": "in time"}


class HeadlineView(View):
    """The view of a `Headline`."""

    title = "Headline"

    def __init__(self, headline: Headline) -> None:
        self._headline = headline

    def text(self) -> str:
        """The sentences."""
        return "\n".join(html.plain(one.text, 500) for one in self._headline.sentences) or "Nothing is sent."

    def html(self) -> str:
        """The bar and the sentences."""
        return html.fragment(headline_html(self._headline, lambda _: "") or "<p>Nothing is sent.</p>", STYLE)


def headline_html(headline: Headline, link: Callable[[int], str], axes: Sequence[str] = ()) -> str:
    """The bar and the sentences; empty where nothing is sent.

    Args:
        headline: of a trace.
        link: HTML behind the sentence of that number, that leads to the rows that it speaks of.
        axes: the axes in the order of their colours, as the tree beside it has them; by default most bytes first.
    """
    if not headline.sentences:
        return ""
    said = "".join(f"<p>{html.escape(one.text, 400)}{link(i)}</p>" for i, one in enumerate(headline.sentences))
    return f'<div class="headline">{_bar(headline, axes)}{said}</div>'


def anchors(headline: Headline) -> list[str]:
    """The id of the element that each sentence leads to."""
    return [html.content_id("sentence", i, one.text) for i, one in enumerate(headline.sentences)]


def link_to(anchor: str, sentence: Sentence) -> str:
    """A link to an element of the same page."""
    return f' <a class="to" href="#{anchor}">{_WORD[sentence.about]}</a>'


def filter_by(number: int) -> str:
    """A button of the explorer, that chooses the events of a sentence."""
    return f' <button class="to" data-sentence="{number}">show</button>'


def _bar(headline: Headline, axes: Sequence[str]) -> str:
    """Wire bytes of a rank in a step: one part per axis, and what each is in words."""
    rows = [row for row in headline.to_frame().iter_rows(named=True) if row["wire_bytes"]]
    if not rows:
        return ""
    names = [row["axis"] or NO_AXIS for row in rows]
    order = list(axes) or (names if len(names) <= len(AXES) else [*names[: len(AXES) - 1], OTHER_AXES])
    parts, words = [], []
    for i, name in enumerate(order[: len(AXES)]):
        held = [r for r, n in zip(rows, names, strict=True) if n == name or (name == OTHER_AXES and n not in order)]
        size = sum(row["wire_bytes"] for row in held)
        if not size:
            continue
        took = f", {format_seconds(held[0]['ms'] / 1e3)}" if len(held) == 1 and held[0]["ms"] else ""
        parts.append((f"a{i}", AXES[i].letter, size, ""))
        mark = f'<span class="key a{i}">{AXES[i].letter}</span>'
        words.append(f"{mark}{html.name(name, 40)} {format_bytes(size)}{took}")
    bar = html.stacked_bar(parts, sum(size for _, _, size, _ in parts))
    return (
        f'<div role="img" aria-label="wire bytes of a rank in a step, by axis">{bar}</div>'
        f'<p class="dim" style="font-size:var(--dsx-small)">Wire bytes per rank and step: {" · ".join(words)}</p>'
    )
