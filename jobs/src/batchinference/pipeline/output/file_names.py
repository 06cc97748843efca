"""Makes text safe for use in file names."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    r"(?:[^\w\u0080-\U0010ffff-]"  # in ASCII, all except letters, digits, '_' and '-'
    r"|[\s\x80-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff])+"  # invisible
)


def safe(text: str) -> str:
    """Return the text with `_` in place of characters that cause problems in file systems or are
    invisible to people. Letters of any language are kept."""
    return _UNSAFE.sub("_", text)
