"""Texts as parts of the names of files."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    r"(?:[^\w\u0080-\U0010ffff-]"  # of ASCII, all but letters, digits, '_' and '-'
    r"|[\s\x80-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff])+"  # unseen
)


def safe(text: str) -> str:
    """A text without what a file system or a person would stumble over: letters of any language
    stay."""
    return _UNSAFE.sub("_", text)
