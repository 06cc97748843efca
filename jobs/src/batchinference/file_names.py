r"""Converts local paths to text and back, even if they are not valid UTF-8.

Linux allows any bytes in the name of a file. A byte that is not part of valid UTF-8 is written as
`\xe9`, for example in `caf\xe9.txt`. A backslash before text that looks like such an escape is
written as `\x5c`, so that each text stands for exactly one path. Other backslashes are kept.
"""

from __future__ import annotations

import os
import re

_UNSAFE = re.compile(r"\\(?=x(?:5c|[89a-f][0-9a-f]))|[\udc80-\udcff]")
"""Matches a backslash that would begin an escape, and a byte that Python could not decode."""
_ESCAPE = re.compile(r"\\x(5c|[89a-f][0-9a-f])")
_BACKSLASH = 0x5C


def escaped(path: str) -> str:
    """Return a path of the operating system as text."""
    if path.isascii() and "\\" not in path:
        return path
    return _UNSAFE.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", path)


def os_path(text: str) -> str:
    """Return the path of the operating system that a text of `escaped` stands for."""
    if "\\x" not in text:
        return text
    return os.fsdecode(_ESCAPE.sub(_unescaped, text).encode("utf-8", "surrogateescape"))


def _unescaped(match: re.Match[str]) -> str:
    byte = int(match[1], 16)
    return chr(byte) if byte == _BACKSLASH else chr(0xDC00 + byte)
