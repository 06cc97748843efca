"""Compresses to the gzip format, with the same header in every version of Python. The header that
the module `gzip` writes depends on the version."""

from __future__ import annotations

import zlib

_LEVEL = 9
_GZIP = 31
"""The parameter `wbits` of zlib for the gzip format."""


def gzip_compressor() -> zlib._Compress:
    """Return a compressor that takes the content in parts."""
    return zlib.compressobj(_LEVEL, wbits=_GZIP)
