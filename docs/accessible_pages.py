"""Mend what the theme lacks for people who use a keyboard or a screen reader, in the pages that were built."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

MENDED = (
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    ("<pre>", '<pre tabindex="0">'),
    ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="site">'),
    ('<aside class="toc-drawer', '<aside aria-label="this page" class="toc-drawer'),
)
"""What stands in a page, and its replacement: levels of headings, keys that scroll what is wide, names of landmarks."""
REGION = re.compile(r'role="region" aria-label="([^"]+)"')


def mend(html: str) -> str:
    """Return a page, mended; one that is mended already stays as it is."""
    for before, after in MENDED:
        html = html.replace(before, after)
    seen: Counter[str] = Counter()

    def numbered(region: re.Match[str]) -> str:
        seen[region[1]] += 1
        number = seen[region[1]]
        return region[0] if number == 1 else f'role="region" aria-label="{region[1]} {number}"'

    return REGION.sub(numbered, html)


def mend_pages(folder: Path) -> None:
    """Mend the pages in a folder."""
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        mended = mend(text)
        if mended != text:
            page.write_text(mended, encoding="utf-8")
