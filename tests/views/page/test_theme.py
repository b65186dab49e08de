"""Colors that stand side by side are told apart by the color-blind, and can be read on light and on dark pages.

Computed, not looked at. How a dichromat sees a color: Viénot, Brettel and Mollon (Digital video colormaps for
checking the legibility of displays by dichromats, 1999) for protanopes and deuteranopes, and Machado, Oliveira and
Fernandes (A physiologically-based model for simulation of color vision deficiency, 2009; severity 1.0) for all three.
Differences: CIEDE2000.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import numpy.typing as npt
import pytest

from dsexplore._internal.views.cost import prediction_tables
from dsexplore._internal.views.cost.prediction_tables import PART_COLORS
from dsexplore._internal.views.page import style, theme
from dsexplore._internal.views.sharding import shard_picture
from dsexplore._internal.views.timeline.mark_colors import _IO, WAITS
from dsexplore._internal.views.trace import diff_tree, drawings

Matrix = npt.NDArray[np.float64]

MACHADO = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Of linear sRGB: table 1 of the paper's supplement."""
VIENOT = {
    "protan": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deutan": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
SIGHTS = [
    ("usual", np.eye(3)),
    *((f"{name} (Machado)", np.array(rows)) for name, rows in MACHADO.items()),
    *((f"{name} (Viénot)", np.array(rows)) for name, rows in VIENOT.items()),
]
LEAST = 10.0
"""CIEDE2000 between two areas; 1 is just noticeable side by side, 5 at a glance."""
AXES_AND_ALARM = [*(color for color, _ in theme.AXES), theme.ALARM]
SIDE_BY_SIDE = {
    "phases": [mark.color for mark in theme.PHASES.values()],
    "axes and what costs time": AXES_AND_ALARM,
    "memory": [mark.color for mark in theme.MEMORY.values()],
    "ops": [mark.color for mark in theme._OPS.values()],
    "parts of a predicted step": list(PART_COLORS.values()),
    "waiting, disk and blocked": [theme.SHADE, WAITS.fill, *(color.fill for color in _IO.values())],
}


def linear(color: str) -> Matrix:
    """Linear sRGB of ``#rrggbb`` or ``#rgb``."""
    color = color if len(color) == 7 else "#" + "".join(2 * digit for digit in color[1:])
    share = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb: Matrix) -> Matrix:
    """CIE L*a*b* of linear sRGB, white D65."""
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one: Matrix, other: Matrix) -> float:
    """Return the difference of two colors in L*a*b* (Sharma, Wu and Dalal, 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25.0**7)))
    c1, c2 = np.hypot((1 + g) * a1, b1), np.hypot((1 + g) * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, (1 + g) * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    dh = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    level, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    t = (
        1 - 0.17 * np.cos(np.radians(hue - 30)) + 0.24 * np.cos(np.radians(2 * hue))
        + 0.32 * np.cos(np.radians(3 * hue + 6)) - 0.20 * np.cos(np.radians(4 * hue - 63))
    )  # fmt: skip
    sl = 1 + 0.015 * (level - 50) ** 2 / np.sqrt(20 + (level - 50) ** 2)
    sc, sh = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    rotation = (
        -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    )
    parts = (l2 - l1) / sl, (c2 - c1) / sc, dh / sh
    return float(np.sqrt(sum(part**2 for part in parts) + rotation * parts[1] * parts[2]))


def contrast(one: str, other: str) -> float:
    """Return the ratio of WCAG 2: 1 for equal colors, 21 for black on white."""
    luminance = sorted(float(TO_XYZ[1] @ linear(color)) + 0.05 for color in (one, other))
    return luminance[1] / luminance[0]


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.0, 2.0), (50.0, 0.0, 0.0), 2.3669),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_is_that_of_the_published_examples(one: Matrix, other: Matrix, difference: float) -> None:
    """The pairs are those of Sharma, Wu and Dalal's table 1."""
    assert ciede2000(np.array(one), np.array(other)) == pytest.approx(difference, abs=1e-4)


