"""Compresses to the gzip format. Equal content gives equal bytes with every version of Python.

The module `gzip` writes another header in some versions.
"""

from __future__ import annotations

import zlib

_LEVEL = 9
_GZIP = 31
"""The parameter `wbits` of zlib for the gzip format."""


def gzip_compressor() -> zlib._Compress:
    """Return a compressor for content that is not in memory as a whole."""
    return zlib.compressobj(_LEVEL, wbits=_GZIP)
