"""How deep JSON is nested, measured before a parser sees it.

Parsers recurse: a line of 40 KB of brackets overflows the stack of pyarrow's and ends the process.
"""

from __future__ import annotations

import numpy as np

MAX_DEPTH = 100
_SEEN = b'[]{}"'
_UNSEEN = bytes(byte for byte in range(256) if byte not in _SEEN)
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def check_depth(content: bytes) -> None:
    """Raise ValueError if JSON is nested deeper than MAX_DEPTH. Of what is no JSON, the part up to
    the first error is measured, which is as far as a parser gets."""
    if not _has_simple_lines(content) and _depth(content) > MAX_DEPTH:
        raise ValueError(f"JSON is nested deeper than {MAX_DEPTH} levels")


def _has_simple_lines(content: bytes) -> bool:
    """Whether each line begins and ends as an object does, so that nothing stays open behind it,
    and has few brackets, in texts too. Most files have such lines, and this is fast."""
    inner_ends = content.count(b"\n") - content.endswith(b"\n")
    if inner_ends != content.count(b"}\n{"):
        return False
    marks = np.frombuffer(content, np.uint8)
    opened = np.flatnonzero(marks | 0x20 == ord("{"))  # which is what '[' becomes
    lines = np.searchsorted(np.flatnonzero(marks == ord("\n")), opened)
    return not bool((lines[MAX_DEPTH:] == lines[:-MAX_DEPTH]).any())


def _depth(content: bytes) -> int:
    if b"\\" in content:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(content.translate(None, _UNSEEN), np.uint8)
    in_text = np.cumsum(marks == ord('"'), dtype=np.int32) % 2 == 1
    steps = np.where(in_text, 0, _STEPS[marks])
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))