@pytest.mark.parametrize(("sight", "matrix"), SIGHTS, ids=[name for name, _ in SIGHTS])
def test_a_grey_looks_grey_to_everyone(sight: str, matrix: Matrix) -> None:
    assert matrix @ np.ones(3) == pytest.approx(np.ones(3), abs=0.01)


@pytest.mark.parametrize(("sight", "matrix"), SIGHTS, ids=[name for name, _ in SIGHTS])
@pytest.mark.parametrize("used", SIDE_BY_SIDE)
def test_colors_side_by_side_are_told_apart(used: str, sight: str, matrix: Matrix) -> None:
    seen = {color: lab(matrix @ linear(color)) for color in dict.fromkeys(SIDE_BY_SIDE[used])}
    assert len(seen) == len(SIDE_BY_SIDE[used])
    close = {
        (one, other): round(difference, 1)
        for one, other in itertools.combinations(seen, 2)
        if (difference := ciede2000(seen[one], seen[other])) < LEAST
    }
    assert close == {}


def test_red_and_green_of_one_lightness_would_be_found() -> None:
    """The test above can fail: red and green differ only for usual eyes."""
    red, green = linear("#c0504d"), linear("#71843b")
    assert ciede2000(lab(red), lab(green)) > 40
    deutan = np.array(MACHADO["deutan"])
    assert ciede2000(lab(deutan @ red), lab(deutan @ green)) < LEAST


@pytest.mark.parametrize(
    "mark",
    [*theme.PHASES.values(), *(theme.Mark("1", *colors) for colors in theme.AXES), *theme.MEMORY.values()],
    ids=lambda mark: mark.color,
)
def test_the_letter_on_a_mark_can_be_read(mark: theme.Mark) -> None:
    assert contrast(mark.color, mark.text_color) >= 4.5


LANES = {"#ffffff": "#f0f0f0", "#111111": "#1f1f1f"}
"""Pages, and the lanes on them: 6 % of black, or of white."""


@pytest.mark.parametrize("background", LANES)
def test_marks_and_ink_stand_out_on_light_and_on_dark_pages(background: str) -> None:
    assert contrast(theme.FIGURE_TEXT, background) >= 4.1
    assert min(contrast(mark.color, background) for mark in theme.MEMORY.values()) >= 2.0
    assert min(contrast(color, background) for color in (theme.SHADE, *AXES_AND_ALARM)) >= 3.0
    on_lanes = (*theme.SERIES, theme.WAITING, *(mark.color for mark in theme._OPS.values()), *PART_COLORS.values())
    assert min(contrast(color, LANES[background]) for color in on_lanes) >= 3.0


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (("dp", "fsdp", "dp_shard", "DP", "dp_cp"), 0),
        (("replicate", "dp_replicate"), 1),
        (("tp", "sp"), 2),
        (("cp",), 3),
        (("pp",), 4),
        (("ep", "etp"), 5),
        (("", "no mesh", "other axes", "world"), 6),
        (("dim_0", "dim_5"), 7),
    ],
)
def test_an_axis_has_the_color_of_its_name(names: tuple[str, ...], number: int) -> None:
    assert {theme.axis_number(name) for name in names} == {number}


def test_an_unknown_name_has_one_color_in_every_session() -> None:
    assert theme.axis_number("dim_1") == 1
    assert [theme.axis_number(name) for name in ("rows", "columns", "層")] == [5, 7, 1]
    assert {theme.axis_number(f"name {i}") for i in range(40)} == {1, 3, 4, 5, 7}
    assert len({theme.axis_number(f"dim_{i}") for i in range(5)}) == 5
    marks = [theme.axis_mark(name).letter for name in ("dp", "dp_shard", "dp_replicate", "dim_1", "experts", "")]
    assert marks == ["dp", "ds", "dr", "d1", "ex", "–"]


def test_marks_are_flat() -> None:
    """Thin marks are too small for a hatch; letters tell them apart where colors do not."""
    styles = (style.AXIS_STYLE, drawings.STYLE, prediction_tables.STYLE, shard_picture.STYLE, diff_tree.STYLE)
    rules = re.findall(r"[^{}]*{[^{}]*}", "".join(styles))
    assert [rule for rule in rules if "repeating-" in rule and ".fold::after" not in rule] == []
