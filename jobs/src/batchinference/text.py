"""Decodes text, makes untrusted text safe to print, and formats numbers and nouns for people.

A path, a row or a message of another program may contain escape sequences. They make a terminal
move the cursor, clear the screen or set the title. Bidirectional controls change the displayed
order of characters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal

_CONTROLS = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # bidirectional controls
    "\u2028\u2029"  # line and paragraph separators
    "\ufff9-\ufffb"  # interlinear annotations
    "\U000e0000-\U000e007f"  # tags, which are invisible
    "]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def without_controls(text: str) -> str:
    """Return the text without control characters, except newlines and tabs. A lone surrogate, which
    cannot be encoded, becomes U+FFFD."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def in_one_line(text: str) -> str:
    """Return the text without control characters, with each run of whitespace as one space."""
    spaced = " ".join(text.split())  # first, because some line breaks are control characters
    return " ".join(without_controls(spaced).split())


def decode_text(content: bytes, encoding: str = "utf-8") -> str:
    """Return the decoded text without a leading byte order mark. Raises UnicodeDecodeError."""
    return content.decode(encoding).removeprefix("\ufeff")


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def byte_size(size: float) -> str:
    """Return a number of bytes such as `1.5 KiB`, in the largest unit that gives 1 or more."""
    power = min(int(math.log(size, 1024)), len(_UNITS) - 1) if size >= 1 else 0
    value = size / 1024**power
    return f"{value:.0f} {_UNITS[power]}" if value >= 10 else f"{value:.1f} {_UNITS[power]}"


def counted(number: float, noun: str, form: str = "") -> str:
    """Return a number, formatted by `form`, with its noun, such as `1 row` or `2 rows`."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def named_lines(name: str, values: Sequence[object]) -> list[tuple[str, str]]:
    """Return a line (name, value) for each value. Only the first line has the name."""
    return [("" if number else name, str(value)) for number, value in enumerate(values)]


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, followed by `...` if the text is longer."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def with_article(noun: str) -> str:
    """Return the noun with `a` or `an` before it."""
    return f"an {noun}" if noun[:1].lower() in tuple("aeio") else f"a {noun}"


def escaped_controls(line: str) -> str:
    """Return a line of JSON with its control characters escaped."""
    return _CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], line)


def money(amount: float | str, currency: str) -> str:
    """Return an amount such as `1,234.50 EUR`."""
    return f"{float(amount):,.2f} {currency}"


def decimal_text(amount: float | Decimal) -> str:
    """Return an amount of money in the form of reports and statuses, such as `1234.5000`."""
    return f"{amount:.4f}"
