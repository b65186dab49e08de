"""Parts that all static views share: escaping, tables, ids that depend on content, the page around a fragment.

Every fragment is

* complete without JavaScript, kernel or network, and readable as text where a renderer strips the style;
* safe: names are data, so they are escaped, isolated for writing direction, and shortened if they are very long;
* equal in every notebook: `.dsx.dsx` outweighs JupyterLab's own rules for tables, code and headings;
* light or dark like its surroundings, see `style`;
* legible without color: each color has a letter too;
* byte for byte the same for the same content, including ids.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Collection, Iterable, Sequence

from dsexplore._internal.views.page import style, theme

LONGEST_NAME = 160
"""Number of characters of a name that are shown; the middle of a longer one is cut out."""

_AFTER_DOTS = re.compile(r"(?<=[\w*])\.(?!py\b)(?=[^\W\d])|/(?=\w)|(?<=\w)\((?=[^\W\d])")
_LONG_WORD = re.compile(r"[^\W_]{24,}")
_LONG_NAME = re.compile(r"\w{32,}")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_AFTER_UNDERSCORES = re.compile(r"(?<=\w)_(?=\w)")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escape(text: object, *, longest: int = LONGEST_NAME) -> str:
    """Return text that is safe inside an element or a quoted attribute; control characters become ``�``.

    Args:
        text: any name or message.
        longest: number of characters kept; the middle of a longer text is replaced by ``…``. 0 keeps all.
    """
    return html.escape(_shortened(text, longest), quote=True)


def _shortened(text: object, longest: int) -> str:
    """Return printable text of at most ``longest`` characters, see `escape`."""
    whole = printable(text)
    if not longest or len(whole) <= longest:
        return whole
    head = longest * 2 // 3
    return f"{whole[:head]}…{whole[len(whole) - (longest - head - 1) :]}"


def prose(text: object, *, longest: int) -> str:
    """Return an escaped sentence whose names may break into lines, so that it fits a narrow column.

    Lines break after dots, slashes and opening brackets, and in very long names also at capitals and after
    underscores, but not between a module and its number, nor between a number and its percent sign.
    """
    broken = _AFTER_DOTS.sub(r"\g<0><wbr>", with_whole_percentages(escape(text, longest=longest)))
    humped = _LONG_WORD.sub(lambda word: _HUMP.sub("<wbr>", word[0]), broken)
    return _LONG_NAME.sub(lambda name: _AFTER_UNDERSCORES.sub("_<wbr>", name[0]), humped)


def with_whole_percentages(text: str) -> str:
    """Return the sentence with a no-break space between each number and its percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def name(text: object, *, longest: int = LONGEST_NAME) -> str:
    """Return an escaped name in ``<bdi>``, so that its writing direction does not affect the text next to it."""
    return f"<bdi>{escape(text, longest=longest)}</bdi>"


def verdict(text: str, *, longest: int = 600, more: str = "") -> str:
    """Return the conclusion of a view in large letters; ``more`` is HTML after it, such as a link."""
    return f'<p class="verdict">{prose(text, longest=longest)}{more}</p>'


def conclusion(what: str, tag: str, sentence: str) -> str:
    """Return the head of a view: what it describes, where its numbers come from (``"measured"``), and its verdict."""
    return f'<p>{prose(what, longest=300)} <span class="tag">{tag}</span></p>{verdict(sentence)}'


def details(title: str, body: str, opened: bool = False) -> str:
    """Return a collapsible section: an escaped title, and HTML; empty for an empty body."""
    if not body:
        return ""
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{body}</details>"


def note(text: str) -> str:
    """Return a muted paragraph of HTML; empty for no text."""
    return f'<p class="dim">{text}</p>' if text else ""


def notes(lines: Iterable[str], *, longest: int = 0) -> str:
    """Return a muted paragraph per line, shortened to ``longest`` characters (0: not at all), see `prose`."""
    return "".join(note(prose(line, longest=longest)) for line in lines)


def how(text: str) -> str:
    """Return HTML on how to read a picture, folded behind a "?"."""
    return f'<details class="how"><summary title="How to read it">?</summary><p class="dim">{text}</p></details>'


def sentences(lines: Iterable[str], *, longest: int = 300) -> str:
    """Return a paragraph of each sentence."""
    return "".join(f"<p>{prose(line, longest=longest)}</p>" for line in lines)


