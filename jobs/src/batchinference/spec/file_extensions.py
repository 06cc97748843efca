"""File extensions, in lower case and without the first dot."""

import re

COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
"""Compressions that readers of text lines support, by extension."""
PARQUET = ("parquet", "parq", "pq")
PICTURES = (
    *("jpg", "jpeg", "jpe", "jfif", "jif", "png", "apng", "webp", "gif", "bmp", "dib"),
    *("tif", "tiff", "jp2", "j2k", "j2c", "jpc", "jpf", "jpx", "avif"),
    *("ppm", "pgm", "pbm", "pnm", "mpo"),
)
HEIF, HEIF_PACKAGE = ("heic", "heif", "hif"), "pillow-heif"
_EXTENSION = re.compile(r"[a-z0-9_-]{1,16}")


def packed(*endings: str) -> tuple[str, ...]:
    """Return the endings, and each ending with each compression, such as `csv.gz`."""
    return (*endings, *(f"{ending}.{each}" for each in COMPRESSIONS for ending in endings))


def extension_of(name: str) -> str:
    """Return the extension of a file name, such as `csv` or `csv.gz`; empty if there is none.
    Numbers, as in `log.2024`, and long texts are not extensions."""
    parts = name.lower().split(".")[1:]
    if not parts or parts[-1].isdigit() or not _EXTENSION.fullmatch(parts[-1]):
        return ""
    is_packed = parts[-1] in (*COMPRESSIONS, "xz") and _EXTENSION.fullmatch(".".join(parts[-2:-1]))
    return ".".join(parts[-2:]) if is_packed else parts[-1]
