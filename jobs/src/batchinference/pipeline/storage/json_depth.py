"""Limits the nesting depth of JSON.

Parsers are recursive: a line of 40 KB of brackets overflows the stack of pyarrow's parser and kills
the process.
"""

from __future__ import annotations

import numpy as np

MAX_DEPTH = 100
_SEEN = b'[]{}"'
_UNSEEN = bytes(byte for byte in range(256) if byte not in _SEEN)
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def check_depth(content: bytes) -> None:
    """Raise ValueError if JSON is nested deeper than MAX_DEPTH. The measured depth of invalid JSON
    is correct up to the first error, which is as far as a parser gets."""
    if not _has_simple_lines(content) and _depth(content) > MAX_DEPTH:
        raise ValueError(f"JSON is nested deeper than {MAX_DEPTH} levels")


def _has_simple_lines(content: bytes) -> bool:
    """Return whether each line starts and ends like an object, so that no bracket stays open across
    lines, and has at most MAX_DEPTH opening brackets, including those in strings. Most files have
    such lines, and this check is fast."""
    inner_ends = content.count(b"\n") - content.endswith(b"\n")
    if inner_ends != content.count(b"}\n{"):
        return False
    marks = np.frombuffer(content, np.uint8)
    opened = np.flatnonzero(marks | 0x20 == ord("{"))  # '[' | 0x20 is '{'
    lines = np.searchsorted(np.flatnonzero(marks == ord("\n")), opened)
    return not bool((lines[MAX_DEPTH:] == lines[:-MAX_DEPTH]).any())


def _depth(content: bytes) -> int:
    if b"\\" in content:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(content.translate(None, _UNSEEN), np.uint8)
    in_text = np.cumsum(marks == ord('"'), dtype=np.int32) % 2 == 1
    steps = np.where(in_text, 0, _STEPS[marks])
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))