RANKS_STYLE = f"""
.dsx .rank-boxes span{{display:inline-block;min-width:2em;text-align:center;border:1px solid var(--dsx-line);
margin:0 2px 2px 0;font-size:var(--dsx-small)}}
.dsx .rank-boxes .bad{{background:{theme.ALARM};color:#fff;font-weight:700;forced-color-adjust:none}}
"""


def rank_boxes(ranks: Sequence[int], marked: Collection[int], most: int = 64) -> str:
    """Return a box per rank, those marked red and with "!"; needs `RANKS_STYLE`.

    Args:
        ranks: ranks to draw. If there are more than ``most``, the marked ones are drawn first.
        marked: ranks to highlight, such as those that are missing.
        most: maximal number of boxes.
    """
    shown = ranks if len(ranks) <= most else sorted(sorted(ranks, key=lambda rank: rank not in marked)[:most])
    boxes = "".join(f'<span class="bad">{rank}!</span>' if rank in marked else f"<span>{rank}</span>" for rank in shown)
    hidden = len(ranks) - len(shown)
    return f'<span class="rank-boxes">{boxes}</span>' + (f" and {hidden:,} more" if hidden else "")


def axis_key(axis: str, *, longest: int = LONGEST_NAME) -> str:
    """Return the letters of a mesh axis in its color, followed by its name if the letters abbreviate it."""
    letters = theme.axis_mark(axis).letter
    swatch = f'<span class="key a{theme.axis_number(axis)}">{escape(letters)}</span>'
    return swatch if letters == axis else f"{swatch} {parted(axis, longest=longest)}"


def parted(text: object, *, longest: int = LONGEST_NAME) -> str:
    """Return an escaped `name` that may break where `prose` breaks, and after every underscore."""
    return f"<bdi>{_AFTER_UNDERSCORES.sub('_<wbr>', prose(text, longest=longest))}</bdi>"


def plain(text: object, *, longest: int = LONGEST_NAME) -> str:
    """Return a name for ``text/plain``: on one line, without control characters, shortened as in `escape`."""
    return _shortened(" ".join(str(text).split()), longest)


def printable(text: object) -> str:
    """Return the text with control characters and lone surrogates replaced by ``�``, for a browser or a file."""
    string = str(text)
    return string if string.isprintable() else _UNPRINTABLE.sub("�", string)


def content_id(*parts: object) -> str:
    """Return an HTML id that depends on the content alone, so that two runs of a notebook give the same HTML."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode("utf-8", "replace"))
    return f"dsx-{digest.hexdigest()[:12]}"


def with_unique_ids(page: str, ids: Iterable[str]) -> str:
    """Return the HTML with each id replaced by one derived from the whole HTML, so that no other view shares it.

    A notebook shows many views in one page, and the same sentence, hence the same `content_id`, occurs in several.
    """
    renamed = page
    for old_id in ids:
        renamed = renamed.replace(old_id, content_id(old_id, page))
    return renamed


def fragment(body: str, more_style: str = "") -> str:
    """Return the root element of a view, with the theme, the style of all views and the view's own style."""
    return f'<div class="dsx"><style>{_squeeze(style.VARIABLES + style.BASE + more_style)}</style>{body}</div>'


def stacked_bar(parts: Iterable[tuple[str, str, float, str]], top: float) -> str:
    """Return a bar of several segments; each segment wider than 4 % of the column shows its letter.

    Args:
        parts: (class, letter, value, attributes of its tag) per segment; segments of value 0 are omitted.
        top: value of a bar as wide as its column.
    """
    segments = "".join(
        f'<span class="{kind}" style="width:{100 * value / top:.3g}%"{more}>'
        f"{letter if value / top > 0.04 else ''}</span> "
        for kind, letter, value, more in parts
        if value
    )
    return f'<div class="bar">{segments}</div>'


def page(title: str, body: str, scripts: bool = False) -> str:
    """Return one HTML document around a fragment, which fetches nothing; ``scripts``: whether its scripts may run."""
    run = "script-src 'unsafe-inline'; " if scripts else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; {run}"
        'img-src data:">'
        f"<title>{escape(title)}</title>"
        "<style>:root{color-scheme:light dark;--dsx-page:.875rem}body{margin:16px;background:Canvas}"
        "h1{position:absolute;clip-path:inset(50%);margin:0}</style>"
        f"</head><body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _squeeze(css: str) -> str:
    return re.sub(r"\s*\n\s*", "", css)
