"""The style of the report and of `ui`: readable colors, and nothing wider than a phone."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STYLES = "".join(
    (files("batchinference") / name).read_text("utf-8")
    for name in ("pipeline/html_report/style.css", "ui/ui.css")
)
WIDEST_REM = 11
"""Maximum width that a rule may require: half of the narrowest phone, of 360 pixels."""
TEXT = [
    *((ink, ground) for ink in ("ink", "soft", "accent", "bad") for ground in ("page", "card")),
    *(("accent", "wash"), ("good", "good-wash"), ("bad", "bad-wash")),
]
AREAS = ["accent", "part-1", "part-2", "part-3"]


def colors(scheme: str) -> dict[str, str]:
    """Return the variables of a color scheme. The dark scheme comes second."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLES, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): #(\w{6})", light if scheme == "light" else dark))


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_areas_have_the_contrast_that_wcag_requires(scheme: str) -> None:
    colours = colors(scheme)
    faint = [pair for pair in TEXT if contrast(colours[pair[0]], colours[pair[1]]) < 4.5]
    assert faint == []
    assert [area for area in AREAS if contrast(colours[area], colours["card"]) < 3] == []


def test_no_rule_requires_more_than_half_of_a_phone() -> None:
    widths = re.findall(r"(?:^|[\s;{])(?:min-)?width: ([\d.]+)(rem|px)", STYLES)
    rem = [float(number) / (16 if unit == "px" else 1) for number, unit in widths]
    assert rem
    assert max(rem) <= WIDEST_REM
